"""Heaps from which entries can be taken back: `LazyHeap` skips them when they surface, `Deadlines` has none left.

Rows are taken back all the time: by a cancel, by another rank, by a lease that is acknowledged. Memory stays within
twice what is alive, at amortised O(1) for each entry that is taken back.
"""

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from forebay.core.instant import Duration, Instant

_SMALL: Final = 64
_FEW: Final = 1_024

T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


def in_order(heap: list[Any]) -> Iterator[Any]:
    """The entries, smallest first, at O(log k) for the k-th; nothing may change meanwhile."""
    frontier = [(heap[0], 0)] if heap else []
    while frontier:
        entry, index = heappop(frontier)
        yield entry
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))


def rounded_up(instant: Instant, duration: Duration) -> Instant:
    """The end of a duration, later than requested by at most 1/256 of it, or by a millisecond when it is short."""
    grain = max(1_000, duration >> 8)
    return -(-instant // grain) * grain


class LazyHeap(Generic[T]):
    """Things by (key, id), smallest first. `items` is the raw heap with its dead: when it is empty, nothing is there.

    `forget` counts the entry (key, id) as dead; equal entries are interchangeable, so a thing may be pushed again under
    the same key while its old entry is still inside. Once more than half of a large heap is dead it is rebuilt.
    """

    __slots__ = ("_dead", "_dead_count", "items")

    def __init__(self) -> None:
        self.items: list[tuple[int, int, T]] = []
        self._dead: dict[tuple[int, int], int] = {}
        self._dead_count = 0

    def __len__(self) -> int:
        return len(self.items) - self._dead_count

    def push(self, key: int, number: int, thing: T) -> None:
        heappush(self.items, (key, number, thing))

    def head(self) -> tuple[int, int, T] | None:
        """The first thing with its key and id."""
        items = self.items
        while items:
            if not self._dead or not self._uncount(items[0]):
                return items[0]
            heappop(items)
        return None

    def peek(self) -> T | None:
        if (head := self.head()) is None:
            return None
        _, _, thing = head
        return thing

    def pop(self) -> T | None:
        if self.head() is None:
            return None
        _, _, thing = heappop(self.items)
        return thing

    def walk(self) -> Iterator[tuple[int, int, T]]:
        """All that is alive, in order; nothing may change meanwhile."""
        self.head()
        met: dict[tuple[int, int], int] = {}
        for item in in_order(self.items):
            name = item[:2]
            if name in self._dead:
                met[name] = met.get(name, 0) + 1
                if met[name] <= self._dead[name]:
                    continue
            yield item

    def take(self, count: int) -> list[T]:
        """Up to this many things, in order."""
        items = self.items
        things: list[T] = []
        while items and len(things) < count:
            item = heappop(items)
            if not self._dead or not self._uncount(item):
                _, _, thing = item
                things.append(thing)
        return things

    def before(self, key: int, number: int, maximum: int, counts: Callable[[T], bool] = lambda _: True) -> int:
        """How many things go before this one, `maximum` at most. Only those, and what hangs below them, are read."""
        items, mine = self.items, (key, number)
        found: dict[tuple[int, int], int] = {}
        places = [0]
        while places and len(found) < maximum + self._dead_count:
            place = places.pop()
            if place < len(items) and (name := items[place][:2]) < mine:
                places += (2 * place + 1, 2 * place + 2)
                _, _, thing = items[place]
                if counts(thing):
                    found[name] = found.get(name, 0) + 1
        return min(maximum, sum(times > self._dead.get(name, 0) for name, times in found.items()))

    def forget(self, key: int, number: int) -> None:
        """The entry, wherever it is, is dead."""
        name = (key, number)
        if not self._dead and self.items[0][:2] == name:
            heappop(self.items)
            return
        self._dead[name] = self._dead.get(name, 0) + 1
        self._dead_count += 1
        if self._dead_count > _SMALL and self._dead_count * 2 > len(self.items):
            self.items = [item for item in self.items if not self._uncount(item)]
            heapify(self.items)

    def _uncount(self, item: tuple[int, int, T]) -> bool:
        """Whether the entry is dead; if so, it is one dead entry less."""
        name = item[:2]
        count = self._dead.get(name)
        if count is None:
            return False
        if count == 1:
            del self._dead[name]
        else:
            self._dead[name] = count - 1
        self._dead_count -= 1
        return True


class Deadlines(Generic[Name]):
    """Names in buckets by the instant at which they fall due, rounded up to the grain, and a heap of the instants.

    Few buckets exist at a time, and taking a name back leaves no trace. In a plain heap every acknowledged lease would
    linger until its time, millions of them under load. Every bucket's instant is in the heap `instants` once; a
    bucket may be empty for a while.
    """

    __slots__ = ("_buckets", "_empty", "_grain", "instants")

    def __init__(self, grain: Duration = 1) -> None:
        self.instants: list[Instant] = []
        self._grain = grain
        self._buckets: dict[Instant, dict[Name, None]] = {}
        self._empty = 0

    def add(self, at: Instant, name: Name) -> None:
        at = -(-at // self._grain) * self._grain
        bucket = self._buckets.get(at)
        if bucket is None:
            self._buckets[at] = {name: None}
            heappush(self.instants, at)
            return
        if not bucket:
            self._empty -= 1
        bucket[name] = None

    def remove(self, at: Instant, name: Name) -> None:
        bucket = self._buckets.get(-(-at // self._grain) * self._grain)
        if bucket is None or name not in bucket:
            return
        del bucket[name]
        if not bucket:
            self._empty += 1
            if self._empty > _FEW and self._empty * 2 > len(self._buckets):
                self._sweep()

    def next(self) -> Instant | None:
        """The first instant at which something falls due."""
        while self.instants and not self._buckets[self.instants[0]]:
            del self._buckets[heappop(self.instants)]
            self._empty -= 1
        return self.instants[0] if self.instants else None

    def due(self, now: Instant, limit: int) -> list[Name]:
        """What fell due at or before now, oldest first; it stays until it is removed."""
        return list(islice(self.walk(now), limit))

    def walk(self, now: Instant) -> Iterator[Name]:
        """The same, one by one; nothing may be added or removed meanwhile."""
        self.next()
        for instant in in_order(self.instants):
            if instant > now:
                return
            yield from self._buckets[instant]

    def _sweep(self) -> None:
        self._buckets = {instant: bucket for instant, bucket in self._buckets.items() if bucket}
        self.instants = list(self._buckets)
        heapify(self.instants)
        self._empty = 0
