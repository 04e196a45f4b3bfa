"""`SqliteStore`: every verb of the contract on one SQLite file, for the threads and processes of one machine.

Durable before every answer. Two machines must never share the file: SQLite's locks do not work over a network.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from forebay.core.clock import Clock
from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.event import LogEntry
from forebay.core.instant import Instant, checked_instant
from forebay.core.names import check_name
from forebay.store.checks import check_limit, checked_entries
from forebay.store.clock import SystemClock
from forebay.store.protocol import Capabilities
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.queues import QueueVerbs
from forebay.store.sqlite.turn import SETTLE_MEMORY, Turn

_OFFSET_MOST: Final = 2**63 - 2
_PARTITIONS: Final = statement("partitions")
_PARTITION: Final = statement("partition")
_APPEND: Final = statement("append")
_APPENDED: Final = statement("appended")
_ENTRIES: Final = statement("entries")
_OLD_ENTRIES: Final = statement("old_entries")
_TRIM: Final = statement("trim")
_TRIMMED: Final = statement("trimmed")
_READER: Final = statement("reader")
_COMMIT: Final = statement("commit")

Partition = tuple[int, int, int]
"""Place, first offset held, next offset."""


class SqliteStore(QueueVerbs):
    """The embedded store."""

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock or SystemClock())

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="sqlite", durable=True, processes="many", settle_memory=SETTLE_MEMORY, lease_grain=0.0)

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        log = check_name("log", log)
        pairs = checked_entries(bodies, keys)
        return self._write(lambda turn: _append(turn, log, pairs))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        check_limit("read", limit)
        log = check_name("log", log)
        with self._read() as (reader, _):
            place, first, _ = _partition(reader, log, partition)
            if type(after) is not int or after < -1:
                raise Invalid("after", f"{after!r} is no offset", "-1 reads from the start")
            if after + 1 < first:
                raise OffsetGone(log, partition, after + 1, first)
            rows = reader.execute(_ENTRIES, (place, min(after, _OFFSET_MOST), limit)).fetchall()
        return [LogEntry(partition, entry, at, body, key) for entry, at, body, key in rows]

    def commit(self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False) -> int:
        log, group = check_name("log", log), check_name("group", group)
        return self._write(lambda turn: _commit(turn, log, group, partition, offset, rewind))

    def position(self, log: str, group: str, partition: int) -> int:
        log = check_name("log", log)
        with self._read() as (reader, _):
            return _place_of(reader, _partition(reader, log, partition)[0], group)

    def extent(self, log: str) -> list[tuple[int, int]]:
        log = check_name("log", log)
        with self._read() as (reader, _):
            return [(first, following) for _, first, following in _partitions(reader, log)]

    def trim(self, log: str, before: Instant, limit: int) -> int:
        check_limit("trim", limit)
        log = check_name("log", log)
        checked_instant("before", before)
        return self._write(lambda turn: _trim(turn.connection, log, before, limit))


def _append(turn: Turn, log: str, entries: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
    """Entries of one key meet in one partition; the others go where there are fewest."""
    partitions = _partitions(turn.connection, log)
    following = [partition[2] for partition in partitions]
    appended = []
    for body, key in entries:
        number = crc32(key.encode()) % len(partitions) if key else following.index(min(following))
        appended.append(LogEntry(number, following[number], turn.now, body, key))
        following[number] += 1
    rows = [(partitions[one.partition][0], one.offset, one.at, one.key, one.body) for one in appended]
    turn.connection.executemany(_APPEND, rows)
    for (place, _, was), new in zip(partitions, following, strict=True):
        if new != was:
            turn.connection.execute(_APPENDED, (place, new))
    return appended


def _commit(turn: Turn, log: str, group: str, partition: int, offset: int, rewind: bool) -> int:
    place, _, following = _partition(turn.connection, log, partition)
    if type(offset) is not int or not -1 <= offset < following:
        raise Invalid("offset", f"{offset!r} is not in -1 … {following - 1}", "commit what was read")
    known = _place_of(turn.connection, place, group)
    if offset > known or (rewind and offset != known):
        turn.connection.execute(_COMMIT, (place, group, offset))
        known = offset
    return known


def _trim(connection: sqlite3.Connection, log: str, before: Instant, limit: int) -> int:
    dropped = 0
    for place, _, _ in _partitions(connection, log):
        front = connection.execute(_OLD_ENTRIES, (place, limit - dropped)).fetchall()
        old = [entry for entry, at in front if at < before]
        if old:
            connection.execute(_TRIM, (place, old[-1] + 1))
            connection.execute(_TRIMMED, (place, old[-1] + 1))
            dropped += len(old)
    return dropped


def _place_of(connection: sqlite3.Connection, place: int, group: str) -> int:
    found = connection.execute(_READER, (place, group)).fetchone()
    return -1 if found is None else int(found[0])


def _partitions(connection: sqlite3.Connection, log: str) -> list[Partition]:
    partitions: list[Partition] = connection.execute(_PARTITIONS, (log,)).fetchall()
    if not partitions:
        raise WrongQueueKind(log, is_log=False)
    return partitions


def _partition(connection: sqlite3.Connection, log: str, number: int) -> Partition:
    partition: Partition | None = None
    if type(number) is int and 0 <= number <= _OFFSET_MOST:
        partition = connection.execute(_PARTITION, (log, number)).fetchone()
    if partition is None:
        count = len(_partitions(connection, log))
        raise Invalid("partition", f"{number!r} is not in 0 … {count - 1}", f"log {log!r} has no other")
    return partition
