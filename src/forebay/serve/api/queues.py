"""Queues as points on five axes: look at them, declare them, pause and resume them.

A queue belongs to all its tenants: its figures, its spec and its brakes are for actors who see them all.
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
from forebay.serve.api.answers import SECOND, BacklogView, Paused, Queues, QueueView, moment
from forebay.serve.api.bodies import NAME_PATTERN, Pause
from forebay.serve.api.describe import JSON, described
from forebay.serve.api.exchange import Answer, bytes_of, check_media, decoded, must_rule
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.figures import exists, reached
from forebay.serve.ground import Ground
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.door import name_queues, need
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
    "description": "the axes as `GET /queues/{name}` shows them under `spec`; those left out are as usual",
    "properties": {axis: {} for axis in QueueSpec.__struct_fields__},
    "additionalProperties": False,
}


@router.get("/queues", **described(Queues))
async def browse(
    request: Request, actor: Annotated[Actor, need(Role.VIEWER)], after: NameFilter = None, limit: Limit = 100
) -> Response:
    """Queues that this key reaches, by name, page by page; each as its vector with its counts. Logs are at /logs."""
    ground: Ground = request.app.state.ground

    def page() -> Queues:
        if actor.tenant is not None:
            return Queues([], None)
        names, more = reached(ground.store, actor, after or "", limit)
        specs = {spec.name: spec for spec in ground.store.specs()}
        shown = [name for name in names if not (name in specs and specs[name].is_log)]
        backlogs = ground.store.backlog(shown) if shown else []
        return Queues(
            [queue_view(specs.get(each.queue) or QueueSpec(name=each.queue), each) for each in backlogs], more
        )

    return Answer(await ground.call(page))


@router.get("/queues/{name}", **described(QueueView, problems=(404,)))
async def show(request: Request, actor: Annotated[Actor, need(Role.VIEWER)], name: QueueName) -> Response:
    """One queue: what it is, in one line and axis by axis, and what it holds."""
    ground: Ground = request.app.state.ground
    must_rule(actor, name)
    return Answer(await ground.call(_one, ground.store, name))


@router.put("/queues/{name}", **described(QueueView, body=_SPEC_SCHEMA, sent=_SPEC, problems=(404, 409)))
async def put(request: Request, actor: Annotated[Actor, need(Role.ADMIN)], name: QueueName) -> Response:
    """Declare a queue. Jobs already accepted keep what they were stamped with."""
    ground: Ground = request.app.state.ground
    must_rule(actor, name)
    check_media(request, JSON)
    given = decoded(await bytes_of(request, ground.settings.body_most), _any)
    if given.setdefault("name", name) != name:
        raise Invalid("name", "the path says another one", "leave it out, or repeat it")
    spec = QueueSpec.from_json(msgspec.json.encode(given))
    await ground.call(ground.store.put_spec, spec)
    await record_act(ground, actor, "queues put", name, vector=spec.vector())
    return Answer(queue_view(spec, None))


@router.post("/queues/{name}/pause", **described(Paused, body=Pause, sent={}, optional=True, problems=(404,)))
async def pause(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: QueueName) -> Response:
    """Let nothing be claimed from the queue, until a moment or until it is resumed; what runs may finish."""
    ground: Ground = request.app.state.ground
    must_rule(actor, name)
    body = await bytes_of(request, ground.settings.body_most)
    if body:
        check_media(request, JSON)
    asked = decoded(body, _pause) if body else Pause()
    until: Instant | None = None if asked.until is None else from_datetime(asked.until)
    name_queues(request, (name,))
    await ground.call(_paused, ground, name, until)
    await record_act(ground, actor, "pause", name, until=None if until is None else str(asked.until))
    return Answer(Paused(name, True, moment(until)))


@router.post("/queues/{name}/resume", **described(Paused, problems=(404,)))
async def resume(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: QueueName) -> Response:
    """Let it move again."""
    ground: Ground = request.app.state.ground
    must_rule(actor, name)
    await ground.call(ground.store.resume, name)
    await record_act(ground, actor, "resume", name)
    return Answer(Paused(name, False))


def _paused(ground: Ground, name: str, until: Instant | None) -> None:
    if until is not None and until <= ground.store.now():
        raise Invalid("until", "that moment is over", "name one to come")
    ground.store.pause(name, until)


def _one(store: Store, name: str) -> QueueView:
    if not exists(store, name):
        raise absent(f"queue {name}")
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
