"""Retained logs; reading, retention and trimming of the ledger.

The verbs write records of the ledger in their transactions. A reader first assigns offsets to records whose
transactions have ended and which no other record can come to precede, in the order of their changes: so what was read
has no gap, and never gets one. A transaction that is held open delays readers, and nothing else.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from forebay.core.entries import LogEntry
from forebay.core.errors import OffsetGone
from forebay.core.instant import Instant
from forebay.core.ledger import Change, JobRange, LedgerEntry, LedgerRule, Record
from forebay.store.log import committed
from forebay.store.postgres.queries import SQL
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.sql_logs import SqlLogs, SqlLogVerbs, due_logs

_MAX_BIGINT: Final = 2**63 - 1
_MAX_OFFSET: Final = 2**63 - 2

T = TypeVar("T")
_NUMBER: Final = "SELECT forebay.number_ledger()"
_NUMBERED: Final = "SELECT next FROM forebay.ledger_mark"
_FIRST: Final = "SELECT min(first) FROM forebay.ledger_page"
_READ: Final = "SELECT * FROM forebay.read_ledger(%s::bigint, %s)"
_RULE: Final = "SELECT recording, keep, keep_bytes FROM forebay.ledger_rule"
_LOCK_RULE: Final = f"{_RULE} FOR UPDATE"
_PUT_RULE: Final = "UPDATE forebay.ledger_rule SET recording = %s, keep = %s, keep_bytes = %s"
_TRIM: Final = "SELECT forebay.trim_ledger(%s, %s)"
_AHEAD: Final = frozenset((Change.RETRIED, Change.RELEASED))
_decode: Final = msgspec.json.Decoder(list[JobRange]).decode


class Logs(SqlLogVerbs):
    """The verbs of retained logs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(self, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        return self._session.write(lambda unit: _append(unit, log, pairs))

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        numbers = [_bigint(partition), _bigint(offset)]
        known, flaw = self._session.server.query(
            SQL.commit_offset,
            (log, group, *numbers, rewind, epoch, self._session.at),
            repeatable=not rewind,
            certain=not rewind,
        )[0]
        return committed(known, flaw, log, group, partition, offset, epoch)

    def _write(self, step: Callable[[SqlLogs, Instant], T]) -> T:
        return self._session.write(lambda unit: step(_logs(unit), unit.now))

    _read = _write

    def _due(self) -> list[str]:
        return due_logs(self._session.server.query(SQL.oldest_entries), self._session.now)


def _append(unit: UnitOfWork, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
    entries = _logs(unit).append(log, pairs, unit.now)
    if entries:
        unit.has_work.add(log)
    return entries


def _bigint(number: object) -> int:
    """The number, or -2 if it cannot be one of a partition or an offset: the server returns the reason."""
    return number if type(number) is int and abs(number) <= _MAX_BIGINT else -2


def _logs(unit: UnitOfWork) -> SqlLogs:
    return SqlLogs(unit.connection.execute, vars(SQL).__getitem__)


class Ledger:
    """The verbs of the ledger."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        rows = self._session.server.query(_READ, (min(after, _MAX_OFFSET), limit))
        if len(rows) < limit or rows[0][0] != after + 1:
            first, _ = self.ledger_extent()
            if after + 1 < first:
                raise OffsetGone("ledger", 0, after + 1, first)
            rows = self._session.server.query(_READ, (min(after, _MAX_OFFSET), limit))
        return [LedgerEntry(row[0], _record(*row[1:])) for row in rows]

    def ledger_extent(self) -> tuple[int, int]:
        server = self._session.server
        following: int = server.query(_NUMBERED if server.standby else _NUMBER)[0][0]
        first: int | None = server.query(_FIRST)[0][0]
        return following if first is None else first, following

    def ledger_rule(self) -> LedgerRule:
        return LedgerRule(*self._session.server.query(_RULE)[0])

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._session.write(lambda unit: _put_rule(unit, rule))

    def trim_ledger(self, limit: int) -> int:
        self._session.server.query(_NUMBER)
        trimmed: int = self._session.server.query(_TRIM, (self._session.now(), limit))[0][0]
        return trimmed


def _put_rule(unit: UnitOfWork, rule: LedgerRule) -> None:
    """Switching the ledger off is its last record, switching it on the first one."""
    ((recording, _, _),) = unit.fetch(_LOCK_RULE)
    if rule.on and not recording:
        unit.execute(_PUT_RULE, (rule.on, rule.keep, rule.keep_bytes))
    if rule.on != recording:
        unit.builder.set_verb("put_ledger_rule", name="on" if rule.on else "off")
        unit.write_record()
    unit.execute(_PUT_RULE, (rule.on, rule.keep, rule.keep_bytes))


def _record(
    at: Instant, verb: str, owner: str | None, name: str | None, tick: Instant | None, encoded: bytes | None
) -> Record:
    ranges = [] if encoded is None else _decode(encoded)
    if verb == "settle":
        ranges = [_dated(job_range, at) for job_range in ranges]
    return Record(at, verb, ranges, owner, name, tick)


def _dated(job_range: JobRange, at: Instant) -> JobRange:
    """A settle stores durations; its record has instants."""
    return (
        replace(job_range, until=at + job_range.until) if job_range.until or job_range.change in _AHEAD else job_range
    )
