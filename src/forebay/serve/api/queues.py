"""Queues: list, show, configure, pause and resume them.

A queue's counts, its spec and its pause concern all its tenants, so they are for actors who see them all.
"""

import msgspec
from fastapi import Request
from msgspec import UNSET, Raw
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.instant import from_datetime
from forebay.core.spec import QueueSpec
from forebay.explain import cells_of
from forebay.serve.api.requests import Pause, PutQueue
from forebay.serve.api.responses import SECOND, BacklogView, Paused, Queues, QueueView, moment
from forebay.serve.api.routing import (
    AdminActor,
    ContextDep,
    JsonBody,
    Limit,
    NameFilter,
    OperatorActor,
    PathName,
    ViewerActor,
    api_router,
)
from forebay.serve.api.schema import problems
from forebay.serve.problems import not_found
from forebay.serve.queue_totals import exists, reachable_names
from forebay.serve.security.auth import charge_queue_names
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.visibility import require_queue
from forebay.store.protocol import Backlog, Store

router = api_router("queues")


@router.get("/queues")
def browse(context: ContextDep, actor: ViewerActor, after: NameFilter = None, limit: Limit = 100) -> Queues:
    """The queues that this key can reach, by name, each with its spec and counts. Logs are at /logs."""
    if actor.tenant is not None:
        return Queues([], None)
    names, more = reachable_names(context.store, actor, after or "", limit)
    specs = {spec.name: spec for spec in context.store.specs()}
    shown = [name for name in names if not (name in specs and specs[name].is_log)]
    backlogs = context.store.backlog(shown) if shown else []
    store = context.store
    return Queues([_view(store, specs.get(each.queue) or QueueSpec(name=each.queue), each) for each in backlogs], more)


@router.get("/queues/{name}", responses=problems(404))
def show(context: ContextDep, actor: ViewerActor, name: PathName) -> QueueView:
    """One queue: its spec, in one line and axis by axis, and its counts."""
    require_queue(actor, name)
    if not exists(context.store, name):
        raise not_found(f"queue {name}")
    spec = next((spec for spec in context.store.specs() if spec.name == name), QueueSpec(name=name))
    return _view(context.store, spec, context.store.backlog([name])[0])


@router.put("/queues/{name}", responses=problems(404, 409))
def put(context: ContextDep, actor: AdminActor, body: JsonBody[PutQueue], name: PathName) -> QueueView:
    """Configure a queue. Jobs already accepted keep what they were stamped with."""
    require_queue(actor, name)
    if body.name not in (UNSET, name):
        raise Invalid("name", f"it differs from the path's {name}", "leave it out")
    spec = QueueSpec.from_json(msgspec.json.encode(replace(body, name=name)))
    context.store.put_spec(spec)
    record_action(context.store, actor.name, "queues put", name, vector=spec.vector())
    return _view(context.store, spec, None)


@router.post("/queues/{name}/pause", responses=problems(404))
def pause(
    context: ContextDep, actor: OperatorActor, request: Request, name: PathName, body: JsonBody[Pause | None] = None
) -> Paused:
    """Pause a queue until a time or until it is resumed: no job of it is claimed; running jobs may finish."""
    require_queue(actor, name)
    given = None if body is None else body.until
    until = None if given is None else from_datetime(given)
    charge_queue_names(request, (name,))
    if until is not None and until <= context.store.now():
        raise Invalid("until", "it is in the past", "give a time in the future")
    context.store.pause(name, until)
    record_action(context.store, actor.name, "pause", name, until=None if until is None else str(given))
    return Paused(name, True, moment(until))


@router.post("/queues/{name}/resume", responses=problems(404))
def resume(context: ContextDep, actor: OperatorActor, name: PathName) -> Paused:
    """Resume a queue."""
    require_queue(actor, name)
    context.store.resume(name)
    record_action(context.store, actor.name, "resume", name)
    return Paused(name, False)


def _view(store: Store, spec: QueueSpec, backlog: Backlog | None) -> QueueView:
    counts = None
    if backlog is not None:
        counts = BacklogView(
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
    cells = cells_of(store, spec.name)
    return QueueView(spec.name, spec.vector(), spec.axes(), spec.commit_point, Raw(spec.to_json()), counts, cells)
