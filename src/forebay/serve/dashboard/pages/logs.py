"""Retained logs: extents, lag of the groups, newest entries; replay by rewinding a group."""

from itertools import groupby
from typing import Annotated, Any, Final

from msgspec import Struct

from forebay.core.entries import LogEntry
from forebay.core.instant import Instant
from forebay.core.names import check_name
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.api.requests import Name, Offset
from forebay.serve.dashboard.pages.routing import (
    Cache,
    OperatorActor,
    ViewerActor,
    form_of_type,
    pages,
    require_all_tenants,
)
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import record_action
from forebay.store.protocol import Store

router = pages()

PARTITIONS_SHOWN: Final = 64
ENTRIES_SHOWN: Final = 20
GROUPS_SHOWN: Final = 50


class LogRow(Struct, frozen=True):
    """The row of one log."""

    spec: QueueSpec
    partitions: int
    held: int
    written: int


class PartitionRow(Struct, frozen=True):
    """`position`: what the group committed last, -1 for nothing; `lag`: entries after that."""

    number: int
    first: int
    end: int
    position: int | None
    lag: int | None


class GroupRow(Struct, frozen=True):
    """`members`: how many own a partition; `loses_at`: when the next uncommitted entry is trimmed."""

    name: str
    lag: int
    lost: int
    members: int
    loses_at: Instant | None
    seen_at: Instant


class LogDetail(Struct, frozen=True):
    spec: QueueSpec
    rows: list[PartitionRow]
    more: int
    group: str | None
    lag: int
    entries: list[LogEntry]
    partition: int
    groups: list[GroupRow]


class RewindForm(Struct, frozen=True):
    """The group reads again what follows this offset; -1 is everything that is kept."""

    group: Name
    partition: int
    offset: Offset


@router.get("/ui/logs")
def logs(cache: Cache, actor: ViewerActor) -> HtmlPage:
    require_all_tenants(actor)
    values = {"logs": logs_view(cache.store, list(cache.specs(actor).values()))}
    return HtmlPage("logs.html", "Logs", values, "logs")


@router.get("/ui/logs/{name}")
def log(cache: Cache, name: str, actor: ViewerActor, group: str = "", partition: int = 0) -> HtmlPage:
    spec = _known(cache, actor, name, partition)
    view = log_view(cache.store, spec, check_name("group", group) if group else None, partition)
    return HtmlPage("log.html", name, {"view": view}, "logs")


@router.post("/ui/logs/{name}/rewind")
def rewind(cache: Cache, name: str, actor: OperatorActor, form: Annotated[RewindForm, form_of_type(RewindForm)]) -> str:
    """Move a group's position."""
    group, partition, offset = form.group, form.partition, form.offset
    _known(cache, actor, name, partition)
    facts: dict[str, Any] = {"group": group, "partition": partition, "offset": offset}
    record_action(cache.store, actor.name, "logs seek", name, **facts)
    cache.store.commit(name, group, partition, offset, rewind=True)
    return link("logs", name, group=group, partition=partition)


def _known(cache: ViewCache, actor: Actor, name: str, partition: int) -> QueueSpec:
    """The spec of the log, or a 404 for it or its partition."""
    require_all_tenants(actor)
    spec = cache.specs(actor).get(name)
    if spec is None or not spec.is_log:
        raise not_found(f"log {name}")
    if not 0 <= partition < len(cache.store.extent(name)):
        raise not_found(f"partition {partition}")
    return spec


def logs_view(store: Store, specs: list[QueueSpec]) -> list[LogRow]:
    return [_extent(store, spec) for spec in specs if spec.is_log]


def _extent(store: Store, spec: QueueSpec) -> LogRow:
    ends = store.extent(spec.name)
    return LogRow(spec, len(ends), sum(end - first for first, end in ends), sum(end for _, end in ends))


def log_view(store: Store, spec: QueueSpec, group: str | None, partition: int) -> LogDetail:
    assert isinstance(spec.retention, Retained)
    ends = store.extent(spec.name)
    rows = []
    for number, (first, end) in enumerate(ends[:PARTITIONS_SHOWN]):
        position = store.position(spec.name, group, number) if group else None
        lag = None if position is None else end - 1 - max(position, first - 1)
        rows.append(PartitionRow(number, first, end, position, lag))
    first, end = ends[partition]
    after = max(first - 1, end - 1 - ENTRIES_SHOWN)
    entries = store.read(spec.name, partition, after, ENTRIES_SHOWN) if end > first else []
    lag = sum(row.lag or 0 for row in rows)
    more = max(0, len(ends) - PARTITIONS_SHOWN)
    return LogDetail(spec, rows, more, group, lag, entries[::-1], partition, _groups(store, spec.name))


def _groups(store: Store, log: str) -> list[GroupRow]:
    rows = []
    for name, of_group in groupby(store.groups(log, "", GROUPS_SHOWN), key=lambda standing: standing.group):
        standings = list(of_group)
        losses = [standing.loses_at for standing in standings if standing.loses_at is not None]
        members = len({standing.member for standing in standings if standing.member is not None})
        lag, lost = sum(standing.lag for standing in standings), sum(standing.lost for standing in standings)
        rows.append(GroupRow(name, lag, lost, members, min(losses, default=None), standings[0].seen_at))
    return rows
