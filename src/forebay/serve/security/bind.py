"""Where the server may listen. This machine alone is always allowed; anything else needs keys and TLS.

Without TLS a key crosses the network for everybody to read; without keys nobody could use the server, and somebody
would soon look for a way around. The word `--insecure-plain-http` is for a proxy that does the TLS on a network that is
trusted; it is warned about at every start.
"""

import logging
from collections.abc import Sequence
from ipaddress import ip_address

from forebay.core.errors import Invalid

_log = logging.getLogger("forebay.serve")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, tls: bool, ways_in: Sequence[str], insecure: bool) -> list[str]:
    """Warnings, or `Invalid`. `ways_in` are what callers can show: keys, tokens, certificates."""
    if is_loopback(host):
        return []
    if not ways_in:
        raise Invalid(
            "host",
            f"{host} is reached by others, and there is no key yet",
            "make one with `forebay keys create --role admin`, or listen on 127.0.0.1",
        )
    if tls:
        return []
    if not insecure:
        raise Invalid(
            "host",
            f"{host} is reached by others, and keys would cross the network in plain text",
            "give --tls-cert and --tls-key, or --insecure-plain-http behind a proxy that does TLS",
        )
    warning = f"listening on {host} without TLS: keys and payloads can be read on the way (--insecure-plain-http)"
    _log.warning(warning)
    return [warning]
