"""Retained logs: append, read from any offset or instant, commit a group's position, assign its partitions.

Entries have no tenant, so logs are for actors who see every tenant.
"""

from datetime import datetime
from heapq import nsmallest
from typing import Annotated

import msgspec
from fastapi import Path, Query, Request
from msgspec import Raw

from forebay.core.entries import LogEntry
from forebay.core.instant import from_datetime, seconds, to_datetime
from forebay.core.limits import MAX_PARTITIONS
from forebay.core.payload import encode_payload
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor, Role
from forebay.serve.api.requests import Append, Commit, Disown, Own
from forebay.serve.api.responses import (
    Appended,
    Committed,
    Entries,
    EntryPlace,
    EntryView,
    Extent,
    Freed,
    LogPage,
    LogView,
    OwnedView,
    Ownership,
    Standings,
    StandingView,
    moment,
)
from forebay.serve.api.routing import (
    ContextDep,
    JsonBody,
    Limit,
    NameFilter,
    PathName,
    ProducerActor,
    ViewerActor,
    WorkerActor,
    api_router,
)
from forebay.serve.api.schema import problems
from forebay.serve.problems import not_found
from forebay.serve.security.auth import charge_jobs, require_role
from forebay.serve.security.redact import redact
from forebay.serve.security.visibility import sees_queue, sees_secrets
from forebay.store.log import Standing
from forebay.store.protocol import Store

router = api_router("logs")

PartitionPath = Annotated[int, Path(ge=0, lt=MAX_PARTITIONS)]


@router.get("/logs")
def browse(context: ContextDep, actor: ViewerActor, after: NameFilter = None, limit: Limit = 100) -> LogPage:
    """Logs that this key can reach, by name, with the extent of each partition. `PUT /queues/{name}` creates one."""
    specs = (spec for spec in context.store.specs() if spec.is_log and sees_queue(actor, spec.name))
    shown = nsmallest(limit + 1, (spec for spec in specs if spec.name > (after or "")), key=lambda spec: spec.name)
    more = shown[limit - 1].name if len(shown) > limit else None
    return LogPage([_view(context.store, spec) for spec in shown[:limit]], more)


@router.post("/logs/{name}", status_code=201, responses=problems(404))
def append(
    context: ContextDep, actor: ProducerActor, body: JsonBody[Append], request: Request, name: PathName
) -> Appended:
    """Append entries, all or none. They are durable when the response arrives, where the store is."""
    entries = body.entries
    _require_log(context.store, actor, name)
    charge_jobs(request, len(entries))
    appended = context.store.append(name, [bytes(entry.body) for entry in entries], [entry.key for entry in entries])
    return Appended([EntryPlace(entry.partition, entry.offset) for entry in appended])


@router.get("/logs/{name}/groups", responses=problems(404))
def groups(
    context: ContextDep,
    actor: Annotated[Actor, require_role(Role.VIEWER, Role.WORKER)],
    name: PathName,
    after: NameFilter = None,
    limit: Limit = 100,
) -> Standings:
    """The groups of the log: position, lag and losses in each partition, and when the next entry will be lost."""
    _require_log(context.store, actor, name)
    found = context.store.groups(name, after or "", limit)
    names = {one.group for one in found}
    return Standings([_standing(one) for one in found], found[-1].group if len(names) == limit else None)


@router.post("/logs/{name}/own", responses=problems(404))
def own(context: ContextDep, actor: WorkerActor, body: JsonBody[Own], name: PathName) -> Ownership:
    """Assign partitions to this member of the group; renew before `until`."""
    _require_log(context.store, actor, name)
    owned = context.store.own(name, body.group, body.member, seconds(body.lease_seconds))
    views = [OwnedView(one.partition, one.epoch, one.position, to_datetime(one.until)) for one in owned]
    return Ownership(body.group, body.member, views)


@router.post("/logs/{name}/disown", responses=problems(404))
def disown(context: ContextDep, actor: WorkerActor, body: JsonBody[Disown], name: PathName) -> Freed:
    """Remove the member from the group; its partitions are free at once."""
    _require_log(context.store, actor, name)
    return Freed(context.store.disown(name, body.group, body.member))


@router.get("/logs/{name}/{partition}", responses=problems(404, 410))
def read(
    context: ContextDep,
    actor: Annotated[Actor, require_role(Role.VIEWER, Role.WORKER)],
    name: PathName,
    partition: PartitionPath,
    after: Annotated[int | None, Query(ge=-1, le=2**63 - 1)] = None,
    group: NameFilter = None,
    since: datetime | None = None,
    limit: Limit = 100,
) -> Entries:
    """Entries after `after`, or appended `since` an instant; else after the group's position, or from the start."""
    store = context.store
    _require_log(store, actor, name, partition)
    instant = None if since is None else from_datetime(since)
    position = None if group is None else store.position(name, group, partition)
    start = after if after is not None else -1 if position is None else position
    if instant is not None and after is None:
        start = store.offset_at(name, partition, instant)
    entries = store.read(name, partition, start, limit)
    shown = [_entry(actor, name, entry) for entry in entries]
    return Entries(shown, entries[-1].offset if entries else start, position)


@router.post("/logs/{name}/{partition}/commit", responses=problems(404, 409))
def commit(
    context: ContextDep, actor: WorkerActor, body: JsonBody[Commit], name: PathName, partition: PartitionPath
) -> Committed:
    """Commit everything up to the offset for the group; returns its position."""
    _require_log(context.store, actor, name, partition)
    where = (name, body.group, partition, body.offset)
    return Committed(body.group, context.store.commit(*where, rewind=body.rewind, epoch=body.epoch))


def _require_log(store: Store, actor: Actor, name: str, partition: int = 0) -> None:
    """Require a log that this actor may see; a queue's name is a 404 too."""
    specs = store.specs() if sees_queue(actor, name) else []
    log = next((spec for spec in specs if spec.name == name and spec.is_log), None)
    if log is None or partition >= getattr(log.retention, "partitions", 1):
        raise not_found(f"log {name}, partition {partition},")


def _view(store: Store, spec: QueueSpec) -> LogView:
    extents = enumerate(store.extent(spec.name))
    return LogView(spec.name, spec.vector(), [Extent(number, first, after) for number, (first, after) in extents])


def _standing(one: Standing) -> StandingView:
    return StandingView(
        one.group,
        one.partition,
        one.position,
        one.lag,
        one.lost,
        moment(one.loses_at),
        to_datetime(one.seen_at),
        one.member,
        one.epoch,
        moment(one.until),
    )


def _entry(actor: Actor, name: str, entry: LogEntry) -> EntryView:
    """The entry, redacted for viewers; in redaction rules the log's name takes the place of the kind."""
    body = entry.body if sees_secrets(actor) else encode_payload(redact(name, msgspec.json.decode(entry.body)))
    return EntryView(entry.partition, entry.offset, to_datetime(entry.at), entry.key, Raw(body))
