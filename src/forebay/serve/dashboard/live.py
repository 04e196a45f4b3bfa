"""Live pages: the same URL, requested as an event stream, sends the page's live block whenever it changes.

A stream holds no thread while it waits. It ends when the reader disconnects, after `MAX_STREAM_SECONDS` (browsers
reconnect), and when the server stops. Its last event is `over` when the session has ended, or when there is no longer
anything to follow, as when a job was removed: the browser loads the page again. There are at most `MAX_STREAMS`.
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
from forebay.serve.dashboard.render import HtmlPage, live_part, render_page
from forebay.serve.dashboard.view_cache import MAX_STREAMS, ViewCache
from forebay.serve.problems import Problem
from forebay.serve.security.mounting import HOST_ACTOR, host_actor
from forebay.serve.security.sessions import session_of

Make: TypeAlias = Callable[[], Awaitable[HtmlPage]]

EVERY_SECONDS: Final = 1.0
KEEP_ALIVE_SECONDS: Final = 15.0
_PAUSE_FACTOR: Final = 10
"""A stream pauses this many times as long as its page takes, so that live pages do not overload a slow store."""

MAX_STREAM_SECONDS: Final = 3_600.0
_STREAM: Final = "text/event-stream"
_AGAIN_MS: Final = 2_000


async def answer(request: Request, actor: Actor, page: HtmlPage, make: Make) -> Response:
    """The page, or its event stream when it is live and the request accepts one; `make` builds the page anew."""
    if not page.live or _STREAM not in request.headers.get("accept", ""):
        return await render_page(request, actor, page)
    if request.app.state.view_cache.streams >= MAX_STREAMS:
        raise Problem(503, "busy", "Too many live pages", f"at most {MAX_STREAMS}: reload the page to update it")
    return StreamingResponse(_parts(request, actor, make), media_type=_STREAM, headers={"X-Accel-Buffering": "no"})


async def _parts(request: Request, actor: Actor, make: Make) -> AsyncIterator[str]:
    cache: ViewCache = request.app.state.view_cache
    cache.streams += 1
    ends = monotonic() + MAX_STREAM_SECONDS
    last, sent_at = "", monotonic()
    try:
        yield f"retry: {_AGAIN_MS}\n\n"
        while monotonic() < ends and not await request.is_disconnected():
            if await _user_now(request) != actor:
                yield "event: over\ndata: the session has ended\n\n"
                return
            began = monotonic()
            try:
                page = await make()
                if not page.live:
                    yield "event: over\ndata: the page is another one now\n\n"
                    return
                part = await live_part(request, actor, page)
            except (ForebayError, Problem):
                part = last
            pause = max(EVERY_SECONDS, _PAUSE_FACTOR * (monotonic() - began))
            if part != last:
                last, sent_at = part, monotonic()
                yield f"data: {msgspec.json.encode(part).decode()}\n\n"
            elif monotonic() - sent_at > KEEP_ALIVE_SECONDS:
                sent_at = monotonic()
                yield ": still here\n\n"
            if await _closing(cache, pause):
                return
    finally:
        cache.streams -= 1


async def _user_now(request: Request) -> Actor | None:
    """The user of the page; the host application is called again."""
    host = request.app.state.context.host
    if host is None or request.scope[HOST_ACTOR] is None:
        return session_of(request, touch=False)
    return await host_actor(host, request)


async def _closing(cache: ViewCache, seconds: float) -> bool:
    try:
        await asyncio.wait_for(cache.context.stopping.wait(), seconds)
    except TimeoutError:
        return False
    return True
