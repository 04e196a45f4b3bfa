"""`SqliteStore`: every verb of the contract on one SQLite file, for the threads and processes of one machine.

Durable before every answer. Two machines must never share the file: SQLite's locks do not work over a network.
"""

import sqlite3
from collections.abc import Sequence

from forebay.core.clock import Clock
from forebay.core.event import LogEntry
from forebay.core.features import Feature
from forebay.core.instant import Instant, checked_instant
from forebay.core.names import check_name
from forebay.store.checks import check_limit, checked_entries
from forebay.store.clock import SystemClock
from forebay.store.protocol import Capabilities
from forebay.store.sql_logs import SqlLogs
from forebay.store.sqlite.feed import Feed
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.turn import SETTLE_MEMORY
from forebay.store.unbuilt import SQLITE, Unbuilt, unbuilt


class SqliteStore(Feed, Unbuilt):
    """The embedded store."""

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock or SystemClock())

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="sqlite", durable=True, processes="many", settle_memory=SETTLE_MEMORY, lease_grain=0.0, lacks=SQLITE
        )

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        log = check_name("log", log)
        pairs = checked_entries(bodies, keys)
        return self._write(lambda turn: _logs(turn.connection).append(log, pairs, turn.now))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        check_limit("read", limit)
        log = check_name("log", log)
        with self._read() as (reader, _):
            return _logs(reader).read(log, partition, after, limit)

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False, epoch: int | None = None
    ) -> int:
        if epoch is not None:
            raise unbuilt("sqlite", Feature.GROUPS)
        log, group = check_name("log", log), check_name("group", group)
        return self._write(lambda turn: _logs(turn.connection).commit(log, group, partition, offset, rewind))

    def position(self, log: str, group: str, partition: int) -> int:
        log = check_name("log", log)
        with self._read() as (reader, _):
            return _logs(reader).position(log, group, partition)

    def extent(self, log: str) -> list[tuple[int, int]]:
        log = check_name("log", log)
        with self._read() as (reader, _):
            return _logs(reader).extent(log)

    def trim(self, log: str, before: Instant, limit: int) -> int:
        check_limit("trim", limit)
        log = check_name("log", log)
        checked_instant("before", before)
        return self._write(lambda turn: _logs(turn.connection).trim(log, before, limit))


def _logs(connection: sqlite3.Connection) -> SqlLogs:
    return SqlLogs(connection.execute, statement, connection.executemany)
