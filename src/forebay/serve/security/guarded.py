"""The server's protocol, with an eye on the clock and on certificates.

uvicorn waits for ever for the rest of a request's head, and for a client that does not read its answer. Here a
connection that does not bring a whole head within `seconds`, at its start or after an answer, is closed, and so is one
that does not take its answer for `WRITE_SECONDS`. Long polls are requests under way: nothing of this is about them.

Every connection is counted, and its first bytes are looked at before they are parsed (`connections`). Whoever finds out
that a good caller asks says so by `RECOGNISE`, which is left in the scope of every request.

A client's certificate is known to the connection alone; its name is left in the scope of every request (`PEER`).
"""

import asyncio
from functools import partial
from typing import Any, ClassVar, Final

from starlette.types import Message, Receive, Scope, Send

from forebay.serve.security.certificates import PEER, common_name
from forebay.serve.security.connections import Connections, Refusal

WRITE_SECONDS: Final = 30.0
RECOGNISE: Final = "forebay.recognise"


class _Guard:
    """Goes before a protocol of uvicorn in the order of bases."""

    head_seconds = 10.0
    guarded: ClassVar[Connections]
    client: tuple[str, int] | None
    refusal: ClassVar[Refusal]
    app: Any
    flow: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None
    _under_way = 0
    _first = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.guarded.add(self, self.client[0] if self.client else "")
        self._inner = self.app
        self.app = self._watched
        secured = transport.get_extra_info("ssl_object")
        self._peer = None if secured is None else common_name(secured.getpeercert())
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._first:
            self._first = False
            if (refused := self.refusal.of(data)) is not None:
                self.transport.write(refused)
                self.transport.close()
                return
        super().data_received(data)  # type: ignore[misc]

    def drop(self) -> None:
        """Others need its place."""
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._disarm()
        self.guarded.remove(self)
        super().connection_lost(error)  # type: ignore[misc]

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every request of the connection passes here, once its head is whole."""
        self._under_way += 1
        self._disarm()
        if self._peer is not None:
            scope[PEER] = self._peer
        scope[RECOGNISE] = partial(self.guarded.recognise, self)

        async def patient(message: Message) -> None:
            if not self.flow.write_paused:
                await send(message)
                return
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await send(message)
            except TimeoutError:
                self.transport.abort()

        try:
            await self._inner(scope, receive, patient)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._arm()

    def _arm(self) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def protocol(head_seconds: float, guarded: Connections, refusal: Refusal) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=…)`: httptools where it is installed, else h11."""
    base: type[Any]
    try:
        from uvicorn.protocols.http import httptools_impl

        base = httptools_impl.HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http import h11_impl

        base = h11_impl.H11Protocol
    return type(
        "GuardedProtocol", (_Guard, base), {"head_seconds": head_seconds, "guarded": guarded, "refusal": refusal}
    )
