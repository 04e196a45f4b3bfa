"""Timers that can be taken back exactly: names in buckets by instant, and a heap of the instants.

Instants are rounded up to a grain, so few buckets exist at a time and taking a name back leaves no trace. With a plain
heap every acknowledged lease would linger until its time, millions of them under load.
"""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

from forebay.core.instant import Duration, Instant

_FEW = 1_024

Name = TypeVar("Name", bound=Hashable)


def rounded_up(instant: Instant, span: Duration) -> Instant:
    """The end of a span, later than asked by at most 1/256 of it, or by a millisecond when it is short."""
    grain = max(1_000, span >> 8)
    return -(-instant // grain) * grain


class Deadlines(Generic[Name]):
    """Names by the instant at which they fall due, rounded up to the grain.

    Every bucket's instant stands in the heap `instants` once; a bucket may be empty for a while.
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
        for instant in self._in_order():
            if instant > now:
                return
            yield from self._buckets[instant]

    def _in_order(self) -> Iterator[Instant]:
        """The heap's instants, smallest first, at O(log k) for the k-th: the frontier holds what may come next."""
        instants = self.instants
        frontier = [(instants[0], 0)] if instants else []
        while frontier:
            instant, index = heappop(frontier)
            yield instant
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(instants):
                    heappush(frontier, (instants[child], child))

    def _sweep(self) -> None:
        self._buckets = {instant: bucket for instant, bucket in self._buckets.items() if bucket}
        self.instants = list(self._buckets)
        heapify(self.instants)
        self._empty = 0
