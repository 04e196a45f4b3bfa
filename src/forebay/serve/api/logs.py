"""Retained logs: append, read from any offset or instant, keep a group's place and share its partitions.

A log belongs to all who reach its name.

Entries have no tenant, so logs are only for actors who see every tenant.
"""

from datetime import datetime
from heapq import nsmallest
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from msgspec import Raw

from forebay.core.event import LogEntry
from forebay.core.instant import Instant, from_datetime, seconds, to_datetime
from forebay.core.limits import PARTITIONS_MOST
from forebay.core.payload import encode_payload
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import (
    Appended,
    Committed,
    Entries,
    EntryPlace,
    EntryView,
    Extent,
    Freed,
    Logs,
    LogView,
    OwnedView,
    Ownership,
    Standings,
    StandingView,
)
from forebay.serve.api.bodies import NAME_PATTERN, Append, Commit, Disown, Own
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, rules, sees_plainly
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.ground import Ground
from forebay.serve.problems import absent
from forebay.serve.security.door import need, spend
from forebay.serve.security.redact import redact
from forebay.store.log import Standing

router = APIRouter(tags=["logs"])

LogName = Annotated[str, Path(pattern=NAME_PATTERN)]
Partition = Annotated[int, Path(ge=0, lt=PARTITIONS_MOST)]
_append: Final = msgspec.json.Decoder(Append)
_commit: Final = msgspec.json.Decoder(Commit)
_own: Final = msgspec.json.Decoder(Own)
_disown: Final = msgspec.json.Decoder(Disown)


@router.get("/logs", **described(Logs))
async def browse(
    request: Request, actor: Annotated[Actor, need(Role.VIEWER)], after: NameFilter = None, limit: Limit = 100
) -> Response:
    """Logs that this key reaches, by name, and how far each partition goes. `PUT /queues/{name}` declares one."""
    ground: Ground = request.app.state.ground

    def known() -> Logs:
        specs = [spec for spec in ground.store.specs() if spec.is_log and rules(actor, spec.name)]
        shown = nsmallest(limit + 1, (spec for spec in specs if spec.name > (after or "")), key=lambda spec: spec.name)
        more = shown[limit - 1].name if len(shown) > limit else None
        return Logs([_view(ground, spec) for spec in shown[:limit]], more)

    return Answer(await ground.call(known))


@router.post(
    "/logs/{name}",
    **described(Appended, status=201, body=Append, sent={"entries": [{"body": {"n": 1}}]}, problems=(404,)),
)
async def append(request: Request, actor: Annotated[Actor, need(Role.PRODUCER)], name: LogName) -> Response:
    """Add entries, all or none; durable when answered, where the store is."""
    ground: Ground = request.app.state.ground
    asked = (await body_of(request, _append, ground.settings.body_most)).entries
    await _must_be(ground, actor, name)
    spend(request, len(asked))
    bodies, keys = [bytes(entry.body) for entry in asked], [entry.key for entry in asked]
    entries = await ground.call(ground.store.append, name, bodies, keys)
    return Answer(Appended([EntryPlace(entry.partition, entry.offset) for entry in entries]), 201)


@router.get("/logs/{name}/groups", **described(Standings, problems=(404,)))
async def groups(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER, Role.WORKER)],
    name: LogName,
    after: NameFilter = None,
    limit: Limit = 100,
) -> Response:
    """Who reads the log: each group with each partition, what it has still to read, and when it will lose something."""
    ground: Ground = request.app.state.ground
    await _must_be(ground, actor, name)
    found = await ground.call(ground.store.groups, name, after or "", limit)
    names = {one.group for one in found}
    return Answer(Standings([_standing(one) for one in found], found[-1].group if len(names) == limit else None))


@router.post(
    "/logs/{name}/own",
    **described(Ownership, body=Own, sent={"group": "billing", "member": "reader-1"}, problems=(404,)),
)
async def own(request: Request, actor: Annotated[Actor, need(Role.WORKER)], name: LogName) -> Response:
    """The partitions that this member of the group reads from now on; ask again before `until`."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _own, ground.settings.body_most)
    await _must_be(ground, actor, name)
    owned = await ground.call(ground.store.own, name, asked.group, asked.member, seconds(asked.lease_seconds))
    views = [OwnedView(one.partition, one.epoch, one.position, to_datetime(one.until)) for one in owned]
    return Answer(Ownership(asked.group, asked.member, views))


@router.post(
    "/logs/{name}/disown",
    **described(Freed, body=Disown, sent={"group": "billing", "member": "reader-1"}, problems=(404,)),
)
async def disown(request: Request, actor: Annotated[Actor, need(Role.WORKER)], name: LogName) -> Response:
    """The member leaves the group; what it owned is free at once."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _disown, ground.settings.body_most)
    await _must_be(ground, actor, name)
    return Answer(Freed(await ground.call(ground.store.disown, name, asked.group, asked.member)))


@router.get("/logs/{name}/{partition}", **described(Entries, problems=(404, 410)))
async def read(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER, Role.WORKER)],
    name: LogName,
    partition: Partition,
    after: Annotated[int | None, Query(ge=-1, le=2**63 - 1)] = None,
    group: NameFilter = None,
    since: datetime | None = None,
    limit: Limit = 100,
) -> Response:
    """Entries behind `after`, or appended `since` an instant; else behind the group's place, or from the start."""
    ground: Ground = request.app.state.ground
    await _must_be(ground, actor, name, partition)
    instant: Instant | None = None if since is None else from_datetime(since)

    def found() -> Entries:
        position = None if group is None else ground.store.position(name, group, partition)
        start = after if after is not None else -1 if position is None else position
        if instant is not None and after is None:
            start = ground.store.offset_at(name, partition, instant)
        entries = ground.store.read(name, partition, start, limit)
        shown = [_entry(actor, name, entry) for entry in entries]
        return Entries(shown, entries[-1].offset if entries else start, position)

    return Answer(await ground.call(found))


@router.post(
    "/logs/{name}/{partition}/commit",
    **described(Committed, body=Commit, sent={"group": "billing", "offset": 41}, problems=(404, 409)),
)
async def commit(
    request: Request, actor: Annotated[Actor, need(Role.WORKER)], name: LogName, partition: Partition
) -> Response:
    """The group has done everything up to the offset; answers with its place."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _commit, ground.settings.body_most)
    await _must_be(ground, actor, name, partition)
    where = (name, asked.group, partition, asked.offset)
    place = await ground.call(ground.store.commit, *where, rewind=asked.rewind, epoch=asked.epoch)
    return Answer(Committed(asked.group, place))


async def _must_be(ground: Ground, actor: Actor, name: str, partition: int = 0) -> None:
    """A log, and one that this actor may know of; a name that is no log is as unknown."""
    specs = await ground.call(ground.store.specs) if rules(actor, name) else []
    log = next((spec for spec in specs if spec.name == name and spec.is_log), None)
    if log is None or partition >= getattr(log.retention, "partitions", 1):
        raise absent(f"log {name}, partition {partition},")


def _view(ground: Ground, spec: QueueSpec) -> LogView:
    extents = ground.store.extent(spec.name)
    return LogView(
        spec.name, spec.vector(), [Extent(number, first, after) for number, (first, after) in enumerate(extents)]
    )


def _standing(one: Standing) -> StandingView:
    return StandingView(
        one.group,
        one.partition,
        one.position,
        one.lag,
        one.lost,
        None if one.loses_at is None else to_datetime(one.loses_at),
        to_datetime(one.seen_at),
        one.member,
        one.epoch,
        None if one.until is None else to_datetime(one.until),
    )


def _entry(actor: Actor, name: str, entry: LogEntry) -> EntryView:
    """A log's name stands for the kind in rules of redaction, which say what viewers do not see."""
    body = entry.body if sees_plainly(actor) else encode_payload(redact(name, msgspec.json.decode(entry.body)))
    return EntryView(entry.partition, entry.offset, to_datetime(entry.at), entry.key, Raw(body))
