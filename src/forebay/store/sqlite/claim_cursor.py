"""The cursor of a claim over a queue with lanes, loaded from the tables as the rules need it (`engine.lanes`).

Classes come by their turns, lanes by their heads and jobs by their ranks, a page at a time, so a claim reads little
more than it claims. `write` puts back what the claim changed. Without it nothing is changed: `wait` uses it so.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from forebay.core.gate import Gate, is_shared
from forebay.core.instant import Instant
from forebay.core.limits import LANES_MET, MAX_INSTANT, MIN_INTEGER
from forebay.engine.lanes import Class, GateState, Lane, Lanes, QueueLanes, Taken, opening, starts_at
from forebay.engine.order import Key, More, Order
from forebay.store.sqlite.gates import Gates, LaneTable
from forebay.store.sqlite.tables import QueueCounters, lane_name, statement
from forebay.store.states import READY

_MIN_PAGE: Final = 16
_MAX_PAGE: Final = 256
_AHEAD: Final = 2
"""How many lanes of a class are loaded with it: with fewer, that is all of them."""

_MANY: Final = 1 << 40
"""How many lanes a class has, as far as the rules need to know: not all of them are loaded."""

_NEXT: Final = statement("next_of_lane")
_JOBS_OF_LANES: Final = statement("jobs_of_lanes")
_LANES_OF_CLASSES: Final = statement("lanes_of_classes")
_OPEN_LANES: Final = statement("open_lanes")
_PARKED_LANES: Final = statement("parked_lanes")
_PARKED_OF_CLASS: Final = statement("parked_of_class")
_WITH_PARKED: Final = statement("gates_with_parked")
_WOKEN: Final = statement("woken")
_SLEEP: Final = statement("sleep_again")
_WAKE: Final = statement("wake")
_CLASS: Final = statement("class")
_BY_TURN: Final = statement("classes_by_turn")
_OF_TURN: Final = statement("classes_of_turn")
_CLASSES: Final = statement("classes_of_lanes")
_PUT_LANE: Final = statement("put_lane")
_PUT_CLASS: Final = statement("put_class")


PageKey: TypeAlias = tuple[int | str, ...]


class ReadyHead(NamedTuple):
    """A ready job. Expired jobs are dead before anything is claimed."""

    rank: int
    id: int
    cost: int
    lane: str
    expires_at: Instant | None = None


class LaneJobs:
    """The ready jobs of a lane in order; the longer it is read, the larger the pages."""

    __slots__ = ("_connection", "_jobs", "_last", "_next", "_page", "_queue", "lane")

    def __init__(
        self, connection: sqlite3.Connection, queue: str, lane: str, page: int, first: list[ReadyHead] | None = None
    ) -> None:
        self._connection = connection
        self._queue = queue
        self.lane = lane
        self._page = page
        self._jobs: list[ReadyHead] = []
        self._next = 0
        self._last: tuple[int, int] | None = (MIN_INTEGER, 0)
        if first is not None:
            self._take_in(first)

    def head(self) -> tuple[int, int, ReadyHead] | None:
        if self._next == len(self._jobs) and not self._load():
            return None
        job = self._jobs[self._next]
        return job.rank, job.id, job

    def pop(self) -> None:
        self._next += 1

    def _load(self) -> bool:
        if self._last is None:
            return False
        found = self._connection.execute(_NEXT, (self._queue, self.lane, *self._last, self._page)).fetchall()
        self._take_in([ReadyHead(rank, job_id, cost, self.lane) for rank, job_id, cost in found])
        return bool(found)

    def _take_in(self, jobs: list[ReadyHead]) -> None:
        self._jobs, self._next = jobs, 0
        self._last = jobs[-1][:2] if len(jobs) == self._page else None
        self._page *= 4


_Lane: TypeAlias = Lane[ReadyHead]
_Class: TypeAlias = Class[ReadyHead]
_QueueLanes: TypeAlias = QueueLanes[ReadyHead]


class LaneRow(NamedTuple):
    """A lane as its row has it, or is to have it."""

    rank: int
    id: int
    turn: int
    at: str | None


class LoadedLanes(Lanes[ReadyHead]):
    """The rules over what one unit of work has loaded."""

    def __init__(self, gates: Gates, now: Instant) -> None:
        super().__init__()
        self.now = now
        self.table = gates

    def new_state(self, name: str) -> GateState:
        return self.table.state(name)

    def load(self, queue_lanes: _QueueLanes, of: _Class, gates: Iterable[Gate], jobs: LaneJobs) -> _Lane:
        """A lane as it is stored, open or parked."""
        lane = Lane(of, lane_name(jobs.lane).gates, jobs, self._numbered(queue_lanes, gates))
        for _, state in lane.gates:
            state.refs += 1
        queue_lanes.lanes[of.name, lane.names] = lane
        return lane

    def number(self, queue_lanes: _QueueLanes, gate: Gate) -> GateState:
        return self._numbered(queue_lanes, (gate,))[0][1]


class LaneCursor:
    """The cursor over one queue. `count`: how many jobs are wanted of it.

    `_turn`: all classes before it are loaded; `_tied`: of those with this turn, all whose first job is not after it.
    """

    def __init__(
        self, connection: sqlite3.Connection, rules: LoadedLanes, queue: QueueCounters, count: int = 1
    ) -> None:
        self._connection = connection
        self._rules = rules
        self._queue = queue
        self._page = count
        self._size = min(max(count, _MIN_PAGE), _MAX_PAGE)
        self._shares = queue.spec.share is not None
        self._turn = MIN_INTEGER
        self._tied: tuple[int, int] | None = None
        self._rows: dict[str, LaneRow] = {}
        self._lanes: dict[str, _Lane] = {}
        self._classes: dict[str, tuple[int, bool]] = {}
        self._jobs: dict[str, LaneJobs] = {}
        self._met: set[str] = set()
        self._woken: set[str] = set()
        self._changed: dict[str, None] = {}
        self._queue_lanes: _QueueLanes = QueueLanes(queue.name, rules)
        self._load()

    def take(self, count: int, cls: str | None) -> Taken[ReadyHead]:
        """The jobs of a claim; `write` makes it so."""
        if cls is not None:
            self._load_class(cls)
        taken = self._rules.take(self._queue_lanes, count, self._rules.now, cls)
        self._changed |= dict.fromkeys([*taken.gates, *(lane.at.name for lane in taken.parked if lane.at is not None)])
        self._park_at_rates(taken)
        return taken

    def workable_at(self) -> Instant:
        """When a claim may find something if nothing happens: now, later at a rate, or never."""
        at = self._rules.workable_at(self._queue_lanes, self._rules.now)
        return min(at, self._rules.next_opening() or MAX_INSTANT)

    def write(self, table: LaneTable) -> None:
        """Put back what claims changed."""
        queue = self._queue
        lanes: list[tuple[Any, ...]] = []
        empty: list[str] = []
        for name, lane in self._lanes.items():
            if name:
                if lane.head is None:
                    empty.append(name)
                    continue
                turn = lane.cls.turn if lane.at is not None else 0
                rank, job_id = lane.head
                row = LaneRow(rank, job_id, turn, None if lane.at is None else lane.at.name)
                if row != self._rows[name]:
                    lanes.append((queue.name, name, *row))
        self._connection.executemany(_PUT_LANE, lanes)
        table.drop(queue.name, empty)
        if self._shares:
            self._write_classes()
        self._write_gates()

    def _write_classes(self) -> None:
        rows = []
        for name, of in self._queue_lanes.classes.items():
            turn, was_open = self._classes.get(name, (None, False))
            if was_open or turn != of.turn or of in self._queue_lanes.order:
                is_open = of.open.first() is not None
                if (of.turn, is_open) != (turn, was_open):
                    rows.append((self._queue.name, name, of.turn, is_open))
        self._connection.executemany(_PUT_CLASS, rows)
        if self._queue.turn != self._queue_lanes.turn:
            self._queue.turn, self._queue.changed = self._queue_lanes.turn, True

    def _write_gates(self) -> None:
        """Gates that have room for parked lanes are awake, the others are not; of rates it is known when they open."""
        queue, now = self._queue.name, self._rules.now
        for name in {**dict.fromkeys(self._woken), **self._changed}:
            state = self._rules.table.state(name)
            gate, parked = state.numbers.get(queue), state.parked.get(queue)
            first = None if gate is None or parked is None else parked.first()
            is_open = gate is not None and first is not None and state.is_open(gate, first.cost, now)
            if is_open != (name in self._woken):
                self._connection.execute(_WAKE if is_open else _SLEEP, (queue, name))
            if gate is not None and gate.step and first is not None and not is_open:
                at, known = opening(gate, state, first.cost), self._rules.table.wake_at[name]
                if is_shared(name) and known is not None:
                    at = min(at, known)
                self._rules.table.wake_at[name] = at if at < MAX_INSTANT else None

    def _load(self) -> None:
        queue_lanes, queue, stamper = self._queue_lanes, self._queue, self._queue.known.stamper
        self._rules.table.load(gate.name for gate in stamper.whole)
        self._rules.by_queue[queue.name] = queue_lanes
        self._rules.configure(queue_lanes, stamper.whole, stamper.weight if self._shares else None, stamper.gates)
        queue_lanes.clear(self._more_classes if self._shares else None)
        queue_lanes.turn = queue.turn
        classes = [] if self._shares else [cls for (cls,) in self._connection.execute(_CLASSES, (queue.name,))]
        if queue.counts[READY] > queue.laned and "" not in classes:
            classes.append("")
        for cls in classes:
            queue_lanes.order.put(self._class(cls))
        woken = [name for (name,) in self._connection.execute(_WOKEN, (queue.name, LANES_MET))]
        gates = stamper.gates(woken)
        self._load_gates(gates)
        self._woken = set(woken)
        for gate in gates:
            state = self._rules.number(queue_lanes, gate)
            if queue.name in state.parked:
                queue_lanes.order.put(state)

    def _load_class(self, cls: str) -> None:
        """A claim of one class reads all of its lanes, parked or not."""
        of = self._class(cls)
        found = self._connection.execute(_PARKED_OF_CLASS, (self._queue.name, cls, LANES_MET)).fetchall()
        self._load_gates(gate for lane, *_ in found for gate in self._queue.known.gates(lane))
        for lane, rank, job_id, turn, at in found:
            self._add_parked(lane, of, LaneRow(rank, job_id, turn, at))

    def _class(self, name: str) -> _Class:
        of = self._queue_lanes.classes.get(name)
        if of is not None:
            return of
        turn, is_open = self._queue.turn if self._shares else 0, False
        if self._shares and (found := self._connection.execute(_CLASS, (self._queue.name, name)).fetchone()):
            turn, is_open = found
            self._classes[name] = (turn, bool(is_open))
        return self._new_class(name, turn)

    def _new_class(self, name: str, turn: int, first: Sequence[Any] | None = None) -> _Class:
        more: More | None = None
        of: _Class = Class(name, turn, lambda: None if more is None else more())
        add = partial(self._add_open, of)
        more = self._pager(_OPEN_LANES, (self._queue.name, name), (MIN_INTEGER, 0), add, first)
        of.lanes = _MANY
        self._queue_lanes.classes[name] = of
        if not name and self._queue.counts[READY] > self._queue.laned:
            of.open.put(self._lane("", of, LaneRow(0, 0, 0, None)))
        return of

    def _more_classes(self) -> Key | None:
        """The next classes by their turns; of more than a page with the same turn, those with the first jobs."""
        execute, queue, wanted = self._connection.execute, self._queue.name, self._size - len(self._queue_lanes.classes)
        size = wanted if wanted >= _MIN_PAGE else self._size
        if self._tied is None:
            found = execute(_BY_TURN, (queue, self._turn, size)).fetchall()
            whole = found if len(found) < size else [each for each in found if each[0] < found[-1][0]]
            self._add_classes(whole)
            if len(found) < size:
                return None
            self._turn = found[-1][0]
            if whole:
                return (self._turn,)
            self._tied = (MIN_INTEGER, -1)
        found = execute(_OF_TURN, (queue, self._turn, *self._tied, size)).fetchall()
        self._add_classes([each[:2] for each in found])
        if len(found) == size:
            self._tied = found[-1][2:]
            return self._turn, *self._tied
        self._tied, self._turn = None, self._turn + 1
        return (self._turn,)

    def _add_classes(self, found: Sequence[Any]) -> None:
        """Classes come with their first lanes, and these with their first jobs."""
        self._share_page(len(found))
        names = [name for _, name in found if name not in self._queue_lanes.classes]
        first: dict[str, list[Any]] = {name: [] for name in names}
        for cls, *lane in self._connection.execute(_LANES_OF_CLASSES, (json.dumps(names), self._queue.name, _AHEAD)):
            first[cls].append(lane)
        self._load_jobs([lane[-1] for lanes in first.values() for lane in lanes])
        for turn, name in found:
            of = self._queue_lanes.classes.get(name)
            if of is None:
                self._classes[name] = (turn, True)
                of = self._new_class(name, turn, sorted(first[name]))
            self._queue_lanes.order.put(of)

    def _add_open(self, of: _Class, found: Sequence[Any]) -> Key:
        if not self._shares:
            self._share_page(len(found))
        self._load_gates(gate for *_, lane in found for gate in self._queue.known.gates(lane))
        self._load_jobs([lane for *_, lane in found])
        for rank, job_id, name in found:
            if name not in self._lanes:
                of.open.put(self._lane(name, of, LaneRow(rank, job_id, 0, None)))
        return tuple(found[-1][:2]) if found else ()

    def _add_parked_at(self, state: GateState, found: Sequence[Any]) -> Key:
        self._load_gates(gate for *_, lane, _ in found for gate in self._queue.known.gates(lane))
        self._load_jobs([lane for *_, lane, _ in found])
        for turn, rank, job_id, name, cls in found:
            self._add_parked(name, self._class(cls), LaneRow(rank, job_id, turn, state.name))
        return found[-1][:3] if found else ()

    def _load_jobs(self, lanes: Sequence[str]) -> None:
        """The first jobs of several lanes at once."""
        lanes = [lane for lane in lanes if lane not in self._lanes and lane not in self._jobs]
        if len(lanes) < _AHEAD:
            return
        first: dict[str, list[ReadyHead]] = {lane: [] for lane in lanes}
        wanted = (json.dumps(lanes), self._queue.name, self._page)
        for lane, rank, job_id, cost in self._connection.execute(_JOBS_OF_LANES, wanted):
            first[lane].append(ReadyHead(rank, job_id, cost, lane))
        for lane, jobs in first.items():
            self._jobs[lane] = LaneJobs(self._connection, self._queue.name, lane, self._page, sorted(jobs))

    def _add_parked(self, name: str, of: _Class, row: LaneRow) -> None:
        if name in self._lanes or row.at is None:
            return
        lane = self._lane(name, of, row)
        state = self._rules.table.state(row.at)
        lane.at = state
        of.parked[lane] = self._queue_lanes.parked[lane] = None
        state.parked.setdefault(self._queue.name, Order(Lane.place)).put(lane)

    def _lane(self, name: str, of: _Class, row: LaneRow) -> _Lane:
        jobs = self._jobs.pop(name, None) or LaneJobs(self._connection, self._queue.name, name, self._page)
        lane = self._lanes[name] = self._rules.load(self._queue_lanes, of, self._queue.known.gates(name), jobs)
        self._rows[name] = row
        return lane

    def _load_gates(self, gates: Iterable[Gate]) -> None:
        """Load these gates, and find out at which of them lanes are parked."""
        names = list({gate.name: None for gate in gates if gate.name not in self._met})
        if not names:
            return
        self._met.update(names)
        self._rules.table.load(names)
        for (name,) in self._connection.execute(_WITH_PARKED, (json.dumps(names), self._queue.name)).fetchall():
            state = self._rules.table.state(name)
            start = (MIN_INTEGER, MIN_INTEGER, 0)
            more = self._pager(_PARKED_LANES, (name, self._queue.name), start, partial(self._add_parked_at, state))
            state.parked[self._queue.name] = Order(Lane.place, more)

    def _park_at_rates(self, taken: Taken[ReadyHead]) -> None:
        """What a rate holds from now on is parked at once: then it is known when that opens."""
        spent = {
            name for name, state in taken.gates.items() if (gate := state.numbers.get(self._queue.name)) and gate.step
        }
        if not spent:
            return
        for lane in list(self._lanes.values()):
            if lane.at is None and not spent.isdisjoint(lane.names) and lane.head is not None:
                closed = self._rules.closed_gate(self._queue_lanes, lane)
                if closed is not None:
                    self._rules.park(self._queue_lanes, lane, closed)
                    self._changed[closed.name] = None

    def _share_page(self, parts: int) -> None:
        """Of each of many lanes little is loaded at once."""
        self._page = max(2, 1 + 5 * self._page // (4 * max(parts, 1)))

    def _pager(
        self,
        text: str,
        of: PageKey,
        start: PageKey,
        add: Callable[[Sequence[Any]], Key],
        first: Sequence[Any] | None = None,
    ) -> More:
        """Pages of a statement that continues behind a place; `add` loads one and returns the key of its end.

        The first columns of a page are those of its end, in the order of the statement. `first` is known already.
        """
        last = start

        def more() -> Key | None:
            nonlocal last, first
            size, found = _AHEAD, first
            if found is None:
                size = self._size
                found = self._connection.execute(text, (*of, *last, size)).fetchall()
            first = None
            key = add(found)
            if len(found) < size:
                return None
            last = tuple(found[-1][: len(start)])
            # Jobs with the same key as the end of the page come first: among equals the order is free.
            return (*key, 0)

        return more


def workable_at(connection: sqlite3.Connection, gates: Gates, queue: QueueCounters, now: Instant) -> Instant:
    """When a claim of a queue with ready jobs may find one if nothing happens: now, later at a rate, or never."""
    rules = LoadedLanes(gates, now)
    if queue.spec.share is not None or queue.laned:
        return LaneCursor(connection, rules, queue).workable_at()
    whole = queue.known.stamper.whole
    if not whole:
        return now
    found = connection.execute(_NEXT, (queue.name, "", MIN_INTEGER, 0, 1)).fetchone()
    _, _, cost = found or (None, None, 1)
    return starts_at([(gate, gates.state(gate.name)) for gate in whole], cost, now)
