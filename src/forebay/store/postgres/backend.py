"""The backend of the production store: a Postgres database for the processes of many machines."""

from collections.abc import Sequence
from typing import Final

from forebay.core.clock import Clock
from forebay.core.event import LogEntry
from forebay.core.instant import Instant, Span
from forebay.store.log import Owned, Standing, committed
from forebay.store.postgres.base import Turn
from forebay.store.postgres.export import Export
from forebay.store.postgres.feed import Feed
from forebay.store.postgres.health import look, vitals_of
from forebay.store.postgres.ledger import LedgerVerbs
from forebay.store.postgres.presence import PresenceVerbs
from forebay.store.postgres.progress import ProgressVerbs
from forebay.store.postgres.queries import statement
from forebay.store.postgres.tend import SETTLE_MEMORY
from forebay.store.postgres.watching import Watching
from forebay.store.protocol import Capabilities, Promotion, Vitals
from forebay.store.sql_logs import SqlLogs, due_logs

_COMMIT: Final = statement("commit_offset")
_OLDEST: Final = statement("oldest_entries")
_BIGINT_MOST: Final = 2**63 - 1


class PostgresBackend(ProgressVerbs, Feed, Export, LedgerVerbs, PresenceVerbs, Watching):
    """All verbs."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="postgres",
            durable=True,
            processes="many",
            settle_memory=SETTLE_MEMORY,
            lease_grain=0.0,
        )

    def vitals(self) -> Vitals:
        return vitals_of(look(self._server), self._sleepers.hears)

    def append(self, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        return self._write(lambda turn: _append(turn, log, pairs))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        return self._write(lambda turn: _logs(turn).read(log, partition, after, limit))

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        numbers = [_bigint(partition), _bigint(offset)]
        known, flaw = self._server.query(
            _COMMIT, (log, group, *numbers, rewind, epoch, self._at), repeatable=not rewind, certain=not rewind
        )[0]
        return committed(known, flaw, log, group, partition, offset, epoch)

    def position(self, log: str, group: str, partition: int) -> int:
        return self._write(lambda turn: _logs(turn).position(log, group, partition))

    def extent(self, log: str) -> list[tuple[int, int]]:
        return self._write(lambda turn: _logs(turn).extent(log))

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self._write(lambda turn: _logs(turn).offset_at(log, partition, instant))

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._write(lambda turn: _logs(turn).trim(log, before, limit))

    def promote(self, limit: int) -> Promotion:
        promotion = super().promote(limit)
        due = due_logs(self._server.query(_OLDEST), self.now)
        if due:
            self._write(lambda turn: _logs(turn).keep_windows(due, turn.now, limit))
        return promotion

    def own(self, log: str, group: str, member: str, span: Span) -> list[Owned]:
        return self._write(lambda turn: _logs(turn).own(log, group, member, span, turn.now))

    def disown(self, log: str, group: str, member: str) -> int:
        return self._write(lambda turn: _logs(turn).disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return self._write(lambda turn: _logs(turn).groups(log, after, limit))


def _append(turn: Turn, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
    entries = _logs(turn).append(log, pairs, turn.now)
    if entries:
        turn.news.add(log)
    return entries


def _bigint(number: object) -> int:
    """What is none is one that never is: the server answers why."""
    return number if type(number) is int and abs(number) <= _BIGINT_MOST else -2


def _logs(turn: Turn) -> SqlLogs:
    return SqlLogs(turn.connection.execute, statement)
