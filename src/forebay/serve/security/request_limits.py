"""Limits on requests before they are parsed: headers, bodies and the time that a body takes.

431 for too many or too large headers, 413 for a body that is or becomes too large, 415 for a compressed one (a small
body could expand without bound), 408 for one that arrives too slowly. Streaming paths (`STREAMS`) have no total size;
their readers bound each line, and this middleware bounds the pause between two chunks. Such a refusal closes the
connection, because the rest of the body is not read.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.serve.problems import Problem

MAX_HEADERS: Final = 100
STREAMS: Final = frozenset({"/jobs/batch"})
"""Paths whose bodies are read chunk by chunk and have no total size."""

_CLOSE: Final = {"Connection": "close"}


class RequestLimitsMiddleware:
    """ASGI. `body_seconds` bounds a whole body, or each pause of a stream."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body: int,
        max_headers: int,
        body_seconds: float,
        streams: frozenset[str] = STREAMS,
    ) -> None:
        self._app = app
        self._max_body = max_body
        self._max_headers = max_headers
        self._body_seconds = body_seconds
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        streams = scope["path"] in self._streams
        refused = self._check_headers(scope["headers"], streams)
        if refused is not None:
            await refused.response()(scope, receive, send)
            return
        reader = _BodyReader(scope, receive, send, None if streams else self._max_body, self._body_seconds)
        await self._app(scope, reader.receive, reader.send)

    def _check_headers(self, headers: list[tuple[bytes, bytes]], streams: bool) -> Problem | None:
        """What can be refused before the first byte of the body."""
        size = 0
        refused: Problem | None = None
        for name, value in headers:
            size += len(name) + len(value)
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                refused = Problem(415, "encoding", "The body is compressed", "send it without Content-Encoding", _CLOSE)
            elif name == b"content-length" and not streams and _number(value) > self._max_body:
                refused = refused or too_large(self._max_body)
        if len(headers) > MAX_HEADERS or size > self._max_headers:
            limits = f"at most {MAX_HEADERS} headers and {self._max_headers} bytes of them"
            return Problem(431, "headers", "The headers are too large", limits, _CLOSE)
        return refused


class _BodyReader:
    """Receives one request's body. After a refusal the app sees a disconnected client, and its response is dropped."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int | None, seconds: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = limit
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._size = 0
        self._complete = False
        self._answered = False
        self._refused = False

    async def receive(self) -> Message:
        if self._refused:
            return {"type": "http.disconnect"}
        if self._complete:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._until if self._limit is not None else now + self._seconds):
                message = await self._receive()
        except TimeoutError:
            detail = f"send it within {self._seconds:g} s" if self._limit is not None else "send without long pauses"
            return await self._refuse(Problem(408, "timeout", "The body arrives too slowly", detail, _CLOSE))
        if message["type"] != "http.request":
            return message
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._limit is not None and self._size > self._limit:
            return await self._refuse(too_large(self._limit))
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


def too_large(limit: int) -> Problem:
    return Problem(413, "too-large", "The request is too large", f"at most {limit} bytes", _CLOSE, {"limit": limit})


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 10**20
