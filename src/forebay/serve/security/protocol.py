"""The HTTP protocol of the server: uvicorn's, with timeouts, connection limits and client certificates.

uvicorn waits without a bound for the rest of a request head, and for a client that does not read its response. This
protocol closes a connection that does not deliver a complete head within `head_seconds`, at its start or after a
response, and one that does not take its response for `WRITE_SECONDS`. A long poll is a request in flight: neither
timeout applies to it.

Every connection is registered with `Connections`, and its first bytes are checked before they are parsed. The scope of
each request carries `MARK_AUTHENTICATED`, which the auth middleware calls once the caller is known, and `PEER`, the
name in the client's certificate: only the connection knows the certificate.
"""

import asyncio
from functools import partial
from typing import Any, ClassVar, Final

from starlette.types import Message, Receive, Scope, Send

from forebay.serve.security.certificates import PEER, common_name
from forebay.serve.security.connections import Connections, EarlyRejection

WRITE_SECONDS: Final = 30.0
MARK_AUTHENTICATED: Final = "forebay.mark_authenticated"


class _GuardedConnection:
    """Precedes a protocol class of uvicorn in the order of bases."""

    head_seconds = 10.0
    registry: ClassVar[Connections]
    rejection: ClassVar[EarlyRejection]
    client: tuple[str, int] | None
    app: Any
    flow: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None
    _in_flight = 0
    _first = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.registry.add(self, self.client[0] if self.client else "")
        self._inner = self.app
        self.app = self._handle
        secured = transport.get_extra_info("ssl_object")
        self._peer = None if secured is None else common_name(secured.getpeercert())
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._first:
            self._first = False
            if (response := self.rejection.response_to(data)) is not None:
                self.transport.write(response)
                self.transport.close()
                return
        super().data_received(data)  # type: ignore[misc]

    def drop(self) -> None:
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._disarm()
        self.registry.remove(self)
        super().connection_lost(error)  # type: ignore[misc]

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Each request of the connection, once its head is complete."""
        self._in_flight += 1
        self._disarm()
        if self._peer is not None:
            scope[PEER] = self._peer
        scope[MARK_AUTHENTICATED] = partial(self.registry.mark_authenticated, self)

        async def send_in_time(message: Message) -> None:
            if not self.flow.write_paused:
                await send(message)
                return
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await send(message)
            except TimeoutError:
                self.transport.abort()

        try:
            await self._inner(scope, receive, send_in_time)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._arm()

    def _arm(self) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded_protocol(
    head_seconds: float, connections: Connections, rejection: EarlyRejection
) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=…)`: httptools where it is installed, else h11."""
    base: type[Any]
    try:
        from uvicorn.protocols.http import httptools_impl

        base = httptools_impl.HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http import h11_impl

        base = h11_impl.H11Protocol
    settings = {"head_seconds": head_seconds, "registry": connections, "rejection": rejection}
    return type("GuardedProtocol", (_GuardedConnection, base), settings)
