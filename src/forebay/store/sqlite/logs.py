"""Retained logs, and the ledger: what is read by its offset.

Records of the ledger are written by the unit of work that they are about, in its transaction. Their offsets and the
ledger's rule are in the head, which every call reads anew: a rule that another process put holds from the next call on.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from forebay.core.entries import LogEntry
from forebay.core.errors import OffsetGone
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerEntry, LedgerRule, decode_record
from forebay.core.limits import MAX_BATCH
from forebay.store.sql_logs import SqlLogs, SqlLogVerbs
from forebay.store.sqlite.session import Session, verb
from forebay.store.sqlite.tables import SQL
from forebay.store.sqlite.unit_of_work import Head, UnitOfWork

_MAX_OFFSET: Final = 2**63 - 2

T = TypeVar("T")


class Ledger:
    """What happened."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        with self.session.read() as (reader, _):
            first = _head(reader).ledger_first
            if after + 1 < first:
                raise OffsetGone("ledger", 0, after + 1, first)
            rows = reader.execute(SQL.records, (min(after, _MAX_OFFSET), limit)).fetchall()
        return [LedgerEntry(entry, decode_record(record)) for entry, record in rows]

    def ledger_extent(self) -> tuple[int, int]:
        with self.session.read() as (reader, _):
            head = _head(reader)
        return head.ledger_first, head.ledger_next

    def ledger_rule(self) -> LedgerRule:
        with self.session.read() as (reader, _):
            return _head(reader).ledger_rule

    @verb
    def put_ledger_rule(self, unit: UnitOfWork, rule: LedgerRule) -> None:
        """The switch itself is recorded: the last record before the ledger is off, and the first one after."""
        head = unit.head
        if rule.on != head.ledger_on:
            unit.recording = True
            unit.builder.set_verb("put_ledger_rule", name="on" if rule.on else "off")
        head.ledger_on, head.ledger_keep, head.ledger_keep_bytes = int(rule.on), rule.keep, rule.keep_bytes

    def trim_ledger(self, limit: int) -> int:
        return self.session.write(lambda unit: unit.trim_ledger(limit))


class Logs(SqlLogVerbs):
    """Retained logs (`store.sql_logs`)."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @verb
    def append(self, unit: UnitOfWork, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        entries = _logs(unit.connection).append(log, pairs, unit.now)
        if entries:
            unit.queues.with_work[log] = MAX_BATCH
        return entries

    def _write(self, step: Callable[[SqlLogs, Instant], T]) -> T:
        return self.session.write(lambda unit: step(_logs(unit.connection), unit.now))

    def _read(self, step: Callable[[SqlLogs, Instant], T]) -> T:
        with self.session.read() as (reader, now):
            return step(_logs(reader), now)

    def _due(self) -> list[str]:
        return self._read(SqlLogs.due)


def _logs(connection: sqlite3.Connection) -> SqlLogs:
    return SqlLogs(connection.execute, vars(SQL).__getitem__, connection.executemany)


def _head(reader: sqlite3.Connection) -> Head:
    return Head(*reader.execute(SQL.head).fetchone())
