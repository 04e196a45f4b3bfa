"""`ServeSettings`: how the server behaves, as one checked value. Everything that a stranger could make grow is bounded
here: bodies, lines, waits, threads, callers.
"""

from typing import Final

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.limits import PAYLOAD_BYTES

MIB: Final = 1024 * 1024
PAGE_MOST: Final = 1_000
"""Items in one answer, at most."""

WAIT_MOST: Final = 60.0
"""Seconds for which a long poll may be held."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """What `forebay serve` was told.

    body_most      bytes of one request, but for the streams;  line_most: of one line of a stream
    threads        for calls of the store;  calls_most: those that run or wait for a thread, before it is a 503
    pollers_most   long polls at once;  wait_most: seconds for which one is held, whatever it asks for
    drain          seconds in which requests under way may end once the server is told to stop
    tend           fire schedules, promote and take back expired leases here too, as every worker does
    count_whole    counters of /metrics begin with the first record of the ledger, not with this server
    lake           a directory that the dashboard reads the audit's verdict from
    connections_most   at once;  None: as many as the process may have files open for
    insecure       the word that allows a bind beyond this machine without TLS
    """

    host: str = "127.0.0.1"
    port: int = 8321
    body_most: int = MIB
    line_most: int = 2 * PAYLOAD_BYTES
    depth_most: int = 64
    headers_most: int = 16 * 1024
    body_seconds: float = 10.0
    idle_seconds: float = 10.0
    threads: int = 16
    calls_most: int = 1_000
    pollers_most: int = 20_000
    wait_most: float = WAIT_MOST
    drain: float = 10.0
    tend: bool = True
    dashboard: bool = True
    metrics: bool = True
    count_whole: bool = False
    lake: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    insecure: bool = False
    connections_most: int | None = None

    def __post_init__(self) -> None:
        for field, least, most in (
            ("port", 0, 65_535),
            ("body_most", 1_024, 1_024 * MIB),
            ("line_most", 1_024, 64 * MIB),
            ("depth_most", 1, 64),
            ("headers_most", 1_024, MIB),
            ("body_seconds", 0.1, 3_600),
            ("idle_seconds", 0.1, 3_600),
            ("threads", 2, 1_000),
            ("calls_most", 1, 1_000_000),
            ("pollers_most", 0, 1_000_000),
            ("wait_most", 0, WAIT_MOST),
            ("drain", 0, 3_600),
        ):
            value = getattr(self, field)
            if type(value) not in (int, float) or not least <= value <= most:
                raise Invalid(field, f"{value!r} is not in {least} … {most}", "choose one inside these bounds")
        if self.connections_most is not None and not 64 <= self.connections_most <= 1_000_000:
            raise Invalid(
                "connections_most", f"{self.connections_most} is not in 64 … 1000000", "choose one inside them"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Invalid("TLS", "a certificate and its key come together", "give both, or none")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise Invalid("TLS", "client certificates are asked for without TLS", "give a certificate and its key too")

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None
