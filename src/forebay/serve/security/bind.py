"""Where the server may listen. Loopback is always allowed; any other address needs keys and TLS.

Without TLS, keys cross the network in plain text. `--insecure-plain-http` is for a server behind a proxy that
terminates TLS on a trusted network; every start logs a warning about it.
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


def check_bind(host: str, *, tls: bool, auth_methods: Sequence[str], insecure: bool) -> list[str]:
    """Warnings, or `Invalid`. `auth_methods`: what callers can authenticate with (keys, tokens, certificates)."""
    if is_loopback(host):
        return []
    if not auth_methods:
        raise Invalid(
            "host",
            f"{host} is reachable from other machines, and there is no key yet",
            "create one with `forebay keys create --role admin`, or listen on 127.0.0.1",
        )
    if tls:
        return []
    if not insecure:
        raise Invalid(
            "host",
            f"{host} is reachable from other machines, and keys would cross the network in plain text",
            "give --tls-cert and --tls-key, or --insecure-plain-http behind a proxy that terminates TLS",
        )
    warning = (
        f"listening on {host} without TLS: keys and payloads cross the network in plain text (--insecure-plain-http)"
    )
    _log.warning(warning)
    return [warning]
