"""The backend of the embedded store: one SQLite file for the threads and processes of one machine."""

import sqlite3
from collections.abc import Sequence

from forebay.core.clock import Clock
from forebay.core.event import LogEntry
from forebay.core.instant import Instant, Span
from forebay.core.limits import BATCH_MOST
from forebay.store.clock import SystemClock
from forebay.store.log import Owned, Standing
from forebay.store.protocol import Capabilities, Promotion
from forebay.store.sql_logs import SqlLogs
from forebay.store.sqlite.feed import Feed
from forebay.store.sqlite.presence import PresenceVerbs
from forebay.store.sqlite.progress import ProgressVerbs
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.turn import SETTLE_MEMORY, Turn
from forebay.store.sqlite.watching import Watching


class SqliteBackend(ProgressVerbs, Feed, PresenceVerbs, Watching):
    """All verbs."""

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock or SystemClock())

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="sqlite", durable=True, processes="many", settle_memory=SETTLE_MEMORY, lease_grain=0.0)

    def append(self, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        return self._write(lambda turn: _append(turn, log, pairs))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        with self._read() as (reader, _):
            return _logs(reader).read(log, partition, after, limit)

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        where = (log, group, partition, offset, rewind, epoch)
        return self._write(lambda turn: _logs(turn.connection).commit(*where, turn.now))

    def position(self, log: str, group: str, partition: int) -> int:
        with self._read() as (reader, _):
            return _logs(reader).position(log, group, partition)

    def extent(self, log: str) -> list[tuple[int, int]]:
        with self._read() as (reader, _):
            return _logs(reader).extent(log)

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        with self._read() as (reader, _):
            return _logs(reader).offset_at(log, partition, instant)

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._write(lambda turn: _logs(turn.connection).trim(log, before, limit))

    def promote(self, limit: int) -> Promotion:
        promotion = super().promote(limit)
        with self._read() as (reader, now):
            due = _logs(reader).due(now)
        if due:
            self._write(lambda turn: _logs(turn.connection).keep_windows(due, turn.now, limit))
        return promotion

    def own(self, log: str, group: str, member: str, span: Span) -> list[Owned]:
        return self._write(lambda turn: _logs(turn.connection).own(log, group, member, span, turn.now))

    def disown(self, log: str, group: str, member: str) -> int:
        return self._write(lambda turn: _logs(turn.connection).disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        with self._read() as (reader, _):
            return _logs(reader).groups(log, after, limit)


def _append(turn: Turn, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
    entries = _logs(turn.connection).append(log, pairs, turn.now)
    if entries:
        turn.tally.news[log] = BATCH_MOST
    return entries


def _logs(connection: sqlite3.Connection) -> SqlLogs:
    return SqlLogs(connection.execute, statement, connection.executemany)
