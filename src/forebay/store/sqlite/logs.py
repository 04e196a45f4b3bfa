"""Retained logs, and the ledger: what is read by its offset.

Records of the ledger are written by the unit of work that they are about, in its transaction. Their offsets and the
ledger's rule are in the head, which every call reads anew: a rule that another process put holds from the next call on.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from forebay.core.entries import LogEntry
from forebay.core.errors import OffsetGone
from forebay.core.instant import Duration, Instant
from forebay.core.ledger import LedgerEntry, LedgerRule, decode_record
from forebay.core.limits import MAX_BATCH
from forebay.store.log import Owned, Standing
from forebay.store.sql_logs import SqlLogs
from forebay.store.sqlite.session import Session, verb
from forebay.store.sqlite.tables import statement
from forebay.store.sqlite.unit_of_work import Head, UnitOfWork

_HEAD: Final = statement("head")
_RECORDS: Final = statement("records")
_MAX_OFFSET: Final = 2**63 - 2


class Ledger:
    """What happened."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        with self.session.read() as (reader, _):
            first = _head(reader).ledger_first
            if after + 1 < first:
                raise OffsetGone("ledger", 0, after + 1, first)
            rows = reader.execute(_RECORDS, (min(after, _MAX_OFFSET), limit)).fetchall()
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


class Logs:
    """Retained logs (`store.sql_logs`)."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @verb
    def append(self, unit: UnitOfWork, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        entries = _logs(unit.connection).append(log, pairs, unit.now)
        if entries:
            unit.queues.with_work[log] = MAX_BATCH
        return entries

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        with self.session.read() as (reader, _):
            return _logs(reader).read(log, partition, after, limit)

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        where = (log, group, partition, offset, rewind, epoch)
        return self.session.write(lambda unit: _logs(unit.connection).commit(*where, unit.now))

    def position(self, log: str, group: str, partition: int) -> int:
        with self.session.read() as (reader, _):
            return _logs(reader).position(log, group, partition)

    def extent(self, log: str) -> list[tuple[int, int]]:
        with self.session.read() as (reader, _):
            return _logs(reader).extent(log)

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        with self.session.read() as (reader, _):
            return _logs(reader).offset_at(log, partition, instant)

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self.session.write(lambda unit: _logs(unit.connection).trim(log, before, limit))

    def keep_windows(self, limit: int) -> None:
        """Drop what has left the windows of logs."""
        with self.session.read() as (reader, now):
            due = _logs(reader).due(now)
        if due:
            self.session.write(lambda unit: _logs(unit.connection).keep_windows(due, unit.now, limit))

    def own(self, log: str, group: str, member: str, lease_for: Duration) -> list[Owned]:
        return self.session.write(lambda unit: _logs(unit.connection).own(log, group, member, lease_for, unit.now))

    def disown(self, log: str, group: str, member: str) -> int:
        return self.session.write(lambda unit: _logs(unit.connection).disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        with self.session.read() as (reader, _):
            return _logs(reader).groups(log, after, limit)


def _logs(connection: sqlite3.Connection) -> SqlLogs:
    return SqlLogs(connection.execute, statement, connection.executemany)


def _head(reader: sqlite3.Connection) -> Head:
    return Head(*reader.execute(_HEAD).fetchone())
