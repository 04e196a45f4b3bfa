"""Who waits at a rate, by queue: only a claim of a queue lets its jobs in, and only what it hands out.

Each rate at which jobs of a queue are parked is in one of two sorts of heaps of that queue: `later` by the instant at
which it lets the next of them in, or `open` by the class and the place in line of that one, from that instant on. A
rate that changes (who is next, its tide, its numbers) goes back to `later`; entries that no longer hold are skipped
when they surface.
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
    """The rates of one queue. `times` and `firsts` say which entries of the heaps hold; `next_ids` who is next.

    `joining`: classes for which a rate opened, and whom nobody has told yet.
    """

    __slots__ = ("firsts", "joining", "later", "next_ids", "open", "parked", "times")

    def __init__(self) -> None:
        self.parked: dict[str, LazyHeap] = {}
        self.times: dict[str, Instant] = {}
        self.firsts: dict[str, tuple[str, int, int]] = {}
        self.next_ids: dict[str, int] = {}
        self.later: list[tuple[Instant, str]] = []
        self.open: dict[str, list[tuple[int, int, str]]] = {}
        self.joining: dict[str, None] = {}

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

    def stand_open(self, name: str, row: Row) -> None:
        cls, place = row.entry.cls, (row.rank, row.entry.id)
        self.firsts[name] = (cls, *place)
        heappush(self.open.setdefault(cls, []), (*place, name))
        self.joining[cls] = None

    def first(self, cls: str) -> tuple[int, int, str] | None:
        """Who is next at an open rate, of those of the class, and that rate."""
        heap = self.open.get(cls, [])
        while heap and self.firsts.get(heap[0][2]) != (cls, *heap[0][:2]):
            heappop(heap)
        if heap:
            return heap[0]
        self.open.pop(cls, None)
        return None


class Paces:
    """The rates of a store that somebody is parked at. `opens_at` tells when one lets a job in.

    `in_turn` tells who goes for the first in rank.
    """

    def __init__(self, opens_at: Callable[[str, Row], Instant], in_turn: Callable[[str, Row], Row]) -> None:
        self._opens_at = opens_at
        self._in_turn = in_turn
        self._queues: dict[str, _Queue] = {}
        self._at: dict[str, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    def has(self, queue: str) -> bool:
        """Whether somebody of the queue is parked at a rate."""
        return queue in self._queues

    def park(self, name: str, row: Row) -> None:
        queue = self._queues.setdefault(row.entry.queue, _Queue())
        heap = queue.parked.setdefault(name, LazyHeap())
        heap.push(row.rank, row)
        self._at.setdefault(name, {})[row.entry.queue] = None
        self._look_again(queue, name)

    def leave(self, name: str, row: Row) -> None:
        queue = self._queues[row.queue]
        heap = queue.parked[name]
        heap.forget(row.rank, row)
        self._look_again(queue, name)
        if not len(heap):
            del queue.parked[name]
            del queue.next_ids[name]
            del self._at[name][row.queue]
            if not self._at[name]:
                del self._at[name]
        if not queue.parked:
            del self._queues[row.queue]

    def moved(self, name: str) -> list[Row]:
        """The rate's tide or numbers are others now. Returns who is next there, of each queue."""
        rows = [self._look(self._queues[queue], name) for queue in self._at.get(name, ())]
        return [row for row in rows if row is not None]

    def first(self, name: str, queue: str) -> Row | None:
        """Who of the queue is next at the rate."""
        known = self._queues.get(queue)
        return None if known is None or name not in known.parked else self._next(known, name)

    def earliest(self, name: str, queue: str) -> Row | None:
        """Who of the queue is parked at the rate and first in rank."""
        known = self._queues.get(queue)
        heap = None if known is None else known.parked.get(name)
        return None if heap is None else heap.peek()

    def joining(self, queue: str, now: Instant, *, anew: bool) -> list[str]:
        """Classes for which a rate of the queue stands open, that were not told yet; `anew`: all of them."""
        known = self._queues.get(queue)
        if known is None:
            return []
        self._ripen(known, now)
        names = list(known.open if anew else known.joining)
        known.joining.clear()
        return names

    def is_open(self, queue: str, cls: str) -> bool:
        """Whether a rate lets in somebody of the class."""
        known = self._queues.get(queue)
        return known is not None and known.first(cls) is not None

    def next_start(self, queue: str, now: Instant, cls: str | None) -> Row | None:
        """Who of the queue is next at a rate that lets it in now; `cls`: of that class."""
        known = self._queues.get(queue)
        if known is None:
            return None
        self._ripen(known, now)
        classes = list(known.open) if cls is None else [cls]
        found = min((first for each in classes if (first := known.first(each)) is not None), default=None)
        return None if found is None else self._next(known, found[2])

    def ripen(self, now: Instant) -> list[str]:
        """What opened meanwhile is open: `next` tells of what is still to come. Returns the queues where some did."""
        return [name for name, queue in self._queues.items() if self._ripen(queue, now)]

    def next(self) -> Instant:
        """When the next rate lets somebody in."""
        return min((queue.next() for queue in self._queues.values()), default=INSTANT_MOST)

    def start_at(self, queue: str) -> Instant:
        """When a claim of the queue finds somebody whom his rate lets in; 0: at once."""
        known = self._queues.get(queue)
        return INSTANT_MOST if known is None else 0 if known.firsts else known.next()

    def _next(self, queue: _Queue, name: str) -> Row | None:
        first = queue.parked[name].peek()
        return None if first is None else self._in_turn(name, first)

    def _look_again(self, queue: _Queue, name: str) -> None:
        """Somebody came or went."""
        row = self._next(queue, name)
        if row is None or queue.next_ids.get(name) != row.entry.id:
            self._look(queue, name)

    def _look(self, queue: _Queue, name: str) -> Row | None:
        queue.firsts.pop(name, None)
        queue.times.pop(name, None)
        row = self._next(queue, name)
        queue.next_ids[name] = 0 if row is None else row.entry.id
        opens_at = INSTANT_MOST if row is None else self._opens_at(name, row)
        if opens_at < INSTANT_MOST:
            queue.wait(name, opens_at)
        return row

    def _ripen(self, queue: _Queue, now: Instant) -> int:
        opened = 0
        while queue.next() <= now:
            _, name = heappop(queue.later)
            del queue.times[name]
            row = self._next(queue, name)
            if row is not None:
                queue.stand_open(name, row)
                opened += 1
        return opened
