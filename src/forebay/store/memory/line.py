"""One queue's derived state: its ready jobs by class and rank, its counts, its sleepers.

Nothing here is a fact: it is rebuilt from the rows. A plain FIFO queue has one class and pays for one heap.
"""

from heapq import heappush

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import DEPTH_MOST
from forebay.core.policy import Bounded
from forebay.core.share import Share
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.row import Row
from forebay.store.memory.waiters import Waiters

_READY = State.READY


class Line:
    """The ready side of one queue. `newest` maps a merge subject to its job that has not run yet.

    `_ages` finds the oldest ready job where the order of service is not the order of age.
    """

    __slots__ = (
        "_ages",
        "_classes",
        "_share",
        "bounded",
        "claimers",
        "counts",
        "newest",
        "producers",
        "spec",
        "stamper",
    )

    def __init__(self, spec: QueueSpec) -> None:
        self.counts = dict.fromkeys(State, 0)
        self.claimers = Waiters()
        self.producers = Waiters()
        self.newest: dict[str, int] = {}
        self._classes: dict[str, LazyHeap] = {}
        self._ages: LazyHeap | None = None
        self.configure(spec)

    @property
    def depth(self) -> int:
        counts = self.counts
        return counts[State.WAITING] + counts[_READY] + counts[State.RUNNING]

    @property
    def room(self) -> int:
        """How many more jobs fit in."""
        capacity = self.spec.capacity
        return capacity.limit - self.depth if isinstance(capacity, Bounded) else DEPTH_MOST

    def configure(self, spec: QueueSpec) -> None:
        """Ready jobs keep their ranks and classes; turns start anew with the new weights."""
        self.spec = spec
        self.bounded = isinstance(spec.capacity, Bounded)
        self.stamper = Stamper(spec)
        self._share = Share(spec.share.weights, spec.share.default) if spec.share else Share({})
        for name in self._classes:
            self._share.join(name)
        self.producers.wake(self.room)

    def push(self, row: Row) -> None:
        classes = self._classes
        name = row.entry.cls
        heap = classes.get(name)
        if heap is None:
            heap = classes[name] = LazyHeap()
        if len(classes) > 1:
            for each in classes if len(classes) == 2 else (name,):
                self._share.join(each)
        heappush(heap.items, (row.rank, row.entry.id, row))
        if self._ages is not None:
            self._ages.push(row.due_at, row)
        elif row.rank != row.due_at or len(classes) > 1:
            self._track_ages()

    def pop(self, count: int, cls: str | None) -> list[Row]:
        """The next rows, smallest rank first within a class, classes by their shares."""
        if cls is not None:
            return self._pop(cls, count)
        if len(self._classes) == 1:
            return self._pop(next(iter(self._classes)), count)
        turns = self._share.deal(count, lambda name: len(self._classes.get(name, ())))
        return [row for name, turn in turns for row in self._pop(name, turn)]

    def withdraw(self, row: Row) -> None:
        """A ready row ended without being claimed."""
        heap = self._classes.get(row.entry.cls)
        if heap is not None:
            heap.forget(row.rank, row)
        if self._ages is not None:
            self._ages.forget(row.due_at, row)

    def oldest(self, now: Instant) -> int:
        """How long the oldest ready row has been claimable."""
        if self._ages is not None:
            row = self._ages.peek()
        else:
            row = next(iter(self._classes.values())).peek() if self._classes else None
        return 0 if row is None else max(0, now - row.due_at)

    def _pop(self, name: str, count: int) -> list[Row]:
        heap = self._classes.get(name)
        if heap is None:
            return []
        rows = heap.take(count)
        if not len(heap):
            del self._classes[name]
        if self._ages is not None:
            for row in rows:
                self._ages.forget(row.due_at, row)
        return rows

    def _track_ages(self) -> None:
        ages = self._ages = LazyHeap()
        for heap in self._classes.values():
            for row in heap.rows():
                ages.push(row.due_at, row)
