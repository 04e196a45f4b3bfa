"""Retained logs in SQL: dense offsets from 0 per partition, in the order of commits; groups, their members, the window.

One `SqlLogs` works inside one transaction or one read. The statements are the store's own, by the names given here, and
their parameters come in the order in which they are given here. Locks are taken from the partitions of a log, or from
the group, down to the readers, and those by place.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from forebay.core.entries import LogEntry
from forebay.core.errors import OffsetGone, WrongQueueKind
from forebay.core.instant import Duration, Instant
from forebay.core.spec import QueueSpec
from forebay.engine.logs import (
    Holding,
    check_commit,
    check_epoch,
    divide,
    next_epoch,
    no_partition,
    place_entries,
    window_of,
)
from forebay.store.checks import check_offset
from forebay.store.log import Owned, Standing

_MAX_OFFSET: Final = 2**63 - 2

T = TypeVar("T")


class PartitionExtent(NamedTuple):
    """A partition of a log as its statement gives it: what it holds, and the instant of its newest entry."""

    place: int
    first: int
    following: int
    newest_at: Instant


class Cursor(Protocol):
    """What a database's driver returns."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> Sequence[Any]: ...


class _StandingRow(NamedTuple):
    """Where a group is in a partition. `unread_at`: the instant of the first entry that it has not read."""

    group: str
    partition: int
    position: int
    first: int
    following: int
    lost: int
    unread_at: Instant | None
    seen_at: Instant
    member: str | None
    epoch: int
    until: Instant | None


class SqlLogs:
    """The logs of one store. `execute_many` runs a statement for many rows, where the driver has a quick way to."""

    def __init__(
        self,
        execute: Callable[[str, Sequence[Any]], Cursor],
        statement: Callable[[str], str],
        execute_many: Callable[[str, Sequence[Sequence[Any]]], object] | None = None,
    ) -> None:
        self._execute = execute
        self._statement = statement
        self._execute_many = execute_many or self._one_by_one

    def append(self, log: str, entries: Sequence[tuple[bytes, str | None]], now: Instant) -> list[LogEntry]:
        """Entries of one key share a partition; others get the one with the fewest. Instants never decrease."""
        partitions = self._partitions("lock_partitions", log)
        following = [partition.following for partition in partitions]
        instants = [max(now, partition.newest_at) for partition in partitions]
        appended = place_entries(entries, following, instants)
        rows = [(partitions[one.partition].place, one.offset, one.at, one.key, one.body) for one in appended]
        self._execute_many(self._statement("append"), rows)
        for partition, new, at in zip(partitions, following, instants, strict=True):
            if new != partition.following:
                self._run("appended", partition.place, new, at)
        return appended

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        place, first, following, _ = self._partition(log, partition)
        check_offset(after)
        if after + 1 < first:
            raise OffsetGone(log, partition, after + 1, first)
        rows = self._run("entries", place, min(after, _MAX_OFFSET), limit).fetchall()
        if after + 1 < following and (not rows or rows[0][0] != after + 1):
            # Trimmed between the two statements: offsets are dense, so a gap at the front is seen.
            raise OffsetGone(log, partition, after + 1, self._partition(log, partition).first)
        return [LogEntry(partition, entry, at, body, key) for entry, at, body, key in rows]

    def commit(
        self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None, now: Instant
    ) -> int:
        place, _, following, _ = self._partition(log, partition)
        check_commit(offset, following)
        known = self._run("lock_reader", place, group).fetchone()
        position, member, current = known or (-1, None, 0)
        check_epoch(log, group, partition, epoch, member, current)
        if known is None:
            self._run("add_group", log, group, now)
        position = offset if rewind else max(position, offset)
        self._run("commit", place, group, position, now)
        return int(position)

    def position(self, log: str, group: str, partition: int) -> int:
        found = self._run("reader", self._partition(log, partition).place, group).fetchone()
        return -1 if found is None else int(found[0])

    def extent(self, log: str) -> list[tuple[int, int]]:
        return [(first, following) for _, first, following, _ in self._partitions("partitions", log)]

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self._before(self._partition(log, partition).place, instant)

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._drop(log, before, {}, limit)

    def due(self, now: Instant) -> list[str]:
        """Logs that hold entries which have left their window."""
        return due_logs(self._run("oldest_entries").fetchall(), lambda: now)

    def keep_windows(self, logs: Sequence[str], now: Instant, limit: int) -> None:
        """Delete entries outside the window, except those that lagging groups keep."""
        for log in logs:
            window, blocks = self._rule_of(log)
            if window is not None and limit > 0:
                limit -= self._drop(log, now - window + 1, self._floors(log, now - window) if blocks else {}, limit)

    def own(self, log: str, group: str, member: str, lease_for: Duration, now: Instant) -> list[Owned]:
        partitions = self._partitions("partitions", log)
        if self._run("lock_group", log, group).fetchone() is None:
            self._run("add_group", log, group, now)
            self._run("lock_group", log, group)
        self._run("see_group", log, group, now)
        until = now + lease_for
        self._run("put_member", log, group, member, until)
        members = dict(self._run("members", log, group).fetchall())
        living = sum(end > now for end in members.values())
        rows = self._run("holdings", log, group).fetchall()
        if len(rows) < len(partitions):
            self._run("meet_partitions", log, group)
            rows = self._run("holdings", log, group).fetchall()
        holdings = [Holding(owner, epoch, end or 0) for _, _, owner, epoch, end in rows]
        wanted = set(divide(member, holdings, living, now))
        owned, busy = [], set()
        for number, (holding, row) in enumerate(zip(holdings, rows, strict=True)):
            owner, position = self._hand_over(group, member, holding, row, number in wanted)
            busy.add(owner)
            if owner == member:
                owned.append(Owned(number, next_epoch(member, holding), position, until))
        for name in [name for name, end in members.items() if end <= now and name not in busy]:
            self._run("drop_member", log, group, name)
        return owned

    def disown(self, log: str, group: str, member: str) -> int:
        self._partitions("partitions", log)
        self._run("lock_group", log, group)
        rows = self._run("holdings", log, group).fetchall()
        held = [(place, epoch) for place, _, owner, epoch, _ in rows if owner == member]
        for place, epoch in held:
            self._run("give", place, group, None, epoch)
        self._run("drop_member", log, group, member)
        return len(held)

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        self._partitions("partitions", log)
        window, _ = self._rule_of(log)
        rows = [_StandingRow(*row) for row in self._run("standings", log, after, limit).fetchall()]
        seen: dict[str, Instant] = defaultdict(int)
        for row in rows:
            seen[row.group] = max(seen[row.group], row.seen_at)
        return [_standing(row, window, seen[row.group]) for row in sorted(rows)]

    def _hand_over(
        self, group: str, member: str, holding: Holding, row: Sequence[Any], wanted: bool
    ) -> tuple[str | None, int]:
        """Owner and position of a partition after a call of `own`. One that is being committed stays as it is."""
        place, position = row[:2]
        if wanted == (holding.member == member):
            return holding.member, position
        found = self._run("hold_reader", place, group).fetchone()
        if found is None:
            return holding.member, position
        epoch = next_epoch(member, holding) if wanted else holding.epoch
        owner = member if wanted else None
        self._run("give", place, group, owner, epoch)
        return owner, found[0]

    def _drop(self, log: str, before: Instant, ends: dict[int, int], limit: int) -> int:
        """Entries appended before the instant, of a partition only up to its end if it has one; how many."""
        left = limit
        for number, (place, first, following, _) in enumerate(self._partitions("lock_partitions", log)):
            if left < 1 or first == following:
                continue
            end = min(self._before(place, before) + 1, ends.get(number, following), first + left)
            if end > first and self._hold_readers(log, place, end):
                left -= end - first
                self._run("count_lost", place, first, end)
                self._run("trim", place, end)
                self._run("trimmed", place, end)
        return limit - left

    def _hold_readers(self, log: str, place: int, end: int) -> bool:
        """Groups that have not read the entries to be trimmed, locked so that they can be counted.

        False: a commit of one of them is in progress, perhaps in a long transaction. Waiting for it would block all
        appends, so the entries are trimmed later.
        """
        self._run("meet_groups", place, log)
        behind = self._run("behind", place, end).fetchall()
        return len(self._run("hold_behind", place, end).fetchall()) == len(behind)

    def _floors(self, log: str, since: Instant) -> dict[int, int]:
        """By partition: the first offset that an active group has not read."""
        standings = self.groups(log, "", _MAX_OFFSET)
        floors: dict[int, int] = {}
        for one in standings:
            if one.seen_at >= since:
                floors[one.partition] = min(floors.get(one.partition, _MAX_OFFSET), one.position + 1)
        return floors

    def _before(self, place: int, instant: Instant) -> int:
        found = self._run("entry_before", place, instant).fetchone()
        assert found is not None
        return int(found[0])

    def _rule_of(self, log: str) -> tuple[Duration | None, bool]:
        found = self._run("log_spec", log).fetchone()
        assert found is not None
        return _rule(found[0])

    def _partitions(self, statement: str, log: str) -> Sequence[PartitionExtent]:
        partitions = [PartitionExtent(*row) for row in self._run(statement, log).fetchall()]
        if not partitions:
            raise WrongQueueKind(log, is_log=False)
        return partitions

    def _partition(self, log: str, number: int) -> PartitionExtent:
        found = None
        if type(number) is int and 0 <= number <= _MAX_OFFSET:
            found = self._run("partition", log, number).fetchone()
        if found is None:
            raise no_partition(log, number, len(self._partitions("partitions", log)))
        return PartitionExtent(*found)

    def _run(self, statement: str, *parameters: Any) -> Cursor:
        return self._execute(self._statement(statement), parameters)

    def _one_by_one(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._execute(text, row)


class SqlLogVerbs(ABC):
    """The verbs of a backend, each over one transaction or one read; `append` says also that there is work."""

    @abstractmethod
    def _write(self, step: Callable[[SqlLogs, Instant], T]) -> T: ...

    @abstractmethod
    def _read(self, step: Callable[[SqlLogs, Instant], T]) -> T: ...

    @abstractmethod
    def _due(self) -> list[str]:
        """Logs that hold entries which have left their window."""

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        return self._read(lambda logs, _: logs.read(log, partition, after, limit))

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        return self._write(lambda logs, now: logs.commit(log, group, partition, offset, rewind, epoch, now))

    def position(self, log: str, group: str, partition: int) -> int:
        return self._read(lambda logs, _: logs.position(log, group, partition))

    def extent(self, log: str) -> list[tuple[int, int]]:
        return self._read(lambda logs, _: logs.extent(log))

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self._read(lambda logs, _: logs.offset_at(log, partition, instant))

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._write(lambda logs, _: logs.trim(log, before, limit))

    def keep_windows(self, limit: int) -> None:
        """Trim what has left the windows of logs."""
        if due := self._due():
            self._write(lambda logs, now: logs.keep_windows(due, now, limit))

    def own(self, log: str, group: str, member: str, lease_for: Duration) -> list[Owned]:
        return self._write(lambda logs, now: logs.own(log, group, member, lease_for, now))

    def disown(self, log: str, group: str, member: str) -> int:
        return self._write(lambda logs, _: logs.disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return self._read(lambda logs, _: logs.groups(log, after, limit))


def due_logs(oldest: Sequence[Sequence[Any]], now: Callable[[], Instant]) -> list[str]:
    """Of partitions, each with its log's spec and the oldest instant: logs that hold what has left their window."""
    windows = [(log, at + window) for log, spec, at in oldest if (window := _rule(spec)[0]) is not None]
    instant = now() if windows else 0
    return list(dict.fromkeys(log for log, end in windows if end <= instant))


def _standing(row: _StandingRow, window: Duration | None, seen_at: Instant) -> Standing:
    """`seen_at`: of the group in any of its partitions."""
    owner = (None, 0, None) if row.member is None else (row.member, row.epoch, row.until)
    lag = row.following - max(row.first, row.position + 1)
    loses_at = None if row.unread_at is None or window is None else row.unread_at + window
    return Standing(row.group, row.partition, row.position, lag, row.lost, loses_at, seen_at, *owner)


@lru_cache(maxsize=256)
def _rule(spec: str) -> tuple[Duration | None, bool]:
    return window_of(QueueSpec.from_json(spec))
