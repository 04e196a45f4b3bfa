"""One queue's derived state: its ready jobs, its lanes, its counts, its waiters.

Nothing here is a fact: it is rebuilt from the rows. Ready rows without class and gates are served from one heap: as
long as there are no others, the queue has no lanes, and gates of the whole queue only bound how many a claim takes.
Among them a row whose rank is its due time is plain: it is served in the order of age. The others, and those in lanes,
pay for another heap by age.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Final, TypeAlias

from forebay.core.gate import Gate, condition_gate
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import MAX_AHEAD, MAX_INSTANT
from forebay.core.policy import Shed
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.engine.intake import RankedId, room_in
from forebay.engine.lanes import (
    GateState,
    Lane,
    Lanes,
    QueueLanes,
    ReadyJobs,
    closed_of,
    gate_hold,
    room_of,
    start,
    starts_at,
)
from forebay.engine.waiters import QueueWaiters
from forebay.store.memory.facts import Facts, JobRow
from forebay.store.memory.heaps import LazyHeap
from forebay.store.protocol import Hold

_READY = State.READY
_NO_LANE: Final[tuple[str, tuple[str, ...]]] = ("", ())
_UNTIL: Final = condition_gate("")
_SMALL: Final = 64

RankedRow: TypeAlias = tuple[int, int, JobRow]
LaneName: TypeAlias = tuple[str, tuple[str, ...]]


class ShedOrder:
    """The jobs of a queue that sheds, waiting or ready, in the order in which they are shed.

    That is the oldest first, or the last in rank.
    """

    def __init__(self, shed: Shed) -> None:
        self._lowest = shed.victim == "lowest"
        self._heap: LazyHeap[None] = LazyHeap()

    def add(self, row: JobRow) -> None:
        self._heap.push(*self._key(row), None)

    def drop(self, row: JobRow) -> None:
        """As it was when it was added."""
        self._heap.forget(*self._key(row))

    def __iter__(self) -> Iterator[RankedId]:
        return ((-key, -job_id) if self._lowest else (key, job_id) for key, job_id, _ in self._heap.walk())

    def _key(self, row: JobRow) -> RankedId:
        return (-row.rank, -row.entry.id) if self._lowest else (0, row.entry.id)


class MemoryLanes(Lanes[JobRow]):
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
        self,
        queue_lanes: QueueLanes[JobRow],
        cls: str,
        names: tuple[str, ...],
        gates: Iterable[Gate],
        ready: ReadyJobs[JobRow],
    ) -> Lane[JobRow]:
        for name in names:
            if name.startswith(_UNTIL):
                self.conditions.setdefault(name, {})[queue_lanes.queue, (cls, names)] = None
        return super().add(queue_lanes, cls, names, gates, ready)

    def drop(self, queue_lanes: QueueLanes[JobRow], lane: Lane[JobRow]) -> None:
        for name in lane.names:
            if name.startswith(_UNTIL):
                lanes = self.conditions[name]
                del lanes[queue_lanes.queue, (lane.cls.name, lane.names)]
                if not lanes:
                    del self.conditions[name]
        super().drop(queue_lanes, lane)

    def tats(self) -> dict[str, Instant]:
        """What is new of rates, to be written down."""
        tats = {name: state.tat for name, state in self.started.items()}
        self.started.clear()
        return tats


class LaneRows(LazyHeap[JobRow]):
    """The ready rows of a lane."""

    __slots__ = ()

    def add(self, row: JobRow) -> bool:
        """Whether the row may be the first one now."""
        items = self.items
        heappush(items, (row.rank, row.entry.id, row))
        _, _, first = items[0]
        return first is row

    def remove(self, row: JobRow) -> None:
        self.forget(row.rank, row.entry.id)

    def pop(self) -> JobRow:
        """The row that `head` has shown."""
        _, _, row = heappop(self.items)
        return row


class PlainRows(LaneRows):
    """The ready rows without class and gates. `odd`: those whose rank is not their due time, so the rest is by age."""

    __slots__ = ("odd",)

    def __init__(self) -> None:
        super().__init__()
        self.odd: LaneRows | None = None

    def __len__(self) -> int:
        return super().__len__() + (0 if self.odd is None else len(self.odd))

    def add(self, row: JobRow) -> bool:
        if row.rank == row.due_at:
            return super().add(row)
        if self.odd is None:
            self.odd = LaneRows()
        return self.odd.add(row)

    def remove(self, row: JobRow) -> None:
        if row.rank == row.due_at or self.odd is None:
            super().remove(row)
        else:
            self.odd.remove(row)

    def oldest(self) -> RankedRow | None:
        """The first of the rows by age."""
        return super().head()

    def head(self) -> RankedRow | None:
        one, other = super().head(), None if self.odd is None else self.odd.head()
        return one if other is None or (one is not None and one < other) else other

    def pop(self) -> JobRow:
        odd = self.odd
        if odd is None or not odd.items or (self.items and self.items[0] < odd.items[0]):
            return super().pop()
        return odd.pop()

    def take(self, count: int) -> list[JobRow]:
        if self.odd is None or not self.odd.items:
            return super().take(count)
        rows: list[JobRow] = []
        while len(rows) < count and self.head() is not None:
            rows.append(self.pop())
        return rows

    def before(self, key: int, number: int, maximum: int, counts: Callable[[JobRow], bool] = lambda _: True) -> int:
        odd = 0 if self.odd is None else self.odd.before(key, number, maximum, counts)
        return min(maximum, super().before(key, number, maximum, counts) + odd)

    def walk(self) -> Iterator[RankedRow]:
        return super().walk() if self.odd is None else merge(super().walk(), self.odd.walk())


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
        "newest",
        "producers",
        "queue_lanes",
        "shed_order",
        "spec",
        "stamper",
    )

    def __init__(self, spec: QueueSpec, lanes: MemoryLanes, running: Iterable[JobRow] = ()) -> None:
        self.counts = dict.fromkeys(State, 0)
        self.claimers = QueueWaiters()
        self.producers = QueueWaiters()
        self.newest: dict[str, int] = {}
        self._lanes = lanes
        self._single = PlainRows()
        self._ages: list[RankedRow] = []
        self.queue_lanes = lanes.by_queue[spec.name] = QueueLanes(spec.name, lanes)
        self.configure(spec, running)

    @property
    def depth(self) -> int:
        counts = self.counts
        return counts[State.WAITING] + counts[_READY] + counts[State.RUNNING]

    @property
    def room(self) -> int:
        """How many more jobs fit in."""
        return room_in(self.spec, self.depth)

    def configure(self, spec: QueueSpec, running: Iterable[JobRow]) -> None:
        """Ready jobs keep their ranks and lanes; what its running rows use is counted again. `shed_order` is empty."""
        self.spec = spec
        self.stamper = Stamper(spec)
        self.shed_order = None if self.stamper.sheds is None else ShedOrder(self.stamper.sheds)
        weight = None if spec.share is None else self.stamper.weight
        uses = [(row.entry.gates, row.entry.cost) for row in running]
        self._lanes.configure(self.queue_lanes, self.stamper.whole, weight, self.stamper.gates, uses)
        if weight is not None and len(self._single) and _NO_LANE not in self.queue_lanes.lanes:
            self._lanes.add(self.queue_lanes, *_NO_LANE, (), self._single)
        self.producers.wake(self.room)

    def push(self, row: JobRow) -> None:
        """A row is ready."""
        entry, queue_lanes = row.entry, self.queue_lanes
        if entry.cls or entry.gates:
            self._push_into(row, (entry.cls, entry.gates))
        else:
            plain, alone = row.rank == row.due_at, not queue_lanes.lanes and queue_lanes.weight is None
            if plain and alone:
                heappush(self._single.items, (row.rank, entry.id, row))
                return
            leads = self._single.add(row)
            if not alone:
                self._join(leads)
            if plain:
                return
        ages = self._ages
        if len(ages) > 2 * self.counts[_READY] + _SMALL:
            ages[:] = [item for item in ages if _is_ready(item)]
            heapify(ages)
        heappush(ages, (row.due_at, entry.id, row))

    def withdraw(self, row: JobRow) -> None:
        """A ready row left without being claimed: it ended, or is behind another one of its line again."""
        entry = row.entry
        lane = self.queue_lanes.lanes.get((entry.cls, entry.gates))
        ready = self._single if lane is None else _ready_of(lane)
        ready.remove(row)
        if lane is not None:
            self._lanes.shrank(self.queue_lanes, lane)

    def take(self, count: int, cls: str | None, now: Instant, expiring: bool) -> tuple[list[JobRow], list[JobRow]]:
        """The next rows that gates admit, and rows that were met past their expiry; all of them left their lanes."""
        queue_lanes, lanes = self.queue_lanes, self._lanes
        if queue_lanes.lanes:
            if len(queue_lanes.lanes) == 1 and _NO_LANE in queue_lanes.lanes and queue_lanes.weight is None:
                lanes.drop(queue_lanes, queue_lanes.lanes[_NO_LANE])
            else:
                taken = lanes.take(queue_lanes, count, now, cls)
                for name, state in taken.gates.items():
                    if state.numbers[queue_lanes.queue].step:
                        lanes.started[name] = state
                return taken.jobs, taken.expired
        if cls:
            return [], []
        return self._take_single(
            min(count, room_of(queue_lanes.whole, now)) if queue_lanes.whole else count, now, expiring
        )

    def workable_at(self, now: Instant) -> Instant:
        """When a claim may find something that is ready: now, later at a rate, or never."""
        queue_lanes = self.queue_lanes
        if not self.counts[_READY]:
            return MAX_INSTANT
        if queue_lanes.lanes:
            return self._lanes.workable_at(queue_lanes, now)
        if (head := self._single.head()) is None:
            return now
        _, _, first = head
        return starts_at(queue_lanes.whole, first.entry.cost, now)

    def oldest(self, now: Instant) -> int:
        """How long the oldest ready row has been due."""
        ages = self._ages
        while ages and not _is_ready(ages[0]):
            heappop(ages)
        heads = [head for head in (ages[0] if ages else None, self._single.oldest()) if head is not None]
        return max((now - row.due_at for _, _, row in heads if row.due_at < now), default=0)

    def ahead(self, row: JobRow, maximum: int) -> int:
        """How many ready rows of its lane are ahead of this one, up to `maximum`."""
        return self._ready(row).before(row.rank, row.entry.id, maximum)

    def walk(self, lane: LaneName) -> Iterator[RankedRow]:
        """The ready rows of a lane, in order; nothing may change meanwhile."""
        return _ready_of(self.queue_lanes.lanes[lane]).walk()

    def hold(self, row: JobRow, now: Instant) -> Hold | None:
        """The gate that holds a ready row's lane, by its first job that has not expired."""
        lane = self.queue_lanes.lanes.get((row.entry.cls, row.entry.gates))
        alive = (each for _, _, each in self._ready(row).walk() if not each.is_expired(now))
        gates = (*self.queue_lanes.whole, *(() if lane is None else lane.gates))
        return gate_hold(gates, next(alive, row).entry.cost, now, lambda: self.ahead(row, MAX_AHEAD))

    def held(self, now: Instant) -> int:
        """How many ready rows closed gates hold, as far as claims have met them."""
        if closed_of(self.queue_lanes.whole, 1, now) is not None:
            return self.counts[_READY]
        held = 0
        for lane in islice(self.queue_lanes.parked, MAX_AHEAD):
            if lane.at is not None and not lane.at.is_open(lane.at.numbers[self.queue_lanes.queue], lane.cost, now):
                held += len(_ready_of(lane))
        return min(held, MAX_AHEAD)

    def _take_single(self, count: int, now: Instant, expiring: bool) -> tuple[list[JobRow], list[JobRow]]:
        whole = self.queue_lanes.whole
        rows = self._single.take(count)
        late = [row for row in rows if row.is_expired(now)] if expiring else []
        if late or (whole and any(row.entry.cost > 1 for row in rows)):
            for row in rows:
                self._single.add(row)
            rows, late = self._take_one_by_one(count, now)
        else:
            for gate, state in whole:
                state.take(self.queue_lanes.queue, gate, len(rows), now)
        if rows:
            self._lanes.started |= {state.name: state for gate, state in whole if gate.step}
        return rows, late

    def _take_one_by_one(self, count: int, now: Instant) -> tuple[list[JobRow], list[JobRow]]:
        """Where some are past their expiry, or cost more than one."""
        rows: list[JobRow] = []
        late: list[JobRow] = []
        while len(rows) < count and (row := self._single.peek()) is not None:
            if row.is_expired(now):
                late.append(row)
            elif start(self.queue_lanes.whole, self.queue_lanes.queue, row.entry.cost, now):
                rows.append(row)
            else:
                break
            self._single.pop()
        return rows, late

    def _push_into(self, row: JobRow, name: LaneName) -> None:
        queue_lanes, lanes = self.queue_lanes, self._lanes
        lane = queue_lanes.lanes.get(name)
        if lane is None:
            if not queue_lanes.lanes and len(self._single):
                lanes.add(queue_lanes, *_NO_LANE, (), self._single)
            ready = LaneRows()
            ready.add(row)
            lanes.add(queue_lanes, *name, self.stamper.gates(name[1]) if name[1] else (), ready)
        elif _ready_of(lane).add(row):
            lanes.grew(queue_lanes, lane)

    def _join(self, leads: bool) -> None:
        """The queue has other lanes besides the one without class and gates."""
        lane = self.queue_lanes.lanes.get(_NO_LANE)
        if lane is None:
            self._lanes.add(self.queue_lanes, *_NO_LANE, (), self._single)
        elif leads:
            self._lanes.grew(self.queue_lanes, lane)

    def _ready(self, row: JobRow) -> LaneRows:
        lane = self.queue_lanes.lanes.get((row.entry.cls, row.entry.gates))
        return self._single if lane is None else _ready_of(lane)


def _ready_of(lane: Lane[JobRow]) -> LaneRows:
    ready = lane.ready
    assert isinstance(ready, LaneRows)
    return ready


def _is_ready(item: RankedRow) -> bool:
    due_at, _, row = item
    return row.state is _READY and row.due_at == due_at
