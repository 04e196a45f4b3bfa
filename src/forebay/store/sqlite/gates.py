"""Gates and lanes of one unit of work: gates are read once and written back together, lanes row by row.

A gate has a row while running jobs use it, while some of its starts are unpaid, while lanes wait for it to open, and
while it has an operator's number. A unit says which lanes got a ready job and which lost one other than by a claim;
`write` brings the rows up to date. What may start is decided by the next claim (`claim_cursor`). A gate is woken, for
each queue with lanes that are parked there, when it may have room for them.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from forebay.core.gate import Gate, is_condition
from forebay.core.instant import Instant
from forebay.core.limits import MAX_INSTANT, MIN_INTEGER
from forebay.engine.lanes import GateState, closed_of, opening
from forebay.store.sqlite.tables import LaneName, QueueCounters, QueueTable, lane_name, statement
from forebay.store.states import READY

_STATES: Final = statement("gate_states")
_PUT: Final = statement("put_gate")
_DROP: Final = statement("drop_gate")


class GateRow(NamedTuple):
    """A gate as its row has it."""

    name: str
    used: int = 0
    tat: Instant = 0
    queue: str | None = None
    given: int | None = None
    wake_at: Instant | None = None


class Gates:
    """States by name. `freed`: what is given back and not yet written; `wake_at`: when a rate opens for its lanes."""

    def __init__(self, connection: sqlite3.Connection, now: Instant) -> None:
        self._connection = connection
        self._now = now
        self._rows: dict[str, GateRow] = {}
        self._states: dict[str, GateState] = {}
        self.wake_at: dict[str, Instant | None] = {}
        self.freed: Counter[str] = Counter()

    def load(self, names: Iterable[str]) -> None:
        """Read all of these that are not known yet."""
        missing = [name for name in dict.fromkeys(names) if name not in self._states]
        if not missing:
            return
        rows = {row.name: row for row in map(GateRow._make, self._connection.execute(_STATES, (json.dumps(missing),)))}
        for name in missing:
            row = rows.get(name)
            if row is not None:
                self._rows[name] = row
            state = GateState(name) if row is None else GateState(name, row.used, row.tat, row.given)
            state.queue = None if row is None else row.queue
            self._states[name] = state
            self.wake_at[name] = None if row is None else row.wake_at

    def state(self, name: str) -> GateState:
        if name not in self._states:
            self.load((name,))
        return self._states[name]

    def give_back(self, name: str, cost: int) -> None:
        self.freed[name] += cost

    def count_freed(self) -> None:
        """Take what was given back out of the states."""
        self.load(self.freed)
        for name, cost in self.freed.items():
            self._states[name].used -= cost
        self.freed.clear()

    def write(self) -> None:
        put: list[GateRow] = []
        gone: list[tuple[str]] = []
        for name, state in self._states.items():
            row = GateRow(name, state.used, state.tat, state.queue, state.given, self.wake_at[name])
            stored = self._rows.get(name)
            used = row.used or row.tat > self._now or row.given is not None or row.wake_at is not None
            if used and row != stored:
                put.append(row)
                self._rows[name] = row
            elif not used and stored is not None:
                gone.append((name,))
                del self._rows[name]
        if gone:
            self._connection.executemany(_DROP, gone)
        if put:
            self._connection.executemany(_PUT, put)


_ADD: Final = statement("add_lane")
_LANES: Final = statement("lanes_named")
_PUT_LANE: Final = statement("put_lane")
_DROP_LANE: Final = statement("drop_lane")
_LEAD: Final = statement("lead_lane")
_FIRST: Final = statement("first_of_lanes")
_HEAD_COST: Final = statement("head_cost")
_ADD_UNTIL: Final = statement("add_lane_until")
_DROP_UNTIL: Final = statement("drop_lane_until")
_OPEN_CLASS: Final = statement("open_class")
_REOPEN_CLASS: Final = statement("reopen_class")
_CLOSE_CLASS: Final = statement("close_class")
_CLASS: Final = statement("class")
_QUEUES_PARKED: Final = statement("queues_parked_at")
_PARKED: Final = statement("parked_lanes")
_IN_DEMAND: Final = statement("gates_in_demand")
_WAKE: Final = statement("wake")
_OPENED_RATES: Final = statement("opened_rates")
_OPEN_ALL: Final = statement("open_all_lanes")
_SLEEP_UNUSED: Final = statement("sleep_unused")
_SLEEP_ALL: Final = statement("sleep_all")
_DROP_CLASSES: Final = statement("drop_classes")
_CLASSES: Final = statement("classes_of_lanes")


class LaneTable:
    """The lanes of one unit of work."""

    def __init__(self, connection: sqlite3.Connection, queues: QueueTable, gates: Gates, now: Instant) -> None:
        self._connection = connection
        self._queues = queues
        self._gates = gates
        self._now = now
        self._arrived: dict[tuple[str, str], tuple[int, int]] = {}
        self._left: dict[tuple[str, str], None] = {}

    def arrived(self, queue: str, lane: str, rank: int, job_id: int) -> None:
        """A job of this lane became ready."""
        known = self._arrived.get((queue, lane))
        if known is None or (rank, job_id) < known:
            self._arrived[queue, lane] = (rank, job_id)

    def left(self, queue: str, lane: str) -> None:
        """A ready job of this lane is ready no longer, or has another rank, and no claim took it."""
        self._left[queue, lane] = None

    def write(self) -> None:
        """Bring the rows up to date; a claim begins with it, and a unit of work ends with it."""
        if self._arrived:
            by_queue: dict[str, dict[str, tuple[int, int]]] = {}
            for (queue, lane), head in self._arrived.items():
                by_queue.setdefault(queue, {})[lane] = head
            self._arrived = {}
            for queue, heads in by_queue.items():
                self._add(self._queues.queue(queue), heads)
        if self._left:
            left, self._left = self._left, {}
            self._update_heads(list(left))
        if self._gates.freed:
            freed = {name: units for name, units in self._gates.freed.items() if units > 0}
            self._gates.count_freed()
            waited = {name for (name,) in self._connection.execute(_IN_DEMAND, (json.dumps(list(freed)),))}
            for name, units in freed.items():
                if name in waited:
                    self._wake_lanes(name, units)
                self._wake_queues(name, units)

    def wake(self, gate: str, units: int) -> None:
        """A gate may have so much more room: for parked lanes, or for the queues that it holds as a whole."""
        self._wake_lanes(gate, units)
        self._wake_queues(gate, units)

    def _wake_lanes(self, gate: str, units: int) -> None:
        state, openings = self._gates.state(gate), []
        for (queue,) in self._connection.execute(_QUEUES_PARKED, (gate,)).fetchall():
            numbers = self._queues.queue(queue).known.stamper.gate(gate)
            if numbers is not None and numbers.step:
                openings.append(self._opening(queue, numbers, state))
                has_room = openings[-1] <= self._now
            else:
                has_room = numbers is None or state.is_open(numbers, 1, self._now)
            if has_room:
                self._connection.execute(_WAKE, (queue, gate))
                self._notify(queue, units)
        if openings:
            self._gates.wake_at[gate] = min((at for at in openings if self._now < at < MAX_INSTANT), default=None)

    def _opening(self, queue: str, gate: Gate, state: GateState) -> Instant:
        """When a rate opens for the first of the lanes of a queue that are parked there."""
        start = (MIN_INTEGER, MIN_INTEGER, 0)
        *_, lane, _ = self._connection.execute(_PARKED, (gate.name, queue, *start, 1)).fetchone()
        found = self._connection.execute(_HEAD_COST, (queue, lane, self._now)).fetchone()
        return opening(gate, state, 1 if found is None else found[0])

    def _wake_queues(self, gate: str, units: int) -> None:
        for queue in self._queues.specs.held_by(gate):
            if self._queues.queue(queue).counts[READY]:
                self._notify(queue, units)

    def open_rates(self, limit: int) -> None:
        """Rates whose time has come are woken."""
        for (name,) in self._connection.execute(_OPENED_RATES, (self._now, limit)).fetchall():
            self._gates.state(name)
            self._gates.wake_at[name] = None
            self.wake(name, 1)

    def open_all(self, queue: QueueCounters) -> None:
        """The queue has other gates or shares now: its turns begin again, and the next claim finds what is closed."""
        self.write()
        self._connection.execute(_OPEN_ALL, (queue.name,))
        self._connection.execute(_SLEEP_ALL, (queue.name,))
        self._connection.execute(_DROP_CLASSES, (queue.name,))
        queue.turn, queue.changed = 0, True
        if queue.spec.share is not None:
            for (cls,) in self._connection.execute(_CLASSES, (queue.name,)).fetchall():
                self._connection.execute(_OPEN_CLASS, (queue.name, cls, 0))
        if queue.counts[READY]:
            self._notify(queue.name, queue.counts[READY])

    def drop(self, queue: str, lanes: Sequence[str]) -> None:
        """Lanes without ready jobs are dropped."""
        self._connection.executemany(_DROP_LANE, [(queue, lane) for lane in lanes])
        gates = [(gate, queue, lane) for lane in lanes for gate in lane_name(lane).gates if is_condition(gate)]
        if gates:
            self._connection.executemany(_DROP_UNTIL, gates)

    def _add(self, queue: QueueCounters, heads: dict[str, tuple[int, int]]) -> None:
        """Jobs became ready in these lanes; of each, the first of them."""
        named = {lane: lane_name(lane) for lane in heads}
        rows = [(queue.name, lane, named[lane].cls, *head) for lane, head in heads.items() if lane]
        self._connection.executemany(_ADD, rows)
        gated = [lane for lane, name in named.items() if name.gates]
        if gated:
            for lane, rank, job_id, at in self._connection.execute(_LANES, (queue.name, json.dumps(gated))).fetchall():
                if (rank, job_id) == heads[lane]:
                    self._add_gated(queue, lane, named[lane], heads[lane], at)
        if queue.spec.share is not None:
            for text, has_gates in ((_OPEN_CLASS, False), (_REOPEN_CLASS, True)):
                classes = {name.cls: None for name in named.values() if bool(name.gates) is has_gates}
                self._connection.executemany(text, [(queue.name, cls, queue.turn) for cls in classes])

    def _add_gated(
        self, queue: QueueCounters, lane: str, name: LaneName, head: tuple[int, int], at: str | None
    ) -> None:
        """A lane with gates has a new head. `at`: where it is parked."""
        if at is not None:
            self.wake(at, 1)
            return
        for gate in name.gates:
            if is_condition(gate):
                self._connection.execute(_ADD_UNTIL, (gate, queue.name, lane))
        if any(gate.step for gate in queue.known.gates(lane)):
            self._park_if_closed(queue, lane, name.cls, head)

    def _park_if_closed(self, queue: QueueCounters, lane: str, cls: str, head: tuple[int, int]) -> None:
        """Park a new lane with a rate where it is held: so that its opening is known before any claim reaches it."""
        gates = queue.known.gates(lane)
        self._gates.load(gate.name for gate in gates)
        found = self._connection.execute(_HEAD_COST, (queue.name, lane, self._now)).fetchone()
        cost = 1 if found is None else found[0]
        closed = closed_of([(gate, self._gates.state(gate.name)) for gate in gates], cost, self._now)
        if closed is None:
            return
        name, at = closed[0].name, opening(*closed, cost)
        turn = self._connection.execute(_CLASS, (queue.name, cls)).fetchone() or (0, 0)
        self._connection.execute(_PUT_LANE, (queue.name, lane, *head, turn[0], name))
        if at < MAX_INSTANT:
            self._gates.wake_at[name] = min(at, self._gates.wake_at[name] or at)

    def _update_heads(self, lanes: list[tuple[str, str]]) -> None:
        """Lanes that lost jobs have other heads, or are empty: gates may have free slots for these, or for others."""
        named = [{"queue": queue, "lane": lane} for queue, lane in lanes if lane]
        rows = self._connection.execute(_FIRST, (json.dumps(named),)).fetchall()
        for queue, lane, rank, job_id in rows:
            if job_id is None:
                self.drop(queue, [lane])
                for gate in lane_name(lane).gates:
                    self._connection.execute(_SLEEP_UNUSED, (queue, gate))
                    self.wake(gate, 1)
            else:
                at = self._connection.execute(_LEAD, (queue, lane, rank, job_id)).fetchone()
                if at is not None and at[0] is not None:
                    self.wake(at[0], 1)
        self._update_classes(lanes)

    def _update_classes(self, lanes: Iterable[tuple[str, str]]) -> None:
        for name, cls in {(name, lane_name(lane).cls): None for name, lane in lanes}:
            queue = self._queues.queue(name)
            if queue.spec.share is None:
                continue
            if not cls and queue.counts[READY] > queue.laned:
                self._connection.execute(_OPEN_CLASS, (name, cls, queue.turn))
            else:
                self._connection.execute(_REOPEN_CLASS, (name, cls, queue.turn))
                self._connection.execute(_CLOSE_CLASS, (name, cls))

    def _notify(self, queue: str, units: int) -> None:
        self._queues.with_work[queue] = self._queues.with_work.get(queue, 0) + units
