"""What a request may weigh, before anything of it is understood: headers, bodies, and the time they take.

431 for too many or too large headers, 413 for a body that is or grows too large, 415 for a compressed one (a small one
could become huge), 408 for one that comes too slowly. Streams (`STREAMS`) have no size in all; their readers bound the
lines, and the pause between two pieces is bounded here. After such a refusal the connection is closed: what is still
under way on it is read by nobody.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.serve.problems import Problem

HEADERS_MOST: Final = 100
STREAMS: Final = frozenset({"/jobs/batch"})
"""Paths whose bodies are read piece by piece and may go on for ever."""

_CLOSE: Final = {"Connection": "close"}


class Bodies:
    """ASGI. `body_seconds` is for a whole body, and for each pause of a stream."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_most: int,
        headers_bytes: int,
        body_seconds: float,
        streams: frozenset[str] = STREAMS,
    ) -> None:
        self._app = app
        self._body_most = body_most
        self._headers_bytes = headers_bytes
        self._body_seconds = body_seconds
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        streams = scope["path"] in self._streams
        refused = self._at_sight(scope["headers"], streams)
        if refused is not None:
            await refused.response()(scope, receive, send)
            return
        reading = _Reading(scope, receive, send, None if streams else self._body_most, self._body_seconds)
        await self._app(scope, reading.receive, reading.send)

    def _at_sight(self, headers: list[tuple[bytes, bytes]], streams: bool) -> Problem | None:
        """What can be refused before the first byte of the body."""
        weight = sum(len(name) + len(value) for name, value in headers)
        if len(headers) > HEADERS_MOST or weight > self._headers_bytes:
            limits = f"at most {HEADERS_MOST} headers and {self._headers_bytes} bytes of them"
            return Problem(431, "headers", "The headers are too large", limits, _CLOSE)
        encodings = [value for name, value in headers if name == b"content-encoding"]
        if any(value.strip().lower() not in (b"", b"identity") for value in encodings):
            return Problem(415, "encoding", "The body is compressed", "send it as it is", _CLOSE)
        for name, value in headers:
            if name == b"content-length" and not streams and _number(value) > self._body_most:
                return too_large(self._body_most)
        return None


class _Reading:
    """One request's body on its way in. Once refused, the app sees a client that is gone, and its answer is dropped."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int | None, seconds: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._most = most
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._size = 0
        self._read = False
        self._answered = False
        self._refused = False

    async def receive(self) -> Message:
        if self._refused:
            return {"type": "http.disconnect"}
        if self._read:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._until if self._most is not None else now + self._seconds):
                message = await self._receive()
        except TimeoutError:
            return await self._refuse(Problem(408, "slow", "The body comes too slowly", "send it at once", _CLOSE))
        if message["type"] != "http.request":
            return message
        self._size += len(message.get("body", b""))
        self._read = not message.get("more_body", False)
        if self._most is not None and self._size > self._most:
            return await self._refuse(too_large(self._most))
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            self._answered = True
            await self._send(message)

    async def _refuse(self, problem: Problem) -> Message:
        self._refused = True
        if not self._answered:
            await problem.response()(self._scope, self._receive, self._send)
        return {"type": "http.disconnect"}


def too_large(most: int) -> Problem:
    return Problem(413, "too-large", "The request is too large", f"at most {most} bytes", _CLOSE, {"limit": most})


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 10**20
