"""Queues: list, show, configure, pause and resume them.

A queue's counts, its spec and its pause concern all its tenants, so they are for actors who see them all.
"""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from msgspec import Raw

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, from_datetime
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor, Role
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.api.messages import Answer, bytes_of, check_media, decoded, require_queue
from forebay.serve.api.openapi import JSON, described
from forebay.serve.api.requests import NAME_PATTERN, Pause
from forebay.serve.api.responses import SECOND, BacklogView, Paused, Queues, QueueView, moment
from forebay.serve.context import ServerContext
from forebay.serve.problems import not_found
from forebay.serve.queue_totals import exists, reachable_names
from forebay.serve.security.auth import charge_queue_names, require_role
from forebay.serve.security.operator_log import record_action
from forebay.store.protocol import Backlog, Store

router = APIRouter(tags=["queues"])

QueueName = Annotated[str, Path(pattern=NAME_PATTERN)]
_pause: Final = msgspec.json.Decoder(Pause)
_any: Final = msgspec.json.Decoder(dict[str, Any])
_SPEC: Final = {
    "retention": {"type": "keep-for", "span": "P7D"},
    "selection": {"type": "fifo"},
    "capacity": {"type": "bounded", "limit": 10_000, "when_full": {"type": "reject"}},
}
_SPEC_SCHEMA: Final = {
    "type": "object",
    "description": "the axes as `GET /queues/{name}` shows them under `spec`; those left out have their defaults",
    "properties": {axis: {} for axis in QueueSpec.__struct_fields__},
    "additionalProperties": False,
}


@router.get("/queues", **described(Queues))
async def browse(
    request: Request, actor: Annotated[Actor, require_role(Role.VIEWER)], after: NameFilter = None, limit: Limit = 100
) -> Response:
    """The queues that this key can reach, by name, each with its spec and counts. Logs are at /logs."""
    context: ServerContext = request.app.state.context

    def page() -> Queues:
        if actor.tenant is not None:
            return Queues([], None)
        names, more = reachable_names(context.store, actor, after or "", limit)
        specs = {spec.name: spec for spec in context.store.specs()}
        shown = [name for name in names if not (name in specs and specs[name].is_log)]
        backlogs = context.store.backlog(shown) if shown else []
        return Queues(
            [queue_view(specs.get(each.queue) or QueueSpec(name=each.queue), each) for each in backlogs], more
        )

    return Answer(await context.call(page))


@router.get("/queues/{name}", **described(QueueView, problems=(404,)))
async def show(request: Request, actor: Annotated[Actor, require_role(Role.VIEWER)], name: QueueName) -> Response:
    """One queue: its spec, in one line and axis by axis, and its counts."""
    context: ServerContext = request.app.state.context
    require_queue(actor, name)
    return Answer(await context.call(_one, context.store, name))


@router.put("/queues/{name}", **described(QueueView, body=_SPEC_SCHEMA, sent=_SPEC, problems=(404, 409)))
async def put(request: Request, actor: Annotated[Actor, require_role(Role.ADMIN)], name: QueueName) -> Response:
    """Configure a queue. Jobs already accepted keep what they were stamped with."""
    context: ServerContext = request.app.state.context
    require_queue(actor, name)
    check_media(request, JSON)
    given = decoded(await bytes_of(request, context.settings.max_body), _any)
    if given.setdefault("name", name) != name:
        raise Invalid("name", f"it differs from the path's {name}", "leave it out")
    spec = QueueSpec.from_json(msgspec.json.encode(given))
    await context.call(context.store.put_spec, spec)
    await record_action(context, actor, "queues put", name, vector=spec.vector())
    return Answer(queue_view(spec, None))


@router.post("/queues/{name}/pause", **described(Paused, body=Pause, sent={}, optional=True, problems=(404,)))
async def pause(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: QueueName) -> Response:
    """Pause a queue until a time or until it is resumed: no job of it is claimed; running jobs may finish."""
    context: ServerContext = request.app.state.context
    require_queue(actor, name)
    body = await bytes_of(request, context.settings.max_body)
    if body:
        check_media(request, JSON)
    asked = decoded(body, _pause) if body else Pause()
    until: Instant | None = None if asked.until is None else from_datetime(asked.until)
    charge_queue_names(request, (name,))
    await context.call(_paused, context, name, until)
    await record_action(context, actor, "pause", name, until=None if until is None else str(asked.until))
    return Answer(Paused(name, True, moment(until)))


@router.post("/queues/{name}/resume", **described(Paused, problems=(404,)))
async def resume(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: QueueName) -> Response:
    """Resume a queue."""
    context: ServerContext = request.app.state.context
    require_queue(actor, name)
    await context.call(context.store.resume, name)
    await record_action(context, actor, "resume", name)
    return Answer(Paused(name, False))


def _paused(context: ServerContext, name: str, until: Instant | None) -> None:
    if until is not None and until <= context.store.now():
        raise Invalid("until", "it is in the past", "give a time in the future")
    context.store.pause(name, until)


def _one(store: Store, name: str) -> QueueView:
    if not exists(store, name):
        raise not_found(f"queue {name}")
    spec = next((spec for spec in store.specs() if spec.name == name), QueueSpec(name=name))
    return queue_view(spec, store.backlog([name])[0])


def queue_view(spec: QueueSpec, backlog: Backlog | None) -> QueueView:
    shown = None if backlog is None else backlog_view(backlog)
    return QueueView(spec.name, spec.vector(), spec.axes(), spec.commit_point, Raw(spec.to_json()), shown)


def backlog_view(backlog: Backlog) -> BacklogView:
    return BacklogView(
        backlog.waiting,
        backlog.ready,
        backlog.running,
        backlog.done,
        backlog.dead,
        backlog.cancelled,
        backlog.oldest_age / SECOND,
        backlog.held,
        backlog.blocked,
        backlog.paused_until is not None,
        moment(backlog.paused_until),
    )
