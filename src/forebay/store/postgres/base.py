"""What all verbs share: the server, what is known of the specs, the clock, who sleeps, and the turn of a general verb.

The hot verbs are one call of one function. A general verb is a `Turn`: a transaction in Python, which first takes the
locks of the queues with gates, lanes or lines whose jobs it changes (`migrations/0004_lanes`). Plain queues have none.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant
from forebay.core.scribe import Scribe
from forebay.core.spec import QueueSpec
from forebay.store.clock import SystemClock
from forebay.store.postgres.connect import Connection, Json, Rows, Server
from forebay.store.postgres.migrate import prepare
from forebay.store.postgres.specs import Known, Specs
from forebay.store.postgres.waiting import Sleepers
from forebay.store.protocol import Capabilities

_STARTS_MOST: Final = 20
_BEGIN: Final = "SELECT coalesce(%s::bigint, forebay.clock())"
_BEGIN_LOCKED: Final = "SELECT forebay.begin(%s::bigint, %s::integer[], %s::text[], %s::integer[])"
_VERSIONS: Final = (
    "SELECT u.name, coalesce(q.version, 0) FROM unnest(%s::text[]) AS u (name) "
    "LEFT JOIN forebay.queue AS q ON q.name = u.name"
)
_EXPOSE: Final = "SELECT forebay.expose(%s, %s::text[])"
_REFRESH: Final = "SELECT forebay.refresh(%s, %s, %s::text[])"
TELL: Final = (
    "INSERT INTO forebay.ledger (at, verb, owner, name, tick, spans) "
    "SELECT %s, %s, %s, %s, %s::bigint, %b::json FROM forebay.ledger_rule AS l WHERE l.recording"
)
SPECS: Final = "SELECT spec FROM forebay.queue WHERE spec IS NOT NULL ORDER BY name"

_encode: Final = msgspec.json.Encoder().encode

T = TypeVar("T")


class Restart(Exception):
    """Something that a turn relied on has changed meanwhile: it starts anew, and leaves nothing.

    `queues`: their specs may have changed; `locked`: the locks of these are needed from the start.
    """

    def __init__(self, queues: Iterable[str] = (), *, locked: Iterable[str] = ()) -> None:
        super().__init__()
        self.queues = list(queues)
        self.locked = list(locked)


class Turn:
    """One transaction. `news`: queues that may have work now; `eased`: queues that may have room again; `topics`: jobs
    that ended and holders of which something is asked, see `waiting`.

    `locked`: queues whose locks it has. `scribe` hears what happens to jobs; whether it is written down is the rule of
    the ledger. `lanes`, by queue, and `lines`: those that jobs came to or left.
    """

    def __init__(self, connection: Connection, now: Instant, specs: Specs, locked: Iterable[str] = ()) -> None:
        self.connection = connection
        self.locked = set(locked)
        self.lanes: dict[str, set[str]] = {}
        self.lines: set[str] = set()
        self.now = now
        self.specs = specs
        self.news: set[str] = set()
        self.eased: set[str] = set()
        self.topics: set[str] = set()
        self.scribe = Scribe(now)

    def hold(self, queues: Iterable[str]) -> None:
        """Whoever changes jobs of these queues knows their specs and has their locks; else the turn starts anew."""
        fresh = sorted(set(queues) - self.locked)
        if not fresh:
            return
        stale = [name for name, version in self.fetch(_VERSIONS, (fresh,)) if version != self.known(name).version]
        if stale or any(self.known(name).keys for name in fresh):
            raise Restart(stale, locked=fresh)
        self.locked.update(fresh)

    def touch(self, queue: str, lane: str, line: str | None) -> None:
        """A job came there or left."""
        if line is not None:
            self.lines.add(line)
        if lane or self.known(queue).laned:
            self.lanes.setdefault(queue, set()).add(lane)

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

    def write_lanes(self) -> None:
        """Lines expose their heads, lanes have their first jobs, and what has room now is open."""
        if self.lines:
            self.news.update(self.fetch(_EXPOSE, (self.now, sorted(self.lines)))[0][0])
        for queue, lanes in sorted(self.lanes.items()):
            self.news.update(self.fetch(_REFRESH, (self.now, queue, sorted(lanes)))[0][0])
        self.lines, self.lanes = set(), {}

    def finish(self) -> None:
        """The last that a turn does: lanes and lines, and the record of it."""
        self.write_lanes()
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

    def _begin_turn(self, connection: Any, queues: Collection[str] = (), keys: Collection[int] = ()) -> Turn:
        """A turn in the transaction that the connection is in; with the locks of these queues, and those besides."""
        if not (queues or keys):
            return Turn(connection, connection.execute(_BEGIN, (self._at,)).fetchall()[0][0], self._specs)
        locks = self._specs.locks(queues, fetch=lambda text, values: connection.execute(text, values).fetchall())
        said = (self._at, sorted({*locks.alone, *keys}), locks.names, locks.versions)
        now = connection.execute(_BEGIN_LOCKED, said).fetchall()[0][0]
        if now is None:
            raise Restart(queues)
        return Turn(connection, now, self._specs, queues)

    def _write(self, work: Callable[[Turn], T], queues: Iterable[str] = (), keys: Collection[int] = ()) -> T:
        """The answer of the work, once it is durable. `queues`: whose jobs it will change, as far as is known."""
        held = set(queues)
        for _ in range(_STARTS_MOST):
            turns: list[Turn] = []

            def transaction(connection: Connection, turns: list[Turn] = turns) -> T:
                turn = self._begin_turn(connection, held, keys)
                answer = work(turn)
                turn.finish()
                turns.append(turn)
                return answer

            try:
                answer = self._server.transact(transaction)
            except Restart as restart:
                self._specs.reload(restart.queues)
                held.update(restart.locked)
                continue
            self._sleepers.hear(turns[-1].news, turns[-1].eased, turns[-1].topics)
            return answer
        raise StoreFailed(self._server.name, f"{_STARTS_MOST} turns in a row found their queues changed by others")
