"""`PostgresStore`: every verb of the contract on a Postgres database, for the processes of many machines.

Durable before every answer. The server's clock alone decides; a clock may be injected by tests.
"""

from collections.abc import Sequence

from forebay.core.clock import Clock
from forebay.core.event import LogEntry
from forebay.core.features import Feature
from forebay.core.instant import Instant, checked_instant
from forebay.core.names import check_name
from forebay.store.checks import check_limit, checked_entries
from forebay.store.postgres.base import Turn
from forebay.store.postgres.export import Export
from forebay.store.postgres.feed import Feed
from forebay.store.postgres.health import look, vitals_of
from forebay.store.postgres.ledger import LedgerVerbs
from forebay.store.postgres.queries import statement
from forebay.store.postgres.tend import SETTLE_MEMORY
from forebay.store.protocol import Capabilities, Vitals
from forebay.store.sql_logs import SqlLogs
from forebay.store.unbuilt import POSTGRES, Unbuilt, unbuilt


class PostgresStore(Feed, Export, LedgerVerbs, Unbuilt):
    """The production store."""

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
            lacks=POSTGRES,
        )

    def vitals(self) -> Vitals:
        return vitals_of(look(self._server), self._sleepers.hears)

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        log = check_name("log", log)
        pairs = checked_entries(bodies, keys)
        return self._write(lambda turn: _logs(turn).append(log, pairs, turn.now), gated=False)

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        check_limit("read", limit)
        log = check_name("log", log)
        return self._write(lambda turn: _logs(turn).read(log, partition, after, limit), gated=False)

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False, epoch: int | None = None
    ) -> int:
        if epoch is not None:
            raise unbuilt("postgres", Feature.GROUPS)
        log, group = check_name("log", log), check_name("group", group)
        return self._write(lambda turn: _logs(turn).commit(log, group, partition, offset, rewind), gated=False)

    def position(self, log: str, group: str, partition: int) -> int:
        log = check_name("log", log)
        return self._write(lambda turn: _logs(turn).position(log, group, partition), gated=False)

    def extent(self, log: str) -> list[tuple[int, int]]:
        log = check_name("log", log)
        return self._write(lambda turn: _logs(turn).extent(log), gated=False)

    def trim(self, log: str, before: Instant, limit: int) -> int:
        check_limit("trim", limit)
        log = check_name("log", log)
        checked_instant("before", before)
        return self._write(lambda turn: _logs(turn).trim(log, before, limit), gated=False)


def _logs(turn: Turn) -> SqlLogs:
    return SqlLogs(turn.connection.execute, statement)
