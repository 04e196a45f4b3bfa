"""Retained logs: append, read from any offset, and keep a group's place. A log belongs to all who reach its name.

Entries have no tenant, so logs are only for actors who see every tenant.
"""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from msgspec import Raw

from forebay.core.event import LogEntry
from forebay.core.instant import to_datetime
from forebay.core.limits import PARTITIONS_MOST
from forebay.core.payload import encode_payload
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import Appended, Committed, Entries, EntryPlace, EntryView, Extent, Logs, LogView
from forebay.serve.api.bodies import NAME_PATTERN, Append, Commit
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, rules, sees_plainly
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.ground import Ground
from forebay.serve.problems import absent
from forebay.serve.security.door import need, spend
from forebay.serve.security.redact import redact

router = APIRouter(tags=["logs"])

LogName = Annotated[str, Path(pattern=NAME_PATTERN)]
Partition = Annotated[int, Path(ge=0, lt=PARTITIONS_MOST)]
_append: Final = msgspec.json.Decoder(Append)
_commit: Final = msgspec.json.Decoder(Commit)


@router.get("/logs", **described(Logs))
async def browse(request: Request, actor: Annotated[Actor, need(Role.VIEWER)]) -> Response:
    """All logs that this key reaches, and how far each partition goes. `PUT /queues/{name}` declares one."""
    ground: Ground = request.app.state.ground

    def known() -> list[LogView]:
        specs = [spec for spec in ground.store.specs() if spec.is_log and rules(actor, spec.name)]
        return [_view(ground, spec) for spec in sorted(specs, key=lambda spec: spec.name)]

    return Answer(Logs(await ground.call(known)))


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


@router.get("/logs/{name}/{partition}", **described(Entries, problems=(404, 410)))
async def read(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER, Role.WORKER)],
    name: LogName,
    partition: Partition,
    after: Annotated[int | None, Query(ge=-1, le=2**63 - 1)] = None,
    group: NameFilter = None,
    limit: Limit = 100,
) -> Response:
    """Entries behind `after`; without it behind the group's place, or from the start."""
    ground: Ground = request.app.state.ground
    await _must_be(ground, actor, name, partition)

    def found() -> Entries:
        position = None if group is None else ground.store.position(name, group, partition)
        start = after if after is not None else -1 if position is None else position
        entries = ground.store.read(name, partition, start, limit)
        shown = [_entry(actor, name, entry) for entry in entries]
        return Entries(shown, entries[-1].offset if entries else start, position)

    return Answer(await ground.call(found))


@router.post(
    "/logs/{name}/{partition}/commit",
    **described(Committed, body=Commit, sent={"group": "billing", "offset": 41}, problems=(404,)),
)
async def commit(
    request: Request, actor: Annotated[Actor, need(Role.WORKER)], name: LogName, partition: Partition
) -> Response:
    """The group has done everything up to the offset; answers with its place."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _commit, ground.settings.body_most)
    await _must_be(ground, actor, name, partition)
    place = await ground.call(ground.store.commit, name, asked.group, partition, asked.offset, rewind=asked.rewind)
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


def _entry(actor: Actor, name: str, entry: LogEntry) -> EntryView:
    """A log's name stands for the kind in rules of redaction, which say what viewers do not see."""
    body = entry.body if sees_plainly(actor) else encode_payload(redact(name, msgspec.json.decode(entry.body)))
    return EntryView(entry.partition, entry.offset, to_datetime(entry.at), entry.key, Raw(body))
