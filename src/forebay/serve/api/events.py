"""`GET /events`: what happens to jobs, as server-sent events.

    id: 41-7
    event: acked
    data: {"id":"41-7","at":"2026-11-18T05:00:00Z","change":"acked","job_id":12,"queue":"mail","kind":"send"}

A client that reconnects with `Last-Event-ID` continues behind that event, without a gap. Of several cells, those that
do not answer are named by a comment; their events follow when they do. A comment is sent every
`HEARTBEAT_SECONDS`, so that proxies keep the connection and dead clients are noticed. The last event of a stream is
`end`, with its reason: `slow` (the client read nothing for `SLOW_SECONDS`), `unauthorized` (its key was revoked),
`offset-gone`, `store-failed`, `stopping`, or `caught-up` where `follow` is false. A client that reads nothing for
`STALLED_SECONDS` is disconnected: nothing more can be sent to it.
"""

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from forebay.core.errors import ForebayError, OffsetGone, Unsupported
from forebay.core.humanize import iso
from forebay.core.ledger import Change
from forebay.events import MAX_FILTERED, MIN_PAUSE, Event, EventFilter, EventReader
from forebay.serve.api.requests import NAME_PATTERN
from forebay.serve.api.routing import ContextDep, ViewerActor, api_router
from forebay.serve.api.schema import problems
from forebay.serve.context import ServerContext
from forebay.serve.event_streams import VisibleEvents
from forebay.serve.problems import Problem, not_found, pattern

MEDIA: Final = "text/event-stream"
HEARTBEAT_SECONDS: Final = 15.0
SLOW_SECONDS: Final = 20.0
STALLED_SECONDS: Final = 60.0
_RETRY_MS: Final = 2_000
_INSTANTS: Final = ("at", "enqueued_at", "due_at", "claimed_at", "until")
_SINCE: Final = pattern(
    r"^([0-9]{1,19}-[0-9]{1,19}|[0-9]{1,18}|start|[A-Za-z0-9_.:@,-]+:@?[0-9][0-9-]*)$",
    "give the id of an event, an offset, or start",
)

_MAX_SINCE: Final = 64_000
_EXAMPLE: Final = 'id: 41-7\nevent: acked\ndata: {"id":"41-7","change":"acked","job_id":12,"queue":"mail"}\n\n'

EndReason = Literal["caught-up", "offset-gone", "slow", "stopping", "store-failed", "unauthorized"]
Names = Annotated[list[Annotated[str, Query(pattern=NAME_PATTERN)]], Query(max_length=MAX_FILTERED)]

router = api_router("events")


@router.get(
    "/events",
    summary="Event stream",
    response_class=Response,
    responses=problems(404, 409, 410) | {200: {"content": {MEDIA: {"example": _EXAMPLE}}}},
)
async def events(
    context: ContextDep,
    actor: ViewerActor,
    request: Request,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    kind: Names = [],  # noqa: B006
    change: Annotated[list[Change], Query(max_length=len(Change))] = [],  # noqa: B006
    since: Annotated[str | None, Query(pattern=_SINCE, max_length=_MAX_SINCE)] = None,
    follow: bool = True,
    last_event_id: Annotated[str | None, Header(pattern=_SINCE, max_length=_MAX_SINCE)] = None,
) -> Response:
    """What happens to jobs, as server-sent events: from now on, or behind `Last-Event-ID` or `since`."""
    if queue is not None and not actor.reaches(queue):
        raise not_found(f"queue {queue}")
    given = since if last_event_id is None else last_event_id
    begin: str | int | None = int(given) if given is not None and given.isdigit() else given
    wanted = EventFilter.of(queue, kind, [each.value for each in change])
    context.event_streams.check_room()
    try:
        reader = await context.call(EventReader, context.store, wanted, begin)
        seen = VisibleEvents(context.store, actor, reader)
        first = await context.call(seen.read)
    except Unsupported as error:
        raise Problem(409, "no-ledger", "The store keeps no ledger", str(error)) from None
    return EventResponse(_stream(context, request, seen, first, follow))


_HEADERS: Final = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


class EventResponse(StreamingResponse):
    """A stream whose client is disconnected when it reads nothing for `STALLED_SECONDS`."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type=MEDIA, headers=_HEADERS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(STALLED_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, bounded)
        except (TimeoutError, ClientDisconnect):
            # Closing without the last chunk shows the client that the stream was cut.
            return
        finally:
            await self._events.aclose()


async def _stream(
    context: ServerContext, request: Request, seen: VisibleEvents, found: list[Event], follow: bool
) -> AsyncGenerator[bytes, None]:
    streams = context.event_streams
    streams.opened()
    try:
        yield f"retry: {_RETRY_MS}\n\n".encode()
        sent_at = monotonic()
        while True:
            if found:
                began = sent_at = monotonic()
                yield b"".join(map(_event_bytes, found))
                if monotonic() - began > SLOW_SECONDS:
                    yield _end("slow", f"no data was read for {SLOW_SECONDS:g} s")
                    return
            elif seen.reader.caught_up and not follow:
                missing = ", ".join(seen.reader.left_out)
                but = f"; cells that do not answer: {missing}" if missing else ""
                yield _end("caught-up", f"there are no further events{but}")
                return
            elif monotonic() - sent_at >= HEARTBEAT_SECONDS:
                sent_at = monotonic()
                yield b": heartbeat\n\n"
            if (reason := await _refusal(context, request)) is not None:
                yield _end(*reason)
                return
            if not found and seen.reader.caught_up:
                if seen.reader.left_out:
                    # Until the watcher has noticed that they are down, it would not wait.
                    await asyncio.sleep(MIN_PAUSE)
                await streams.wait_beyond(seen.reader.offsets, HEARTBEAT_SECONDS)
            left_out = seen.reader.left_out
            try:
                found = await context.call(seen.read)
            except OffsetGone as gone:
                yield _end("offset-gone", f"the {gone.log} begins at {gone.first} by now")
                return
            except (ForebayError, Problem):
                yield _end("store-failed", "the store does not answer; reconnect")
                return
            if seen.reader.left_out != left_out:
                yield f": cells that do not answer: {', '.join(seen.reader.left_out) or 'none'}\n\n".encode()
    finally:
        streams.closed()


async def _refusal(context: ServerContext, request: Request) -> tuple[EndReason, str] | None:
    """Why the stream may not go on; None: it may."""
    if context.stopping.is_set():
        return "stopping", "the server stops; reconnect"
    try:
        credentials = await context.authenticator.authenticate(request.scope)
    except Problem:
        return "store-failed", "keys cannot be checked; reconnect"
    return ("unauthorized", "the key is no longer valid") if credentials is None else None


def _event_bytes(event: Event) -> bytes:
    shown: dict[str, Any] = msgspec.to_builtins(event)
    shown |= {field: iso(shown[field]) for field in _INSTANTS if field in shown}
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        event.id.encode(),
        event.change.encode(),
        msgspec.json.encode(shown),
    )


def _end(reason: EndReason, detail: str) -> bytes:
    """It has no id, so that a client reconnects behind the last event that it received."""
    return b"event: end\ndata: %s\n\n" % msgspec.json.encode({"reason": reason, "detail": detail})
