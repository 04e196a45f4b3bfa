"""One queue's derived state: its ready jobs, its lanes, its counts, its waiters.

Nothing here is a fact: it is rebuilt from the rows. Ready rows without class and gates are served from one heap: as
long as there are no others, the queue has no lanes, and gates of the whole queue only bound how many a claim takes.
Among them a row whose rank is its due time is plain: it is served in the order of age. The others, and those in lanes,
pay for another heap by age.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from threading import Event
from typing import Final, TypeAlias

from forebay.core.gate import Gate, condition_gate
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import MAX_AHEAD, MAX_DEPTH, MAX_INSTANT
from forebay.core.policy import Bounded, Shed
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.engine.intake import RankedId
from forebay.engine.lanes import Front, GateState, Lane, Lanes, Numbered, ReadyJobs, closed_of, opening, room_of
from forebay.store.memory.facts import Facts, Row
from forebay.store.memory.heaps import LazyHeap

_READY = State.READY
_NO_LANE: Final[tuple[str, tuple[str, ...]]] = ("", ())
_UNTIL: Final = condition_gate("")
_SMALL: Final = 64

Item: TypeAlias = tuple[int, int, Row]
LaneName: TypeAlias = tuple[str, tuple[str, ...]]


class Waiters:
    """Threads that wait until a queue has something for them, and how much each needs: claimers work, producers room.

    As many are woken as there is enough for, the longest waiting first; one that needs more than there is does not hold
    up those behind it. Guarded by the store's lock, but for the waiting itself.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[Event, int] = {}

    def add(self, waiter: Event, need: int = 1) -> None:
        self.waiting[waiter] = need

    def drop(self, waiter: Event) -> None:
        self.waiting.pop(waiter, None)

    def wake(self, count: int) -> None:
        for waiter, need in list(self.waiting.items()):
            if count <= 0:
                return
            if need > count:
                continue
            del self.waiting[waiter]
            # A waiter at several queues may have been woken by another one: the next one is woken for this.
            if not waiter.is_set():
                waiter.set()
                count -= need

    def wake_all(self) -> None:
        for waiter in self.waiting:
            waiter.set()
        self.waiting.clear()


class ShedOrder:
    """The jobs of a queue that sheds, waiting or ready, in the order in which they are shed.

    That is the oldest first, or the last in rank.
    """

    def __init__(self, shed: Shed) -> None:
        self._lowest = shed.victim == "lowest"
        self._heap: LazyHeap[None] = LazyHeap()

    def add(self, row: Row) -> None:
        self._heap.push(*self._key(row), None)

    def drop(self, row: Row) -> None:
        """As it was when it was added."""
        self._heap.forget(*self._key(row))

    def __iter__(self) -> Iterator[RankedId]:
        return ((-key, -job_id) if self._lowest else (key, job_id) for key, job_id, _ in self._heap.walk())

    def _key(self, row: Row) -> RankedId:
        return (-row.rank, -row.entry.id) if self._lowest else (0, row.entry.id)


class MemoryLanes(Lanes[Row]):
    """The lanes of all queues. `started`: rates at which jobs started, until that is written down.

    `conditions`: by the gate of a condition, the lanes that have it, each with its queue.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._facts = facts
        self.started: dict[str, GateState] = {}
        self.conditions: dict[str, dict[tuple[str, LaneName], None]] = {}

    def new_state(self, name: str) -> GateState:
        return GateState(name, 0, self._facts.tats.get(name, 0), self._facts.gate_limits.get(name))

    def add(
        self, front: Front[Row], cls: str, names: tuple[str, ...], gates: Iterable[Gate], ready: ReadyJobs[Row]
    ) -> Lane[Row]:
        for name in names:
            if name.startswith(_UNTIL):
                self.conditions.setdefault(name, {})[front.queue, (cls, names)] = None
        return super().add(front, cls, names, gates, ready)

    def drop(self, front: Front[Row], lane: Lane[Row]) -> None:
        for name in lane.names:
            if name.startswith(_UNTIL):
                lanes = self.conditions[name]
                del lanes[front.queue, (lane.cls.name, lane.names)]
                if not lanes:
                    del self.conditions[name]
        super().drop(front, lane)

    def tats(self) -> dict[str, Instant]:
        """What is new of rates, to be written down."""
        tats = {name: state.tat for name, state in self.started.items()}
        self.started.clear()
        return tats


class Ready:
    """The ready rows of a lane: plain ones, and odd ones where there are any."""

    __slots__ = ("odd", "plain")

    def __init__(self) -> None:
        self.plain: LazyHeap[Row] = LazyHeap()
        self.odd: LazyHeap[Row] | None = None

    def __len__(self) -> int:
        return len(self.plain) + (0 if self.odd is None else len(self.odd))

    def push(self, row: Row) -> bool:
        """Whether the row may be the first one now."""
        heap = self.plain
        if row.rank != row.due_at:
            if self.odd is None:
                self.odd = LazyHeap()
            heap = self.odd
        heappush(heap.items, (row.rank, row.entry.id, row))
        return heap.items[0][2] is row

    def forget(self, row: Row) -> None:
        heap = self.plain if row.rank == row.due_at or self.odd is None else self.odd
        heap.forget(row.rank, row.entry.id)

    def head(self) -> Item | None:
        return self.plain.head() if self.odd is None else self._first().head()

    def pop(self) -> Row:
        """The row that `head` has shown."""
        return heappop((self.plain if self.odd is None else self._first()).items)[2]

    def take(self, count: int) -> list[Row]:
        if self.odd is None or not self.odd.items:
            return self.plain.take(count)
        rows: list[Row] = []
        while len(rows) < count and self.head() is not None:
            rows.append(self.pop())
        return rows

    def before(self, row: Row, most: int) -> int:
        heaps = (self.plain,) if self.odd is None else (self.plain, self.odd)
        return min(most, sum(heap.before(row.rank, row.entry.id, most) for heap in heaps))

    def walk(self) -> Iterator[Item]:
        """In order; nothing may change meanwhile."""
        return self.plain.walk() if self.odd is None else merge(self.plain.walk(), self.odd.walk())

    def _first(self) -> LazyHeap[Row]:
        odd = self.odd
        if odd is None or not odd.items:
            return self.plain
        one, other = self.plain.head(), odd.head()
        return odd if one is None or (other is not None and other < one) else self.plain


class QueueState:
    """The live side of one queue. `newest` maps a merge subject to its job that has not run yet.

    `_single` has the ready rows without class and gates; its lane is in front only beside others, or where classes
    share. `_ages` has all ready rows by age that are odd or in other lanes; rows that are not ready are skipped there.
    """

    __slots__ = (
        "_ages",
        "_lanes",
        "_single",
        "claimers",
        "counts",
        "front",
        "newest",
        "paced",
        "producers",
        "shed_order",
        "spec",
        "stamper",
    )

    def __init__(self, spec: QueueSpec, lanes: MemoryLanes, running: Iterable[Row] = ()) -> None:
        self.counts = dict.fromkeys(State, 0)
        self.claimers = Waiters()
        self.producers = Waiters()
        self.newest: dict[str, int] = {}
        self._lanes = lanes
        self._single = Ready()
        self._ages: list[Item] = []
        self.front = lanes.fronts[spec.name] = Front(spec.name, lanes)
        self.configure(spec, running)

    @property
    def depth(self) -> int:
        counts = self.counts
        return counts[State.WAITING] + counts[_READY] + counts[State.RUNNING]

    @property
    def room(self) -> int:
        """How many more jobs fit in."""
        capacity = self.spec.capacity
        return capacity.limit - self.depth if isinstance(capacity, Bounded) else MAX_DEPTH

    def configure(self, spec: QueueSpec, running: Iterable[Row]) -> None:
        """Ready jobs keep their ranks and lanes; what its running rows use is counted again. `shed_order` is empty."""
        self.spec = spec
        self.stamper = Stamper(spec)
        self.paced = any(gate.step for gate in self.stamper.whole)
        self.shed_order = None if self.stamper.sheds is None else ShedOrder(self.stamper.sheds)
        weight = None if spec.share is None else self.stamper.weight
        uses = [(row.entry.gates, row.entry.cost) for row in running]
        self._lanes.configure(self.front, self.stamper.whole, weight, self.stamper.gate, uses)
        if weight is not None and len(self._single) and _NO_LANE not in self.front.lanes:
            self._lanes.add(self.front, *_NO_LANE, (), self._single)
        self.producers.wake(self.room)

    def push(self, row: Row) -> None:
        """A row is ready."""
        entry, front = row.entry, self.front
        if entry.cls or entry.gates:
            self._push_into(row, (entry.cls, entry.gates))
        else:
            plain, alone = row.rank == row.due_at, not front.lanes and front.weight is None
            if plain and alone:
                heappush(self._single.plain.items, (row.rank, entry.id, row))
                return
            leads = self._single.push(row)
            if not alone:
                self._join(leads)
            if plain:
                return
        ages = self._ages
        if len(ages) > 2 * self.counts[_READY] + _SMALL:
            ages[:] = [item for item in ages if _is_ready(item)]
            heapify(ages)
        heappush(ages, (row.due_at, entry.id, row))

    def withdraw(self, row: Row) -> None:
        """A ready row left without being claimed: it ended, or is behind another one of its line again."""
        entry = row.entry
        lane = self.front.lanes.get((entry.cls, entry.gates))
        ready = self._single if lane is None else _ready_of(lane)
        ready.forget(row)
        if lane is not None:
            self._lanes.shrank(self.front, lane)

    def take(self, count: int, cls: str | None, now: Instant, expiring: bool) -> tuple[list[Row], list[Row]]:
        """The next rows that gates admit, and rows that were met past their expiry; all of them left their lanes."""
        front, lanes = self.front, self._lanes
        if front.lanes:
            if len(front.lanes) == 1 and _NO_LANE in front.lanes and front.weight is None:
                lanes.drop(front, front.lanes[_NO_LANE])
            else:
                taken = lanes.take(front, count, now, cls)
                for name, state in taken.gates.items():
                    if state.numbers[front.queue].step:
                        lanes.started[name] = state
                return taken.jobs, taken.expired
        if cls:
            return [], []
        return self._take_single(min(count, room_of(front.whole, now)) if front.whole else count, now, expiring)

    def workable_at(self, now: Instant) -> Instant:
        """When a claim may find something that is ready: now, later at a rate, or never."""
        front = self.front
        if not self.counts[_READY]:
            return MAX_INSTANT
        if front.lanes:
            return self._lanes.workable_at(front, now)
        head = self._single.head()
        closed = None if head is None else closed_of(front.whole, head[2].entry.cost, now)
        return now if head is None or closed is None else opening(*closed, head[2].entry.cost)

    def oldest(self, now: Instant) -> int:
        """How long the oldest ready row has been due."""
        ages = self._ages
        while ages and not _is_ready(ages[0]):
            heappop(ages)
        heads = (ages[0] if ages else None, self._single.plain.head())
        return max((now - head[2].due_at for head in heads if head is not None and head[2].due_at < now), default=0)

    def ahead(self, row: Row, most: int) -> int:
        """How many ready rows of its lane are ahead of this one, up to `most`."""
        return self._ready(row).before(row, most)

    def walk(self, lane: LaneName) -> Iterator[Item]:
        """The ready rows of a lane, in order; nothing may change meanwhile."""
        return _ready_of(self.front.lanes[lane]).walk()

    def holding(self, row: Row, now: Instant) -> tuple[Numbered, int] | None:
        """The gate that holds a ready row's lane, with what its first job costs that has not expired."""
        lane = self.front.lanes.get((row.entry.cls, row.entry.gates))
        alive = (item[2] for item in self._ready(row).walk() if not _expired(item[2], now))
        cost = next(alive, row).entry.cost
        closed = closed_of((*self.front.whole, *(() if lane is None else lane.gates)), cost, now)
        return None if closed is None else (closed, cost)

    def held(self, now: Instant) -> int:
        """How many ready rows closed gates hold, as far as claims have met them."""
        if closed_of(self.front.whole, 1, now) is not None:
            return self.counts[_READY]
        held = 0
        for lane in islice(self.front.parked, MAX_AHEAD):
            if lane.at is not None and not lane.at.is_open(lane.at.numbers[self.front.queue], lane.cost, now):
                held += len(_ready_of(lane))
        return min(held, MAX_AHEAD)

    def _take_single(self, count: int, now: Instant, expiring: bool) -> tuple[list[Row], list[Row]]:
        whole = self.front.whole
        rows = self._single.take(count)
        late = [row for row in rows if _expired(row, now)] if expiring else []
        if not whole and not late:
            return rows, late
        if late or any(row.entry.cost > 1 for row in rows):
            for row in rows:
                self._single.push(row)
            return self._take_one_by_one(count, now)
        self._start(whole, len(rows), now)
        return rows, late

    def _take_one_by_one(self, count: int, now: Instant) -> tuple[list[Row], list[Row]]:
        """Where some are past their expiry, or cost more than one."""
        rows: list[Row] = []
        late: list[Row] = []
        while len(rows) < count and (head := self._single.head()) is not None:
            row = head[2]
            if _expired(row, now):
                late.append(row)
            elif closed_of(self.front.whole, row.entry.cost, now) is not None:
                break
            else:
                self._start(self.front.whole, row.entry.cost, now)
                rows.append(row)
            self._single.pop()
        return rows, late

    def _start(self, whole: Sequence[Numbered], cost: int, now: Instant) -> None:
        for gate, state in whole:
            state.take(self.front.queue, gate, cost, now)
            if gate.step:
                self._lanes.started[gate.name] = state

    def _push_into(self, row: Row, name: LaneName) -> None:
        front, lanes = self.front, self._lanes
        lane = front.lanes.get(name)
        if lane is None:
            if not front.lanes and len(self._single):
                lanes.add(front, *_NO_LANE, (), self._single)
            ready = Ready()
            ready.push(row)
            gates = [gate for each in name[1] if (gate := self.stamper.gate(each)) is not None]
            lanes.add(front, *name, gates, ready)
        elif _ready_of(lane).push(row):
            lanes.grew(front, lane)

    def _join(self, leads: bool) -> None:
        """The queue has other lanes besides the one without class and gates."""
        lane = self.front.lanes.get(_NO_LANE)
        if lane is None:
            self._lanes.add(self.front, *_NO_LANE, (), self._single)
        elif leads:
            self._lanes.grew(self.front, lane)

    def _ready(self, row: Row) -> Ready:
        lane = self.front.lanes.get((row.entry.cls, row.entry.gates))
        return self._single if lane is None else _ready_of(lane)


def _ready_of(lane: Lane[Row]) -> Ready:
    ready = lane.ready
    assert isinstance(ready, Ready)
    return ready


def _is_ready(item: Item) -> bool:
    return item[2].state is _READY and item[2].due_at == item[0]


def _expired(row: Row, now: Instant) -> bool:
    expires_at = row.entry.expires_at
    return expires_at is not None and expires_at <= now
