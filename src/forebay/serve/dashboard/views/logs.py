"""Retained logs: the extent of each partition, the groups that read it, and their lag."""

from itertools import groupby
from typing import Final

from msgspec import Struct

from forebay.core.entries import LogEntry
from forebay.core.instant import Instant
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Store

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
    for name, some in groupby(store.groups(log, "", GROUPS_SHOWN), key=lambda one: one.group):
        stood = list(some)
        losses = [one.loses_at for one in stood if one.loses_at is not None]
        members = len({one.member for one in stood if one.member is not None})
        lag, lost = sum(one.lag for one in stood), sum(one.lost for one in stood)
        rows.append(GroupRow(name, lag, lost, members, min(losses, default=None), stood[0].seen_at))
    return rows
