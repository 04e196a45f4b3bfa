"""What holds a queue up, for people: who has been parked longest, and lines whose dead head lets nobody pass.

Kept as rows park and fall, so that a look walks neither all who are parked nor all who died.
"""

from collections.abc import Callable
from itertools import islice

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import BLOCKED_MOST
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.row import Row


class HoldUps:
    """By queue: its parked rows by due time, and its lines with the dead that stand in them."""

    def __init__(self) -> None:
        self._parked: dict[str, LazyHeap] = {}
        self._fallen: dict[str, dict[str, set[int]]] = {}

    def park(self, row: Row) -> None:
        self._parked.setdefault(row.queue, LazyHeap()).push(row.due_at, row)

    def leave(self, row: Row) -> None:
        heap = self._parked[row.queue]
        heap.forget(row.due_at, row)
        if not len(heap):
            del self._parked[row.queue]

    def fall(self, line: str, row: Row) -> None:
        """A row died in a line that the dead block."""
        self._fallen.setdefault(row.queue, {}).setdefault(line, set()).add(row.entry.id)

    def rise(self, line: str, row: Row) -> None:
        """If it stood there dead, it does not any more."""
        lines = self._fallen.get(row.queue, {})
        dead = lines.get(line, set())
        dead.discard(row.entry.id)
        if not dead:
            lines.pop(line, None)
        if not lines:
            self._fallen.pop(row.queue, None)

    def oldest(self, queue: str, now: Instant) -> int:
        """How long the row of the queue that has been due longest has been parked; 0: none is."""
        heap = self._parked.get(queue)
        row = None if heap is None else heap.peek()
        return 0 if row is None else max(0, now - row.due_at)

    def blocked(self, queue: str, head: Callable[[str], Row | None]) -> int:
        """How many lines of the queue have a dead head."""
        lines = islice(self._fallen.get(queue, ()), BLOCKED_MOST)
        return sum((row := head(name)) is not None and row.state is State.DEAD for name in lines)
