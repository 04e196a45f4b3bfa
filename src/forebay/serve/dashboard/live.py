"""Pages that follow by themselves: the same address, asked for as a stream, sends its live part whenever it changed.

A stream holds no thread while it waits. It ends when the reader leaves, when the session does, after `LONGEST_SECONDS`
(browsers come back by themselves), and when the server stops. There are at most `STREAMS_MOST`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Final, TypeAlias

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from forebay.core.errors import ForebayError
from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import STREAMS_MOST, Desk
from forebay.serve.dashboard.render import Sheet, html, live_part
from forebay.serve.problems import Problem
from forebay.serve.security.sessions import session_of

Make: TypeAlias = Callable[[], Awaitable[Sheet]]

EVERY_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 15.0
_RESTS: Final = 10
"""A stream rests so many times as long as its page takes: what is slow is not made slower by those who watch."""

LONGEST_SECONDS: Final = 3_600.0
_STREAM: Final = "text/event-stream"
_AGAIN_MS: Final = 2_000


def desk_of(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


async def answer(request: Request, actor: Actor, make: Make) -> Response:
    """The page, or its stream when the browser asks for that."""
    if _STREAM not in request.headers.get("accept", ""):
        return await html(request, actor, await make())
    desk = desk_of(request)
    if desk.streams >= STREAMS_MOST:
        raise Problem(503, "busy", "Too many pages are live", "this one shows what was when it was loaded")
    first = await make()
    if not first.live:
        raise Problem(406, "not-live", "This page does not follow by itself")
    return StreamingResponse(_parts(request, actor, make), media_type=_STREAM, headers={"X-Accel-Buffering": "no"})


async def _parts(request: Request, actor: Actor, make: Make) -> AsyncIterator[str]:
    desk = desk_of(request)
    desk.streams += 1
    ends = monotonic() + LONGEST_SECONDS
    last, told_at = "", monotonic()
    try:
        yield f"retry: {_AGAIN_MS}\n\n"
        while monotonic() < ends and not await request.is_disconnected():
            if session_of(request, touch=False) != actor:
                yield "event: over\ndata: the session has ended\n\n"
                return
            began = monotonic()
            part = await _part(request, actor, make)
            rest = max(EVERY_SECONDS, _RESTS * (monotonic() - began))
            if part not in (None, last):
                last, told_at = part, monotonic()
                yield f"data: {msgspec.json.encode(part).decode()}\n\n"
            elif monotonic() - told_at > SILENT_SECONDS:
                told_at = monotonic()
                yield ": still here\n\n"
            if await _closing(desk, rest):
                return
    finally:
        desk.streams -= 1


async def _part(request: Request, actor: Actor, make: Make) -> str | None:
    """None: it could not be read this time."""
    try:
        return await live_part(request, actor, await make())
    except (ForebayError, Problem):
        return None


async def _closing(desk: Desk, seconds: float) -> bool:
    try:
        await asyncio.wait_for(desk.ground.leaving.wait(), seconds)
    except TimeoutError:
        return False
    return True
