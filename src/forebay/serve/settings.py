"""`ServeSettings`: the server's settings as one checked value. It bounds everything that a client could make grow:
bodies, lines, waits, threads, callers.
"""

import logging
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.limits import PAYLOAD_BYTES

_log = logging.getLogger("forebay.serve")

MIB: Final = 1024 * 1024
MAX_PAGE: Final = 1_000
"""Items in one response."""

MAX_WAIT: Final = 60.0
"""Seconds for which a long poll may be held."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The options of `forebay serve`.

    max_body      bytes of one request body;  max_line: bytes of one line of a streamed body
    threads       for store calls;  max_calls: calls that run or wait for a thread, before a 503
    max_pollers   concurrent long polls;  max_wait: seconds for which one is held, whatever the request says
    max_event_streams  concurrent streams of `GET /events`
    drain         seconds in which requests in flight may finish after the server got a signal to stop
    maintain      fire schedules, promote due jobs and reclaim expired leases here too, as every worker does
    count_from_start  counters of /metrics start at the first record of the ledger, not at this server's start
    lake          a directory from which the dashboard reads the audit's verdict
    max_connections   None: as many as the process may open files for
    login_url     where a page sends those who are not logged in; by default the login with a key
    """

    host: str = "127.0.0.1"
    port: int = 8321
    max_body: int = MIB
    max_line: int = 2 * PAYLOAD_BYTES
    max_headers: int = 16 * 1024
    body_seconds: float = 10.0
    idle_seconds: float = 10.0
    threads: int = 16
    max_calls: int = 1_000
    max_pollers: int = 20_000
    max_wait: float = MAX_WAIT
    max_event_streams: int = 100
    drain: float = 10.0
    maintain: bool = True
    dashboard: bool = True
    metrics: bool = True
    count_from_start: bool = False
    lake: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    max_connections: int | None = None
    login_url: str | None = None

    def __post_init__(self) -> None:
        for field, minimum, maximum in (
            ("port", 0, 65_535),
            ("max_body", 1_024, 1_024 * MIB),
            ("max_line", 1_024, 64 * MIB),
            ("max_headers", 1_024, MIB),
            ("body_seconds", 0.1, 3_600),
            ("idle_seconds", 0.1, 3_600),
            ("threads", 2, 1_000),
            ("max_calls", 1, 1_000_000),
            ("max_pollers", 0, 1_000_000),
            ("max_wait", 0, MAX_WAIT),
            ("max_event_streams", 0, 10_000),
            ("drain", 0, 3_600),
        ):
            value = getattr(self, field)
            if type(value) not in (int, float) or not minimum <= value <= maximum:
                raise Invalid(field, f"{value!r} is not in {minimum} … {maximum}", "choose a value in that range")
        if self.max_connections is not None and not 64 <= self.max_connections <= 1_000_000:
            raise Invalid(
                "max_connections", f"{self.max_connections} is not in 64 … 1000000", "choose a value in that range"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Invalid("TLS", "a certificate and its key are needed together", "give both, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise Invalid("TLS", "client certificates need TLS", "give a certificate and its key too")

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, tls: bool, auth_methods: Sequence[str], insecure: bool) -> list[str]:
    """Warnings, or `Invalid`: loopback is always allowed, any other address needs keys and TLS.

    Without TLS, keys cross the network in plain text: `insecure` is for a server behind a proxy that terminates TLS on
    a trusted network. `auth_methods`: what callers can authenticate with (keys, tokens, certificates).
    """
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
