"""An open store: the server, the specs as this process knows them, the clock, the waiters; and the unit of work.

The hot verbs are one call of one function. A general verb is a `UnitOfWork`: a transaction in Python, which first takes
the locks of the queues with gates, lanes or lines whose jobs it changes (`migrations/0004_lanes`). Plain queues have
none.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant
from forebay.core.record_builder import RecordBuilder
from forebay.store.clock import SystemClock
from forebay.store.postgres.connect import Connection, Json, Rows, Server, array_of
from forebay.store.postgres.migrate import prepare
from forebay.store.postgres.specs import Known, Specs
from forebay.store.postgres.waiting import ServerWaiters

_MAX_STARTS: Final = 20
_BEGIN: Final = "SELECT coalesce(%s::bigint, forebay.clock())"
_BEGIN_LOCKED: Final = "SELECT forebay.begin(%s::bigint, %s::integer[], %s::text[], %s::integer[])"
_VERSIONS: Final = (
    "SELECT u.name, coalesce(q.version, 0) FROM unnest(%s::text[]) AS u (name) "
    "LEFT JOIN forebay.queue AS q ON q.name = u.name"
)
_EXPOSE: Final = "SELECT news, ready FROM forebay.expose(%s, %s::text[])"
_REFRESH: Final = "SELECT forebay.refresh(%s, %s, %s::text[])"
TELL: Final = (
    "INSERT INTO forebay.ledger (at, verb, owner, name, tick, spans) "
    "SELECT %s, %s, %s, %s, %s::bigint, %b::json FROM forebay.ledger_rule AS l WHERE l.recording"
)

_encode: Final = msgspec.json.Encoder().encode

T = TypeVar("T")


class Restart(Exception):
    """Something that a unit relied on has changed meanwhile: it starts anew, and leaves nothing.

    `queues`: their specs may have changed; `locked`: the locks of these are needed from the start.
    """

    def __init__(self, queues: Iterable[str] = (), *, locked: Iterable[str] = ()) -> None:
        super().__init__()
        self.queues = list(queues)
        self.locked = list(locked)


class UnitOfWork:
    """One transaction. `news`: queues that may have work now; `eased`: queues that may have room again; `topics`: jobs
    that ended and holders of which something is asked, see `waiting`.

    `locked`: queues whose locks it has. `builder` hears what happens to jobs; whether it is written down is the rule of
    the ledger. `lanes`, by queue, and `lines`: those that jobs came to or left. `exposed`: jobs that became ready since
    the head of their line is gone.
    """

    def __init__(self, connection: Connection, now: Instant, specs: Specs, locked: Iterable[str] = ()) -> None:
        self.connection = connection
        self.locked = set(locked)
        self.lanes: dict[str, set[str]] = {}
        self.lines: set[str] = set()
        self.exposed = 0
        self.now = now
        self.specs = specs
        self.news: set[str] = set()
        self.eased: set[str] = set()
        self.topics: set[str] = set()
        self.builder = RecordBuilder(now)

    def hold(self, queues: Iterable[str]) -> None:
        """Whoever changes jobs of these queues knows their specs and has their locks; else the unit starts anew."""
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
        """A statement that takes an array a column; the last two are JSON."""
        *columns, facts, bodies = zip(*rows, strict=True)
        self.connection.execute(statement, [*map(array_of, columns), list(facts), list(bodies)])

    def write_lanes(self) -> None:
        """Lines expose their heads, lanes have their first jobs, and what has room now is open."""
        if self.lines:
            news, ready = self.fetch(_EXPOSE, (self.now, sorted(self.lines)))[0]
            self.news.update(news)
            self.exposed += ready
        for queue, lanes in sorted(self.lanes.items()):
            self.news.update(self.fetch(_REFRESH, (self.now, queue, sorted(lanes)))[0][0])
        self.lines, self.lanes = set(), {}

    def finish(self) -> None:
        """The last that a unit does: lanes and lines, and the record of it."""
        self.write_lanes()
        self.tell()

    def tell(self) -> None:
        """Write down what the builder has heard; it begins anew."""
        record = self.builder.record()
        self.builder = RecordBuilder(self.now)
        if record is not None:
            spans = Json(_encode(record.spans)) if record.spans else None
            self.execute(TELL, (record.at, record.verb, record.owner, record.name, record.tick, spans))


class Session:
    """An open store, which all parts of the backend share. `clock` is for tests alone: else the server's decides."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        self.server: Final = Server(url)
        try:
            prepare(self.server)
        except BaseException:
            self.server.close()
            raise
        self.clock: Final = clock
        self.specs: Final = Specs(self.server)
        self.waiters: Final = ServerWaiters(self.server, clock or SystemClock(), self.now)

    @property
    def at(self) -> Instant | None:
        """The instant that functions of the server are given; None: they look at their clock."""
        return None if self.clock is None else self.clock.now()

    def now(self) -> Instant:
        at = self.at
        if at is not None:
            return at
        now: Instant = self.server.query("SELECT forebay.clock()")[0][0]
        return now

    def close(self) -> None:
        """No verb works afterwards; waiters wake up and find it closed."""
        self.waiters.close()
        self.server.close()

    def begin_unit(self, connection: Any, queues: Collection[str] = (), keys: Collection[int] = ()) -> UnitOfWork:
        """One in the transaction that the connection is in; with the locks of these queues, and those besides."""
        if not (queues or keys):
            return UnitOfWork(connection, connection.execute(_BEGIN, (self.at,)).fetchall()[0][0], self.specs)
        locks = self.specs.locks(queues, fetch=lambda text, values: connection.execute(text, values).fetchall())
        said = (self.at, sorted({*locks.alone, *keys}), locks.names, locks.versions)
        now = connection.execute(_BEGIN_LOCKED, said).fetchall()[0][0]
        if now is None:
            raise Restart(queues)
        return UnitOfWork(connection, now, self.specs, queues)

    def write(self, work: Callable[[UnitOfWork], T], queues: Iterable[str] = (), keys: Collection[int] = ()) -> T:
        """The answer of the work, once it is durable. `queues`: whose jobs it will change, as far as is known."""
        held = set(queues)
        for _ in range(_MAX_STARTS):
            units: list[UnitOfWork] = []

            def transaction(connection: Connection, units: list[UnitOfWork] = units) -> T:
                unit = self.begin_unit(connection, held, keys)
                answer = work(unit)
                unit.finish()
                units.append(unit)
                return answer

            try:
                answer = self.server.transact(transaction)
            except Restart as restart:
                self.specs.reload(restart.queues)
                held.update(restart.locked)
                continue
            self.waiters.notify(units[-1].news, units[-1].eased, units[-1].topics)
            return answer
        raise StoreFailed(
            self.server.name, f"{_MAX_STARTS} units of work in a row found their queues changed by others"
        )
