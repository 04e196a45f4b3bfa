"""Which ready jobs a claim hands out: lanes, the gates they have to pass, and classes that take turns.

This is the reference implementation. The in-process store keeps one `Lanes`, SQLite fills one for each unit of work,
and the scripts of Postgres and Redis have the same functions under the same names.

A *lane* has the ready jobs of a queue with the same class and the same gates, in the order of (rank, id). An *open*
lane belongs to its class; a lane whose head met a closed gate is *parked* at that gate, as a whole. `QueueLanes` orders
what may start next in a queue: classes by their turns where the queue shares, by their heads elsewhere, and beside them
every gate that has room again, in the place of the first lane parked there. So room makes no lane move before a
claim gets to it, and a claim costs O(started + parked), however much is held.

A job that costs more than its gate has room for waits at the head of its lane, and no lane of its queue passes it at
that gate. Gates of the whole queue park nothing: they end the claim.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from forebay.core.gate import Gate, is_open, opens_at, tat_after
from forebay.core.instant import Instant
from forebay.core.limits import LANES_MET, MAX_INSTANT, MAX_SLOTS
from forebay.core.share import lifted, turn_after
from forebay.engine.order import Key, More, Order
from forebay.store.protocol import Hold

IDLE_CLASSES: Final = 256
"""Classes without ready jobs whose turns a queue remembers; one that is forgotten gains a single start."""


class ReadyJob(Protocol):
    """What the rules need to know of a job besides its rank and id."""

    @property
    def cost(self) -> int: ...

    @property
    def expires_at(self) -> Instant | None: ...


J = TypeVar("J", bound=ReadyJob)
J_co = TypeVar("J_co", bound=ReadyJob, covariant=True)


class ReadyJobs(Protocol[J_co]):
    """The jobs of a lane, smallest (rank, id) first; a store may load them as they are needed."""

    def head(self) -> tuple[int, int, J_co] | None: ...

    def pop(self) -> object: ...


class GateState:
    """The state of a gate: what running jobs use of it, its theoretical arrival time, the operator's number.

    numbers  by queue, the gate as the queue's spec has it now; `queue` is the one that used it last
    parked   by queue, the lanes that are parked here
    refs     lanes with ready jobs that have this gate, and queues that have it as a whole
    timer    the instant for which a timer is set
    """

    __slots__ = ("given", "name", "numbers", "parked", "queue", "refs", "tat", "timer", "used")

    def __init__(self, name: str, used: int = 0, tat: Instant = 0, given: int | None = None) -> None:
        self.name = name
        self.used = used
        self.tat = tat
        self.given = given
        self.numbers: dict[str, Gate] = {}
        self.parked: dict[str, Order[Lane[Any]]] = {}
        self.queue: str | None = None
        self.refs = 0
        self.timer: Instant = 0

    def slots(self, gate: Gate) -> int:
        """The limit that holds: the operator's, or that of the spec."""
        return gate.limit if self.given is None else self.given

    def is_open(self, gate: Gate, cost: int, now: Instant) -> bool:
        return is_open(gate, self.used, self.tat, cost, now, self.given)

    def take(self, queue: str, gate: Gate, cost: int, now: Instant) -> None:
        """A job of this cost starts."""
        self.queue = queue
        if gate.step:
            self.tat = tat_after(gate, self.tat, cost, now)
        else:
            self.used += cost


Numbered: TypeAlias = tuple[Gate, GateState]


class Lane(Generic[J]):
    """The ready jobs of one class and one set of gates. `at`: where it is parked. `gates`: those the spec still has.

    `job` is its first one, and `head` its rank and id: the order of the lane in its class. Both are None once the lane
    is empty, and are brought up to date (`refresh`) by whoever adds a job to it or takes one out.
    """

    __slots__ = ("at", "cls", "gates", "head", "job", "names", "ready")

    def __init__(
        self, cls: "Class[J]", names: tuple[str, ...], ready: ReadyJobs[J], gates: tuple[Numbered, ...]
    ) -> None:
        self.cls = cls
        self.names = names
        self.ready = ready
        self.gates = gates
        self.at: GateState | None = None
        self.head: Key | None = None
        self.job: J | None = None
        self.refresh()

    def refresh(self) -> None:
        first = self.ready.head()
        if first is None:
            self.head = self.job = None
        else:
            rank, job_id, self.job = first
            self.head = rank, job_id

    def place(self) -> Key:
        """The order of the lane in its queue."""
        return self.cls.turn, *(self.head or ())

    @property
    def cost(self) -> int:
        """What its first job costs."""
        return 1 if self.job is None else self.job.cost


_HEAD: Final = attrgetter("head")


class Class(Generic[J]):
    """The lanes of one class, `lanes` in all. `turn` stays 0 where the queue does not share; `weight` 0: not known."""

    __slots__ = ("lanes", "name", "open", "parked", "turn", "weight")

    def __init__(self, name: str, turn: int = 0, more: More | None = None) -> None:
        self.name = name
        self.turn = turn
        self.open: Order[Lane[J]] = Order(_HEAD, more)
        self.parked: dict[Lane[J], None] = {}
        self.lanes = 0
        self.weight = 0

    def first(self) -> Lane[J] | None:
        """The open lane with the first head."""
        return self.open.sole() or self.open.first()


class QueueLanes(Generic[J]):
    """What may start next in one queue. `weight` of a class; None: classes do not take turns.

    turn    that of the class that started last in its turn
    idle    classes without ready jobs, until their turns no longer matter
    parked  lanes that met a closed gate
    """

    __slots__ = ("_lanes", "classes", "idle", "lanes", "order", "parked", "queue", "turn", "weight", "whole")

    def __init__(self, queue: str, lanes: "Lanes[J]", more: More | None = None) -> None:
        self.queue = queue
        self._lanes = lanes
        self.whole: tuple[Numbered, ...] = ()
        self.weight: Callable[[str], int] | None = None
        self.clear(more)

    def clear(self, more: More | None = None) -> None:
        self.turn = 0
        self.classes: dict[str, Class[J]] = {}
        self.idle: dict[str, None] = {}
        self.lanes: dict[tuple[str, tuple[str, ...]], Lane[J]] = {}
        self.parked: dict[Lane[J], None] = {}
        self.order: Order[Class[J] | GateState] = Order(self._key, more)

    def first(self) -> Lane[J] | None:
        """The open lane whose head is next; lanes parked at gates that have room again are opened on the way."""
        only = self.order.sole() if self.weight is None else None
        if isinstance(only, Class):
            lane = only.first()
            if lane is None:
                self.order.drop(only)
            return lane
        while (item := self.order.first()) is not None:
            if isinstance(item, Class):
                return item.first()
            lane = item.parked[self.queue].first()
            assert lane is not None
            self._lanes.open(self, lane)
        return None

    def _key(self, item: "Class[J] | GateState") -> Key | None:
        if isinstance(item, Class):
            lane = item.first()
        else:
            lane = item.parked[self.queue].first()
            if lane is not None and not item.is_open(item.numbers[self.queue], lane.cost, self._lanes.now):
                lane = None
        if lane is None:
            return None
        # By its head too: of one class, a lane at a gate that has room again may go before those that are open.
        return lane.head if self.weight is None else lane.place()


class Taken(Generic[J]):
    """What a claim of one queue did.

    jobs     claimed, in order, with their slots taken
    expired  met past their expiry, and out of their lanes now
    gates    whose states the starts changed, by name
    classes  whose turns the starts moved on, by name
    parked   lanes that met a closed gate
    """

    __slots__ = ("classes", "expired", "gates", "jobs", "parked")

    def __init__(self) -> None:
        self.jobs: list[J] = []
        self.expired: list[J] = []
        self.gates: dict[str, GateState] = {}
        self.classes: dict[str, Class[J]] = {}
        self.parked: list[Lane[J]] = []


class Lanes(Generic[J]):
    """All gates and lanes of a store, or what a unit of work has loaded of them. `now`: that of the current verb.

    A store overrides `new_state` to load what it knows of a gate: states that nothing refers to are forgotten.
    """

    def __init__(self) -> None:
        self.now: Instant = 0
        self.gates: dict[str, GateState] = {}
        self.by_queue: dict[str, QueueLanes[J]] = {}
        self.timers: list[tuple[Instant, str]] = []

    def new_state(self, name: str) -> GateState:
        return GateState(name)

    def state(self, name: str) -> GateState:
        state = self.gates.get(name)
        if state is None:
            state = self.gates[name] = self.new_state(name)
        return state

    def take(self, queue_lanes: QueueLanes[J], limit: int, now: Instant, cls: str | None = None) -> Taken[J]:
        """Claim up to `limit` jobs of a queue, or of one class of it, that every gate admits."""
        self.now = now
        taken: Taken[J] = Taken()
        only = None if cls is None else queue_lanes.classes.get(cls)
        if only is not None:
            self._open_again(queue_lanes, only)
        elif cls is not None:
            return taken
        while len(taken.jobs) < limit and len(taken.expired) + len(taken.parked) < LANES_MET:
            lane = queue_lanes.first() if only is None else only.first()
            job = None if lane is None else lane.job
            if lane is None or job is None:
                break
            if job.expires_at is not None and job.expires_at <= now:
                lane.ready.pop()
                taken.expired.append(job)
                self.shrank(queue_lanes, lane)
            elif queue_lanes.whole and closed_of(queue_lanes.whole, job.cost, now) is not None:
                break
            elif lane.gates and (closed := self.closed_gate(queue_lanes, lane)) is not None:
                self.park(queue_lanes, lane, closed)
                taken.parked.append(lane)
            else:
                self._start(queue_lanes, lane, job, taken, in_turn=only is None)
        return taken

    def give_back(self, queue_lanes: QueueLanes[J], names: Iterable[str], cost: int) -> list[GateState]:
        """A job with these gates has ended; returns the caps with more free slots."""
        freed = [state for gate, state in queue_lanes.whole if not gate.step]
        for name in names:
            state = self.gates.get(name)
            if state is not None and (gate := state.numbers.get(queue_lanes.queue)) is not None and not gate.step:
                freed.append(state)
        for state in freed:
            state.used -= cost
            self.wake(state)
        return freed

    def wake(self, state: GateState) -> None:
        """The gate may have free slots: it enters the front of the queues whose lanes are parked there."""
        for queue in state.parked:
            self.by_queue[queue].order.put(state)
        self._forget(state)

    def changed(self, state: GateState) -> None:
        """The operator's number is another one. A rate of whole queues has no timer: `workable_at` reads it."""
        self.wake(state)
        if not any(state is each for queue in state.numbers for _, each in self.by_queue[queue].whole):
            self._set_timer(state)

    def tick(self, now: Instant) -> list[GateState]:
        """The rates that have opened by now."""
        self.now = now
        opened = []
        while (at := self.next_opening()) is not None and at <= now:
            state = self.gates[heappop(self.timers)[1]]
            state.timer = 0
            self.wake(state)
            self._set_timer(state)
            opened.append(state)
        return opened

    def next_opening(self) -> Instant | None:
        """When a rate opens next that lanes with ready jobs have to pass."""
        while self.timers:
            at, name = self.timers[0]
            state = self.gates.get(name)
            if state is not None and state.timer == at and state.refs:
                return at
            heappop(self.timers)
        return None

    def workable_at(self, queue_lanes: QueueLanes[J], now: Instant) -> Instant:
        """When a claim may find something in the queue if nothing changes: now, later at a rate, or never."""
        self.now = now
        for _ in range(LANES_MET):
            lane = queue_lanes.first()
            job = None if lane is None else lane.job
            if lane is None or job is None:
                return MAX_INSTANT
            if job.expires_at is not None and job.expires_at <= now:
                break
            at = starts_at(queue_lanes.whole, lane.cost, now)
            if at > now:
                return at
            state = self.closed_gate(queue_lanes, lane)
            if state is None:
                break
            self.park(queue_lanes, lane, state)
        return now

    def add(
        self, queue_lanes: QueueLanes[J], cls: str, names: tuple[str, ...], gates: Iterable[Gate], ready: ReadyJobs[J]
    ) -> Lane[J]:
        """A lane with ready jobs; `gates` are those of its names that the spec has. It parks where one is closed."""
        of = queue_lanes.classes.get(cls)
        if of is None:
            of = queue_lanes.classes[cls] = Class(cls, queue_lanes.turn)
        queue_lanes.idle.pop(cls, None)
        of.lanes += 1
        lane = queue_lanes.lanes[cls, names] = Lane(
            of, names, ready, self._numbered(queue_lanes, gates) if names else ()
        )
        for _, state in lane.gates:
            state.refs += 1
        closed = self.closed_gate(queue_lanes, lane) if lane.gates else None
        if closed is None:
            self.open(queue_lanes, lane)
        else:
            self.park(queue_lanes, lane, closed)
        return lane

    def grew(self, queue_lanes: QueueLanes[J], lane: Lane[J]) -> None:
        """A job was added to the lane and is its head."""
        lane.refresh()
        if lane.at is None:
            if lane.cls.open.put(lane):
                queue_lanes.order.put(lane.cls)
        else:
            self.park(queue_lanes, lane, lane.at)
            self.wake(lane.at)

    def shrank(self, queue_lanes: QueueLanes[J], lane: Lane[J]) -> None:
        """A job left the lane."""
        lane.refresh()
        if lane.job is None:
            self.drop(queue_lanes, lane)
        elif lane.at is not None:
            self.park(queue_lanes, lane, lane.at)
            self.wake(lane.at)

    def drop(self, queue_lanes: QueueLanes[J], lane: Lane[J]) -> None:
        """Remove a lane without jobs, and its class once its turn no longer matters."""
        of = lane.cls
        del queue_lanes.lanes[of.name, lane.names]
        of.lanes -= 1
        of.open.drop(lane)
        of.parked.pop(lane, None)
        queue_lanes.parked.pop(lane, None)
        if lane.at is not None:
            lane.at.parked[queue_lanes.queue].drop(lane)
        for _, state in lane.gates:
            state.refs -= 1
            self.wake(state)
        if not of.lanes:
            queue_lanes.order.drop(of)
            queue_lanes.idle[of.name] = None
            for name in list(islice(queue_lanes.idle, 2)):
                if queue_lanes.classes[name].turn <= queue_lanes.turn or len(queue_lanes.idle) > IDLE_CLASSES:
                    del queue_lanes.idle[name], queue_lanes.classes[name]

    def configure(
        self,
        queue_lanes: QueueLanes[J],
        whole: Iterable[Gate],
        weight: Callable[[str], int] | None,
        gates_of: Callable[[Sequence[str]], Iterable[Gate]],
        running: Iterable[tuple[Sequence[str], int]] = (),
    ) -> None:
        """The queue has another spec: turns begin again, and what its `running` jobs use is counted again.

        Of each running job: the names of its gates, and its cost. `gates_of`: those of these gates that the spec has.
        """
        running = list(running)
        for names, cost in running:
            self.give_back(queue_lanes, names, cost)
        lanes = list(queue_lanes.lanes.values())
        for _, state in (*queue_lanes.whole, *(each for lane in lanes for each in lane.gates)):
            state.refs -= 1
        for state in list(self.gates.values()):
            state.numbers.pop(queue_lanes.queue, None)
            state.parked.pop(queue_lanes.queue, None)
            self._forget(state)
        queue_lanes.clear()
        queue_lanes.weight = weight
        queue_lanes.whole = self._numbered(queue_lanes, whole)
        for _, state in queue_lanes.whole:
            state.refs += 1
        for names, cost in running:
            for gate, state in (*queue_lanes.whole, *self._numbered(queue_lanes, gates_of(names))):
                if not gate.step:
                    state.take(queue_lanes.queue, gate, cost, self.now)
        for lane in lanes:
            self.add(queue_lanes, lane.cls.name, lane.names, gates_of(lane.names), lane.ready)

    def closed_gate(self, queue_lanes: QueueLanes[J], lane: Lane[J]) -> GateState | None:
        """The first gate of the lane without room for its head, or at which an earlier head waits for room."""
        cost, now = lane.cost, self.now
        for gate, state in lane.gates:
            if not state.is_open(gate, cost, now):
                return state
            if state.parked:
                parked = state.parked.get(queue_lanes.queue)
                first = None if parked is None else parked.first()
                earlier = first is not None and first is not lane and first.place() < lane.place()
                if first is not None and earlier and not state.is_open(gate, first.cost, now):
                    return state
        return None

    def park(self, queue_lanes: QueueLanes[J], lane: Lane[J], state: GateState) -> None:
        """Park the lane at the gate, ordered by its head; it may be parked there already with another head."""
        lane.at = state
        lane.cls.open.drop(lane)
        lane.cls.parked[lane] = queue_lanes.parked[lane] = None
        parked = state.parked.get(queue_lanes.queue)
        if parked is None:
            parked = state.parked[queue_lanes.queue] = Order(Lane.place)
        parked.put(lane)
        self._set_timer(state)

    def open(self, queue_lanes: QueueLanes[J], lane: Lane[J]) -> None:
        """Open the lane. A class that had no open lane has not saved up turns."""
        of = lane.cls
        if lane.at is not None:
            lane.at.parked[queue_lanes.queue].drop(lane)
            lane.at = None
            del of.parked[lane], queue_lanes.parked[lane]
        is_first = of.open.put(lane)
        if of not in queue_lanes.order:
            of.turn = lifted(of.turn, queue_lanes.turn)
        elif not is_first:
            return
        queue_lanes.order.put(of)

    def _open_again(self, queue_lanes: QueueLanes[J], only: Class[J]) -> None:
        """A claim of one class does not wait until other classes were at the gates that have room."""
        for lane in list(islice(only.parked, LANES_MET)):
            if self.closed_gate(queue_lanes, lane) is None:
                self.open(queue_lanes, lane)
            else:
                only.parked[lane] = only.parked.pop(lane)

    def _start(self, queue_lanes: QueueLanes[J], lane: Lane[J], job: J, taken: Taken[J], *, in_turn: bool) -> None:
        of = lane.cls
        if queue_lanes.weight is not None:
            if in_turn:
                queue_lanes.turn = of.turn
            of.weight = of.weight or queue_lanes.weight(of.name)
            of.turn = turn_after(of.turn, of.weight)
            taken.classes[of.name] = of
        lane.ready.pop()
        taken.jobs.append(job)
        for gate, state in (*queue_lanes.whole, *lane.gates) if queue_lanes.whole else lane.gates:
            state.take(queue_lanes.queue, gate, job.cost, self.now)
            taken.gates[state.name] = state
        self.shrank(queue_lanes, lane)
        for gate, state in lane.gates:
            if gate.step:
                self._set_timer(state)

    def _numbered(self, queue_lanes: QueueLanes[J], gates: Iterable[Gate]) -> tuple[Numbered, ...]:
        found = [(gate, self.state(gate.name)) for gate in gates]
        for gate, state in found:
            state.numbers[queue_lanes.queue] = gate
        return tuple(found)

    def _set_timer(self, state: GateState) -> None:
        at = MAX_INSTANT
        for queue, gate in state.numbers.items():
            if gate.step:
                parked = state.parked.get(queue)
                first = None if parked is None else parked.first()
                at = min(at, opening(gate, state, 1 if first is None else first.cost))
        timer = at if self.now < at < MAX_INSTANT else 0
        if timer and timer != state.timer:
            heappush(self.timers, (timer, state.name))
        state.timer = timer

    def _forget(self, state: GateState) -> None:
        if not state.refs and not state.used:
            self.gates.pop(state.name, None)


def closed_of(gates: Sequence[Numbered], cost: int, now: Instant) -> Numbered | None:
    """The first of these gates that has no room for the cost."""
    for gate, state in gates:
        if not state.is_open(gate, cost, now):
            return gate, state
    return None


def room_of(gates: Sequence[Numbered], now: Instant) -> int:
    """How many jobs that cost one unit each these gates admit now, one after the other."""
    room = MAX_SLOTS
    for gate, state in gates:
        slots = state.slots(gate)
        taken = -(-max(state.tat - now, 0) // gate.step) if gate.step else state.used
        room = min(room, slots - taken)
    return max(room, 0)


def opening(gate: Gate, state: GateState, cost: int) -> Instant:
    """When a gate that is closed opens by itself: a rate in time, another gate never."""
    return opens_at(gate, state.tat, cost, state.given) if gate.step else MAX_INSTANT


def starts_at(gates: Sequence[Numbered], cost: int, now: Instant) -> Instant:
    """When these gates admit a job of this cost if nothing changes: now, later at a rate, or never."""
    closed = closed_of(gates, cost, now)
    return now if closed is None else opening(*closed, cost)


def start(gates: Sequence[Numbered], queue: str, cost: int, now: Instant) -> bool:
    """Take the slots of a job at the gates of the whole queue; False: one of them has no room for it."""
    if closed_of(gates, cost, now) is not None:
        return False
    for gate, state in gates:
        state.take(queue, gate, cost, now)
    return True


def gate_hold(gates: Sequence[Numbered], cost: int, now: Instant, before: Callable[[], int]) -> Hold | None:
    """What holds a ready job. `cost`: of the first job of its lane; `before`: how many of them are ahead of it."""
    closed = closed_of(gates, cost, now)
    if closed is None:
        return None
    (gate, state), at = closed, opening(*closed, cost)
    return Hold(gate.name, state.slots(gate), state.used, before(), opens_at=at if at < MAX_INSTANT else None)
