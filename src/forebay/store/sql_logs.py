"""Retained logs in SQL: dense offsets from 0 per partition, in the order of commits; readers in groups.

One `SqlLogs` works inside one transaction or one read. The statements are the store's own, by these names: partitions,
lock_partitions, partition, append, appended, entries, old_entries, trim, trimmed, reader, lock_reader, commit. Their
parameters come in the order in which they are given here.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final
from zlib import crc32

from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.event import LogEntry
from forebay.core.instant import Instant
from forebay.store.gate_tables import Cursor

_OFFSET_MOST: Final = 2**63 - 2

Partition = tuple[int, int, int]
"""Place, first offset held, next offset."""


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
        """Entries of one key meet in one partition; the others go where there are fewest."""
        partitions = self._partitions("lock_partitions", log)
        following = [partition[2] for partition in partitions]
        appended = []
        for body, key in entries:
            number = crc32(key.encode()) % len(partitions) if key else following.index(min(following))
            appended.append(LogEntry(number, following[number], now, body, key))
            following[number] += 1
        rows = [(partitions[one.partition][0], one.offset, one.at, one.key, one.body) for one in appended]
        self._execute_many(self._statement("append"), rows)
        for (place, _, was), new in zip(partitions, following, strict=True):
            if new != was:
                self._run("appended", place, new)
        return appended

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        place, first, _ = self._partition(log, partition)
        if type(after) is not int or after < -1:
            raise Invalid("after", f"{after!r} is no offset", "-1 reads from the start")
        if after + 1 < first:
            raise OffsetGone(log, partition, after + 1, first)
        rows = self._run("entries", place, min(after, _OFFSET_MOST), limit).fetchall()
        return [LogEntry(partition, entry, at, body, key) for entry, at, body, key in rows]

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool) -> int:
        place, _, following = self._partition(log, partition)
        if type(offset) is not int or not -1 <= offset < following:
            raise Invalid("offset", f"{offset!r} is not in -1 … {following - 1}", "commit what was read")
        known = self._place_of("lock_reader", place, group)
        if offset > known or (rewind and offset != known):
            self._run("commit", place, group, offset)
            known = offset
        return known

    def position(self, log: str, group: str, partition: int) -> int:
        return self._place_of("reader", self._partition(log, partition)[0], group)

    def extent(self, log: str) -> list[tuple[int, int]]:
        return [(first, following) for _, first, following in self._partitions("partitions", log)]

    def trim(self, log: str, before: Instant, limit: int) -> int:
        dropped = 0
        for place, _, _ in self._partitions("lock_partitions", log):
            front = self._run("old_entries", place, limit - dropped).fetchall()
            old = [entry for entry, at in front if at < before]
            if old:
                self._run("trim", place, old[-1] + 1)
                self._run("trimmed", place, old[-1] + 1)
                dropped += len(old)
        return dropped

    def _place_of(self, statement: str, place: int, group: str) -> int:
        found = self._run(statement, place, group).fetchone()
        return -1 if found is None else int(found[0])

    def _partitions(self, statement: str, log: str) -> Sequence[Partition]:
        partitions: Sequence[Partition] = self._run(statement, log).fetchall()
        if not partitions:
            raise WrongQueueKind(log, is_log=False)
        return partitions

    def _partition(self, log: str, number: int) -> Partition:
        partition: Partition | None = None
        if type(number) is int and 0 <= number <= _OFFSET_MOST:
            partition = self._run("partition", log, number).fetchone()
        if partition is None:
            count = len(self._partitions("partitions", log))
            raise Invalid("partition", f"{number!r} is not in 0 … {count - 1}", f"log {log!r} has no other")
        return partition

    def _run(self, statement: str, *parameters: Any) -> Cursor:
        return self._execute(self._statement(statement), parameters)

    def _one_by_one(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._execute(text, row)
