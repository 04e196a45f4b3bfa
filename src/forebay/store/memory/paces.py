"""Who waits at a rate, by queue: only a claim of a queue lets its jobs in, and only what it hands out.

Each rate at which jobs of a queue are parked is in one of two heaps of that queue: `later` by the instant at which it
lets the first of them in, or `open` by that one's place in line, from that instant on. A rate that changes (its first
job, its tide, its numbers) goes back to `later`; entries that no longer hold are skipped when they surface.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from forebay.core.instant import Instant
from forebay.core.limits import INSTANT_MOST
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.row import Row

_SMALL: Final = 64


class _Queue:
    """The rates of one queue. `times` and `firsts` say which entries of the heaps hold."""

    __slots__ = ("firsts", "later", "open", "parked", "times")

    def __init__(self) -> None:
        self.parked: dict[str, LazyHeap] = {}
        self.times: dict[str, Instant] = {}
        self.firsts: dict[str, tuple[int, int]] = {}
        self.later: list[tuple[Instant, str]] = []
        self.open: list[tuple[int, int, str]] = []

    def wait(self, name: str, opens_at: Instant) -> None:
        self.times[name] = opens_at
        if len(self.later) > _SMALL + 2 * len(self.times):
            self.later = [(at, each) for each, at in self.times.items() if each != name]
            heapify(self.later)
        heappush(self.later, (opens_at, name))

    def next(self) -> Instant:
        while self.later and self.times.get(self.later[0][1]) != self.later[0][0]:
            heappop(self.later)
        return self.later[0][0] if self.later else INSTANT_MOST

    def first(self) -> str | None:
        """The rate whose first job goes before those of the other open ones."""
        while self.open and self.firsts.get(self.open[0][2]) != self.open[0][:2]:
            heappop(self.open)
        return self.open[0][2] if self.open else None


class Paces:
    """The rates of a store that somebody is parked at. `opens_at` tells when one lets a job in."""

    def __init__(self, opens_at: Callable[[str, Row], Instant]) -> None:
        self._opens_at = opens_at
        self._queues: dict[str, _Queue] = {}
        self._at: dict[str, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    def park(self, name: str, row: Row) -> None:
        queue = self._queues.setdefault(row.entry.queue, _Queue())
        heap = queue.parked.setdefault(name, LazyHeap())
        heap.push(row.rank, row)
        self._at.setdefault(name, {})[row.entry.queue] = None
        if heap.peek() is row:
            self._look(queue, name)

    def leave(self, name: str, row: Row) -> None:
        queue = self._queues[row.queue]
        heap = queue.parked[name]
        first = heap.peek()
        was_first = first is not None and first.entry.id == row.entry.id
        heap.forget(row.rank, row)
        if was_first:
            self._look(queue, name)
        if not len(heap):
            del queue.parked[name]
            del self._at[name][row.queue]
            if not self._at[name]:
                del self._at[name]
        if not queue.parked:
            del self._queues[row.queue]

    def moved(self, name: str) -> None:
        """The rate's tide or numbers are others now."""
        for queue in self._at.get(name, ()):
            self._look(self._queues[queue], name)

    def first(self, name: str, queue: str) -> Row | None:
        """The first job of the queue that is parked at the rate."""
        known = self._queues.get(queue)
        heap = None if known is None else known.parked.get(name)
        return None if heap is None else heap.peek()

    def next_start(self, queue: str, now: Instant, cls: str | None) -> Row | None:
        """The first job of the queue that its rate lets in now; `cls`: among those whose first is of that class."""
        known = self._queues.get(queue)
        if known is None:
            return None
        _ripen(known, now)
        if cls is None:
            name = known.first()
            return None if name is None else known.parked[name].peek()
        rows = [row for each in known.firsts if (row := known.parked[each].peek()) is not None and row.entry.cls == cls]
        return min(rows, key=lambda row: (row.rank, row.entry.id), default=None)

    def ripen(self, now: Instant) -> list[str]:
        """What opened meanwhile is open: `next` tells of what is still to come. Returns the queues where some did."""
        return [name for name, queue in self._queues.items() if _ripen(queue, now)]

    def next(self) -> Instant:
        """When the next rate lets somebody in."""
        return min((queue.next() for queue in self._queues.values()), default=INSTANT_MOST)

    def start_at(self, queue: str) -> Instant:
        """When a claim of the queue finds somebody whom his rate lets in; 0: at once."""
        known = self._queues.get(queue)
        return INSTANT_MOST if known is None else 0 if known.firsts else known.next()

    def _look(self, queue: _Queue, name: str) -> None:
        queue.firsts.pop(name, None)
        queue.times.pop(name, None)
        row = queue.parked[name].peek()
        opens_at = INSTANT_MOST if row is None else self._opens_at(name, row)
        if opens_at < INSTANT_MOST:
            queue.wait(name, opens_at)


def _ripen(queue: _Queue, now: Instant) -> int:
    opened = 0
    while queue.next() <= now:
        _, name = heappop(queue.later)
        del queue.times[name]
        row = queue.parked[name].peek()
        if row is not None:
            queue.firsts[name] = (row.rank, row.entry.id)
            heappush(queue.open, (row.rank, row.entry.id, name))
            opened += 1
    return opened
