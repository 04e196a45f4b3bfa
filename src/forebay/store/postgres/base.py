"""What all verbs share: the server, what is known of the specs, the clock, who sleeps, and the turn of a general verb.

The hot verbs are one call of one function. A general verb is a `Turn`: a transaction in Python, which takes the one
lock of the gates first if gates may be concerned. Turns without gates, and the hot verbs, never wait for that lock.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant
from forebay.core.scribe import Scribe
from forebay.core.spec import QueueSpec
from forebay.store.clock import SystemClock
from forebay.store.gate_tables import SqlTables
from forebay.store.gating import Gates
from forebay.store.postgres.connect import Connection, Json, Rows, Server
from forebay.store.postgres.migrate import prepare
from forebay.store.postgres.queries import statement
from forebay.store.postgres.specs import Known, Specs
from forebay.store.postgres.waiting import Sleepers
from forebay.store.protocol import Capabilities

_STARTS_MOST: Final = 20
_BEGIN: Final = "SELECT coalesce(%s::bigint, forebay.clock())"
_BEGIN_GATED: Final = "SELECT coalesce(%s::bigint, forebay.clock()) FROM forebay.lock_gates() AS locked"
TELL: Final = (
    "INSERT INTO forebay.ledger (at, verb, owner, name, tick, spans) "
    "SELECT %s, %s, %s, %s, %s::bigint, %b::json FROM forebay.ledger_rule AS l WHERE l.recording"
)
SPECS: Final = "SELECT spec FROM forebay.queue WHERE spec IS NOT NULL ORDER BY name"

_encode: Final = msgspec.json.Encoder().encode

T = TypeVar("T")


class Restart(Exception):
    """Something that a turn relied on has changed meanwhile: it starts anew, and leaves nothing.

    `gated`: gates are concerned after all.
    """

    def __init__(self, queues: Iterable[str] = (), *, gated: bool = False) -> None:
        super().__init__()
        self.queues = list(queues)
        self.gated = gated


class Turn:
    """One transaction. `news`: queues that may have work now; `eased`: queues that may have room again; `topics`: jobs
    that ended and holders of which something is asked, see `waiting`.

    `locked`: it has the lock of the gates. `scribe` hears what happens to jobs; whether it is written down is the rule
    of the ledger.
    """

    def __init__(self, connection: Connection, now: Instant, specs: Specs, locked: bool = False) -> None:
        self.connection = connection
        self.locked = locked
        self.now = now
        self.specs = specs
        self.news: set[str] = set()
        self.eased: set[str] = set()
        self.topics: set[str] = set()
        self.scribe = Scribe(now)

    @cached_property
    def gates(self) -> Gates:
        return Gates(SqlTables(self.connection.execute, self.write_rows, list, statement), self.now)

    @property
    def gated(self) -> bool:
        """Whether this turn has touched a gate."""
        return "gates" in self.__dict__

    def known(self, queue: str) -> Known:
        return self.specs.of(queue, self.fetch)

    def fetch(self, statement: str, parameters: Iterable[Any] = ()) -> Rows:
        return self.connection.execute(statement, tuple(parameters)).fetchall()

    def execute(self, statement: str, parameters: Iterable[Any] = ()) -> int:
        """How many rows it changed."""
        return self.connection.execute(statement, tuple(parameters)).rowcount

    def write_rows(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """A statement that takes an array a column."""
        self.connection.execute(statement, [list(column) for column in zip(*rows, strict=True)])

    def write_gates(self) -> None:
        """Put the gates back; whoever touches them again reads them anew."""
        if self.gated:
            self.news.update(self.gates.write())
            del self.gates

    def finish(self) -> None:
        """The last that a turn does: the gates, and the record of it."""
        self.write_gates()
        self.tell()

    def tell(self) -> None:
        """Write down what the scribe has heard; it begins anew."""
        record = self.scribe.record()
        self.scribe = Scribe(self.now)
        if record is not None:
            spans = Json(_encode(record.spans)) if record.spans else None
            self.execute(TELL, (record.at, record.verb, record.owner, record.name, record.tick, spans))


class Base:
    """An open store. `clock` is for tests alone: without it the server's clock decides."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        self._server = Server(url)
        try:
            prepare(self._server)
        except BaseException:
            self._server.close()
            raise
        self._clock = clock
        self._specs = Specs(self._server)
        self._sleepers = Sleepers(self._server, clock or SystemClock(), self.now)

    @property
    def _at(self) -> Instant | None:
        return None if self._clock is None else self._clock.now()

    def now(self) -> Instant:
        at = self._at
        if at is not None:
            return at
        now: Instant = self._server.query("SELECT forebay.clock()")[0][0]
        return now

    def close(self) -> None:
        """No verb works afterwards; sleepers wake up and find it closed."""
        self._sleepers.close()
        self._server.close()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the whole store claims."""

    def specs(self) -> list[QueueSpec]:
        return [QueueSpec.from_json(text) for (text,) in self._server.query(SPECS)]

    def _begin_turn(self, connection: Any, gated: bool) -> Turn:
        """A turn in the transaction that the connection is in; with the lock of the gates, if they may be concerned."""
        begin = _BEGIN_GATED if gated else _BEGIN
        return Turn(connection, connection.execute(begin, (self._at,)).fetchall()[0][0], self._specs, gated)

    def _write(self, work: Callable[[Turn], T], *, gated: bool) -> T:
        """The answer of the work, once it is durable."""
        for _ in range(_STARTS_MOST):
            turns: list[Turn] = []

            def transaction(connection: Connection, turns: list[Turn] = turns, gated: bool = gated) -> T:
                turn = self._begin_turn(connection, gated)
                answer = work(turn)
                turn.finish()
                turns.append(turn)
                return answer

            try:
                answer = self._server.transact(transaction)
            except Restart as restart:
                self._specs.reload(restart.queues)
                gated = gated or restart.gated
                continue
            self._sleepers.hear(turns[-1].news, turns[-1].eased, turns[-1].topics)
            return answer
        raise StoreFailed(self._server.name, f"{_STARTS_MOST} turns in a row found their queues changed by others")
