"""An open store: the server, the cached specs, the clock and the waiters, and the unit of work.

The hot verbs are one call of one function. A general verb is a `UnitOfWork`: a transaction in Python that first takes
the locks of the queues with gates, lanes or lines whose jobs it changes (`migrations/0004_lanes`). Plain queues have
none. Every insert, claim and settle carries the versions of the specs that it relies on; the server refuses it when one
has changed, and the caller reads the specs again. So all processes follow a new spec at once, at no cost for each call.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import StoreFailed
from forebay.core.gate import check_cost, gates_among, is_shared, lane_terms
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.policy import Bounded, Fifo, InOrder, terms_of
from forebay.core.record_builder import RecordBuilder
from forebay.core.spec import QueueSpec
from forebay.core.stamp import BY_TIME, Stamper, rank_rule
from forebay.store.clock import SystemClock
from forebay.store.postgres.connect import Connection, JsonParameter, Rows, Server, array_literal
from forebay.store.postgres.migrate import prepare
from forebay.store.postgres.runs import Stamp
from forebay.store.postgres.waiting import ServerWaiters

_MAX_STARTS: Final = 20
_READ_SPECS: Final = "SELECT name, version, spec FROM forebay.queue WHERE name = ANY (%s)"
_BEGIN: Final = "SELECT coalesce(%s::bigint, forebay.clock())"
_BEGIN_LOCKED: Final = "SELECT forebay.begin_unit(%s::bigint, %s::integer[], %s::text[], %s::integer[])"
_VERSIONS: Final = (
    "SELECT u.name, coalesce(q.version, 0) FROM unnest(%s::text[]) AS u (name) "
    "LEFT JOIN forebay.queue AS q ON q.name = u.name"
)
_EXPOSE: Final = "SELECT has_work, ready FROM forebay.expose(%s, %s::text[])"
_REFRESH: Final = "SELECT forebay.refresh(%s, %s, %s::text[])"
INSERT_RECORD: Final = (
    "INSERT INTO forebay.ledger (at, verb, owner, name, tick, ranges) "
    "SELECT %s, %s, %s, %s, %s::bigint, %b::json FROM forebay.ledger_rule AS l WHERE l.recording"
)

_encode: Final = msgspec.json.Encoder().encode

Fetch = Callable[[str, Iterable[Any]], Rows]
T = TypeVar("T")


def lock_key(name: str) -> int:
    """The advisory lock of a queue, or of a gate that queues share."""
    return crc32(name.encode()) - 2**31


def gate_lock_key(gate: str) -> int:
    """The lock under which a gate changes: its own where queues may share it, else that of its queue."""
    sort, of, *_ = gate.split("/")
    return lock_key(f"{sort}/{of}" if sort == "until" or of.startswith("@") else of)


class Locks(NamedTuple):
    """The locks that a verb takes before it reads anything, exclusive and shared ones.

    `names` and `versions` are those of the specs from which the locks follow.
    """

    exclusive: list[int]
    shared: list[int]
    names: list[str]
    versions: list[int]


class KnownSpec:
    """What follows from one version of a spec.

    direct       its jobs need nothing but their stamps
    laned        its jobs have classes that share, or gates of their own
    lined        its jobs are in lines
    serial       claims of it are serial: more matters than which ready job is next
    lock_keys    the locks that every verb of the queue takes, except claims of a queue that has only lines
    keeps_done   acknowledged jobs stay readable
    """

    def __init__(self, name: str, version: int, text: str | None) -> None:
        spec = QueueSpec(name=name) if text is None else QueueSpec.from_json(text)
        self.version = version
        self.spec = spec
        self.stamper = Stamper(spec)
        self.bounded = isinstance(spec.capacity, Bounded)
        terms = terms_of(spec.eligibility)
        self.lined = spec.merge is not None or any(isinstance(term, InOrder) for term in terms)
        self.direct = not (self.bounded or self.lined or spec.is_log or spec.is_broker)
        self.terms = lane_terms(spec)
        self.laned = spec.share is not None or bool(self.terms)
        self.serial = self.laned or bool(self.stamper.whole)
        gates = [*(gate.name for gate in self.stamper.whole), *(prefix for prefix, _, _ in self.terms)]
        self.lock_key = lock_key(name)
        self.lock_keys = {self.lock_key, *map(gate_lock_key, gates)} if self.serial or self.lined else set()
        self.by_time = isinstance(spec.selection, Fifo)
        self.keeps_done = self.stamper.kept_until(0) != 0
        alike = self.by_time and not self.laned
        self._only = Stamp(BY_TIME, spec.routing.max_attempts, "", 1) if alike else None

    @property
    def is_plain(self) -> bool:
        """Whether a job needs nothing but the time: no rank, class, gate, bound, merge or route."""
        return self.direct and not self.serial and self.by_time

    def stamp(self, draft: Draft) -> Stamp:
        """For a draft without a line."""
        if draft.cost > 1 and self.stamper.gated:
            check_cost(self.spec, draft)
        if self._only is not None and draft.max_attempts is None and draft.cost == 1:
            return self._only
        max_attempts = draft.max_attempts or self.spec.routing.max_attempts
        gates = gates_among(self.terms, draft) if self.terms else ()
        return Stamp(rank_rule(self.spec.selection, draft), max_attempts, self.stamper.cls(draft), draft.cost, gates)

    @property
    def columns(self) -> tuple[Any, ...]:
        """The spec's gates, lanes and shares as the columns of its row, for the functions of the server."""
        share = self.spec.share
        whole = [
            {"name": gate.name, "slots": gate.limit, "step": gate.step, "shared": is_shared(gate.name)}
            for gate in self.stamper.whole
        ]
        terms = [
            {"prefix": prefix, "exact": per is None, "slots": gate.limit, "step": gate.step}
            for prefix, per, gate in self.terms
        ]
        weights = (None, None) if share is None else (_json(share.weights), share.default)
        return (self.laned, _json(whole), _json(terms), *weights)


class SpecCache:
    """Specs by the name of their queue. `walked`: the last key by state that a sweep has examined."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[str, KnownSpec] = {}
        self.walked = ("", "")
        self._serial: set[str] = set()

    def mark_serial(self, names: Iterable[str]) -> None:
        """These queues have lanes of an older spec: until they get another one, claims of them are serial."""
        self._serial.update(names)

    def is_serial(self, name: str) -> bool:
        return name in self._serial or self.of(name).serial

    def locks(self, names: Iterable[str], claimed: Iterable[str] = (), fetch: Fetch | None = None) -> Locks:
        """Those of a verb that changes jobs of `names` and claims from `claimed`; `fetch` as in `reload`."""
        names, claimed = set(names), set(claimed)
        known = {name: self.of(name, fetch) for name in sorted(names | claimed)}
        exclusive: set[int] = set()
        shared: set[int] = set()
        for name, each in known.items():
            if self.is_serial(name) or (each.lock_keys and name in names):
                exclusive |= each.lock_keys or {each.lock_key}
            else:
                shared.add(each.lock_key)
        versions = [each.version for each in known.values()]
        return Locks(sorted(exclusive), sorted(shared - exclusive), list(known), versions)

    def of(self, name: str, fetch: Fetch | None = None) -> KnownSpec:
        known = self._known.get(name)
        if known is None:
            self.reload([name], fetch)
            known = self._known[name]
        return known

    def reload(self, names: Iterable[str], fetch: Fetch | None = None) -> None:
        """Read these specs again. A unit of work reads them by its own connection: if each of many units waited for a
        second connection, the pool could run empty with all of them waiting."""
        names = list(names)
        found = {name: (version, text) for name, version, text in (fetch or self._server.query)(_READ_SPECS, (names,))}
        for name in names:
            version, text = found.get(name, (0, None))
            known = self._known.get(name)
            if known is None or known.version != version:
                self._serial.discard(name)
                self._known[name] = KnownSpec(name, version, text)


def _json(value: object) -> str:
    return _encode(value).decode()


class Restart(Exception):
    """What a unit relied on has changed meanwhile: it is rolled back and starts again.

    `queues`: their specs may have changed; `locked`: it needs the locks of these from the start.
    """

    def __init__(self, queues: Iterable[str] = (), *, locked: Iterable[str] = ()) -> None:
        super().__init__()
        self.queues = list(queues)
        self.locked = list(locked)


class UnitOfWork:
    """One transaction. `builder` collects its record; the rule of the ledger decides whether it is written.

    has_work  queues that may have work now
    has_room  queues that may have room again
    topics    jobs that ended and holders with cancel requests, see `waiting`
    locked    queues whose locks it has
    lanes     by queue, the lanes that jobs entered or left; `lines`: the same for lines
    exposed   jobs that became ready since the head of their line is gone
    """

    def __init__(self, connection: Connection, now: Instant, specs: SpecCache, locked: Iterable[str] = ()) -> None:
        self.connection = connection
        self.locked = set(locked)
        self.lanes: dict[str, set[str]] = {}
        self.lines: set[str] = set()
        self.exposed = 0
        self.now = now
        self.specs = specs
        self.has_work: set[str] = set()
        self.has_room: set[str] = set()
        self.topics: set[str] = set()
        self.builder = RecordBuilder(now)

    def require_locks(self, queues: Iterable[str]) -> None:
        """Restart unless the specs of these queues are current and their locks are held."""
        fresh = sorted(set(queues) - self.locked)
        if not fresh:
            return
        stale = [name for name, version in self.fetch(_VERSIONS, (fresh,)) if version != self.known(name).version]
        if stale or any(self.known(name).lock_keys for name in fresh):
            raise Restart(stale, locked=fresh)
        self.locked.update(fresh)

    def touch(self, queue: str, lane: str, line: str | None) -> None:
        """A job entered this lane and line, or left them."""
        if line is not None:
            self.lines.add(line)
        if lane or self.known(queue).laned:
            self.lanes.setdefault(queue, set()).add(lane)

    def known(self, queue: str) -> KnownSpec:
        return self.specs.of(queue, self.fetch)

    def fetch(self, statement: str, parameters: Iterable[Any] = ()) -> Rows:
        return self.connection.execute(statement, tuple(parameters)).fetchall()

    def execute(self, statement: str, parameters: Iterable[Any] = ()) -> int:
        """How many rows it changed."""
        return self.connection.execute(statement, tuple(parameters)).rowcount

    def write_rows(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """A statement that takes an array for each column; the last two are JSON."""
        *columns, facts, bodies = zip(*rows, strict=True)
        self.connection.execute(statement, [*map(array_literal, columns), list(facts), list(bodies)])

    def write_lanes(self) -> None:
        """Expose the heads of lines, bring lanes up to date, open what has room now."""
        if self.lines:
            has_work, ready = self.fetch(_EXPOSE, (self.now, sorted(self.lines)))[0]
            self.has_work.update(has_work)
            self.exposed += ready
        for queue, lanes in sorted(self.lanes.items()):
            self.has_work.update(self.fetch(_REFRESH, (self.now, queue, sorted(lanes)))[0][0])
        self.lines, self.lanes = set(), {}

    def finish(self) -> None:
        """Write what belongs to the end of a unit: lanes, lines and the record."""
        self.write_lanes()
        self.write_record()

    def write_record(self) -> None:
        """Write what the builder has collected, and start with a new builder."""
        record = self.builder.record()
        self.builder = RecordBuilder(self.now)
        if record is not None:
            ranges = JsonParameter(_encode(record.ranges)) if record.ranges else None
            self.execute(INSERT_RECORD, (record.at, record.verb, record.owner, record.name, record.tick, ranges))


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
        self.specs: Final = SpecCache(self.server)
        self.waiters: Final = ServerWaiters(self.server, clock or SystemClock(), self.now)

    @property
    def at(self) -> Instant | None:
        """The instant that functions of the server are given; None: they read the server's clock."""
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
        """A unit in the current transaction of the connection, with the locks of these queues and the locks `keys`."""
        if not (queues or keys):
            return UnitOfWork(connection, connection.execute(_BEGIN, (self.at,)).fetchall()[0][0], self.specs)
        locks = self.specs.locks(queues, fetch=lambda text, values: connection.execute(text, values).fetchall())
        arguments = (self.at, sorted({*locks.exclusive, *keys}), locks.names, locks.versions)
        now = connection.execute(_BEGIN_LOCKED, arguments).fetchall()[0][0]
        if now is None:
            raise Restart(queues)
        return UnitOfWork(connection, now, self.specs, queues)

    def write(self, work: Callable[[UnitOfWork], T], queues: Iterable[str] = (), keys: Collection[int] = ()) -> T:
        """The result of the work, once it is durable. `queues`: whose jobs it will change, as far as is known."""
        locked = set(queues)
        for _ in range(_MAX_STARTS):
            units: list[UnitOfWork] = []

            def transaction(connection: Connection, units: list[UnitOfWork] = units) -> T:
                unit = self.begin_unit(connection, locked, keys)
                result = work(unit)
                unit.finish()
                units.append(unit)
                return result

            try:
                result = self.server.transact(transaction)
            except Restart as restart:
                self.specs.reload(restart.queues)
                locked.update(restart.locked)
                continue
            self.waiters.notify(units[-1].has_work, units[-1].has_room, units[-1].topics)
            return result
        raise StoreFailed(
            self.server.name, f"{_MAX_STARTS} units of work in a row found their queues changed by others"
        )
