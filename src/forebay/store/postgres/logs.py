"""Retained logs, and the ledger: reading it, its rule, and giving up its front.

Records of the ledger are written by the verbs, in their transactions. A reader first has the records numbered whose
transactions are over, in the order of their changes, as far as no transaction is open that could still come before: so
what was read is without a gap, and stays so. A transaction that is held open holds readers up, and nobody else.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.entries import LogEntry
from forebay.core.errors import OffsetGone
from forebay.core.instant import Duration, Instant
from forebay.core.ledger import Change, JobRange, LedgerEntry, LedgerRule, Record
from forebay.store.log import Owned, Standing, committed
from forebay.store.postgres.queries import statement
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.sql_logs import SqlLogs, due_logs

_COMMIT: Final = statement("commit_offset")
_OLDEST: Final = statement("oldest_entries")
_MAX_BIGINT: Final = 2**63 - 1
_MAX_OFFSET: Final = 2**63 - 2
_NUMBER: Final = "SELECT forebay.number_ledger()"
_FIRST: Final = "SELECT min(first) FROM forebay.ledger_page"
_READ: Final = "SELECT * FROM forebay.read_ledger(%s::bigint, %s)"
_RULE: Final = "SELECT recording, keep, keep_bytes FROM forebay.ledger_rule"
_LOCK_RULE: Final = f"{_RULE} FOR UPDATE"
_PUT_RULE: Final = "UPDATE forebay.ledger_rule SET recording = %s, keep = %s, keep_bytes = %s"
_TRIM: Final = "SELECT forebay.trim_ledger(%s, %s)"
_AHEAD: Final = frozenset((Change.RETRIED, Change.RELEASED))
_decode: Final = msgspec.json.Decoder(list[JobRange]).decode


class Logs:
    """The verbs of retained logs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(self, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        return self._session.write(lambda unit: _append(unit, log, pairs))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        return self._session.write(lambda unit: _logs(unit).read(log, partition, after, limit))

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        numbers = [_bigint(partition), _bigint(offset)]
        known, flaw = self._session.server.query(
            _COMMIT, (log, group, *numbers, rewind, epoch, self._session.at), repeatable=not rewind, certain=not rewind
        )[0]
        return committed(known, flaw, log, group, partition, offset, epoch)

    def position(self, log: str, group: str, partition: int) -> int:
        return self._session.write(lambda unit: _logs(unit).position(log, group, partition))

    def extent(self, log: str) -> list[tuple[int, int]]:
        return self._session.write(lambda unit: _logs(unit).extent(log))

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self._session.write(lambda unit: _logs(unit).offset_at(log, partition, instant))

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._session.write(lambda unit: _logs(unit).trim(log, before, limit))

    def keep_windows(self, limit: int) -> None:
        """What has left the windows of logs goes."""
        due = due_logs(self._session.server.query(_OLDEST), self._session.now)
        if due:
            self._session.write(lambda unit: _logs(unit).keep_windows(due, unit.now, limit))

    def own(self, log: str, group: str, member: str, span: Duration) -> list[Owned]:
        return self._session.write(lambda unit: _logs(unit).own(log, group, member, span, unit.now))

    def disown(self, log: str, group: str, member: str) -> int:
        return self._session.write(lambda unit: _logs(unit).disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return self._session.write(lambda unit: _logs(unit).groups(log, after, limit))


def _append(unit: UnitOfWork, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
    entries = _logs(unit).append(log, pairs, unit.now)
    if entries:
        unit.news.add(log)
    return entries


def _bigint(number: object) -> int:
    """What is none is one that never is: the server answers why."""
    return number if type(number) is int and abs(number) <= _MAX_BIGINT else -2


def _logs(unit: UnitOfWork) -> SqlLogs:
    return SqlLogs(unit.connection.execute, statement)


class Ledger:
    """What happened."""

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
        following: int = self._session.server.query(_NUMBER)[0][0]
        first: int | None = self._session.server.query(_FIRST)[0][0]
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
    """The switch itself is told: the last record before a silence, and the first one after it."""
    ((recording, _, _),) = unit.fetch(_LOCK_RULE)
    if rule.on and not recording:
        unit.execute(_PUT_RULE, (rule.on, rule.keep, rule.keep_bytes))
    if rule.on != recording:
        unit.builder.set_verb("put_ledger_rule", name="on" if rule.on else "off")
        unit.tell()
    unit.execute(_PUT_RULE, (rule.on, rule.keep, rule.keep_bytes))


def _record(
    at: Instant, verb: str, owner: str | None, name: str | None, tick: Instant | None, spans: bytes | None
) -> Record:
    told = [] if spans is None else _decode(spans)
    if verb == "settle":
        told = [_dated(span, at) for span in told]
    return Record(at, verb, told, owner, name, tick)


def _dated(span: JobRange, at: Instant) -> JobRange:
    """A settle tells how long; its record tells when."""
    return replace(span, until=at + span.until) if span.until or span.change in _AHEAD else span
