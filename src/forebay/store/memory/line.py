"""One queue's derived state: its ready jobs by class and rank, its counts, its sleepers.

Nothing here is a fact: it is rebuilt from the rows. A row without a class whose rank is its due time is plain: it is
served in the order of age. The others are odd, and pay for a second heap that knows their ages.
"""

from collections.abc import Callable
from heapq import heappush

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import DEPTH_MOST
from forebay.core.policy import Bounded
from forebay.core.share import Share
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.resting import Resting
from forebay.store.memory.row import Row
from forebay.store.memory.waiters import Waiters

_READY = State.READY


class Line:
    """The ready side of one queue. `newest` maps a merge subject to its job that has not run yet.

    `_classes` has a heap for every class with ready rows; where there is no class it has the plain ones, and `_odd` the
    others. `_ages` has all that is odd, by age. `rejoins`: who takes turns without ready rows joins anew.
    """

    __slots__ = (
        "_ages",
        "_classes",
        "_odd",
        "_share",
        "bounded",
        "claimers",
        "counts",
        "newest",
        "producers",
        "rejoins",
        "resting",
        "spec",
        "stamper",
    )

    def __init__(self, spec: QueueSpec) -> None:
        self.counts = dict.fromkeys(State, 0)
        self.claimers = Waiters()
        self.producers = Waiters()
        self.newest: dict[str, int] = {}
        self._classes: dict[str, LazyHeap] = {}
        self._odd = LazyHeap()
        self._ages = LazyHeap()
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
        """Ready jobs keep their ranks and classes; turns start anew with the new weights. Nobody rests yet."""
        self.spec = spec
        self.bounded = isinstance(spec.capacity, Bounded)
        self.stamper = Stamper(spec)
        self.resting = None if self.stamper.sheds is None else Resting(self.stamper.sheds)
        self.rejoins = True
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
        if name or row.rank != row.due_at:
            self._ages.push(row.due_at, row)
            heap = heap if name else self._odd
        heappush(heap.items, (row.rank, row.entry.id, row))

    def pop(self, count: int, cls: str | None) -> list[Row]:
        """The next rows, smallest rank first within a class, classes by their shares."""
        if cls is not None:
            return self._pop(cls, count)
        if len(self._classes) == 1:
            return self._pop(next(iter(self._classes)), count)
        turns = self._share.deal(count, self._size)
        return [row for name, turn in turns for row in self._pop(name, turn)]

    def next_class(self, joining: list[str], starts: Callable[[str], bool]) -> str | None:
        """Whose turn it is, of those that have ready rows or somebody who starts."""
        self.rejoins = False
        for name in (*joining, *self._classes) if len(self._classes) == 1 else joining:
            self._share.join(name)
        turns = self._share.deal(1, lambda name: self._size(name) + 2 * starts(name))
        return turns[0][0] if turns else None

    def withdraw(self, row: Row) -> None:
        """A ready row ended without being claimed."""
        plain = _is_plain(row)
        heap = self._classes.get(row.entry.cls) if plain or row.entry.cls else self._odd
        if heap is not None:
            heap.forget(row.rank, row)
        if not plain:
            self._ages.forget(row.due_at, row)

    def oldest(self, now: Instant) -> int:
        """How long the oldest ready row has been claimable."""
        plain = self._classes.get("")
        rows = (self._ages.peek(), None if plain is None else plain.peek())
        return max((now - row.due_at for row in rows if row is not None and row.due_at < now), default=0)

    def ahead(self, row: Row, most: int) -> int:
        """How many of its class go before this ready row, so many at most."""
        heaps = [self._classes.get(row.entry.cls)] if row.entry.cls else [self._classes.get(""), self._odd]
        return min(most, sum(heap.before(row.rank, row, most) for heap in heaps if heap is not None))

    def _pop(self, name: str, count: int) -> list[Row]:
        heap = self._classes.get(name)
        if heap is None:
            return []
        rows = heap.take(count) if name or not self._odd.items else _merged(self._odd, heap, count)
        if not self._size(name):
            del self._classes[name]
        if self._ages.items:
            for row in rows:
                if not _is_plain(row):
                    self._ages.forget(row.due_at, row)
        return rows

    def _size(self, name: str) -> int:
        heap = self._classes.get(name)
        return 0 if heap is None else len(heap) if name else len(heap) + len(self._odd)


def _is_plain(row: Row) -> bool:
    return row.rank == row.due_at and not row.entry.cls


def _merged(one: LazyHeap, other: LazyHeap, count: int) -> list[Row]:
    """Up to so many rows of both, in order."""
    rows: list[Row] = []
    while len(rows) < count:
        first, second = one.peek(), other.peek()
        if first is None or (second is not None and (second.rank, second.entry.id) < (first.rank, first.entry.id)):
            first = second
            one, other = other, one
        if first is None:
            break
        one.pop()
        rows.append(first)
    return rows
