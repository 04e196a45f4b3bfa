"""Who rests in a queue that sheds, waiting or ready, in the order in which they would give way.

A heap that forgets lazily: whoever left is skipped when he surfaces, and thrown out once they are too many.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from forebay.core.policy import Shed
from forebay.core.shedding import Place
from forebay.store.memory.row import Row

_SMALL: Final = 64


class Resting:
    """The oldest first, or the last in rank."""

    def __init__(self, shed: Shed) -> None:
        self._lowest = shed.who == "lowest"
        self._heap: list[Place] = []
        self._gone: set[Place] = set()

    def add(self, row: Row) -> None:
        name = self._name(row)
        if name in self._gone:
            self._gone.remove(name)
        else:
            heappush(self._heap, name)

    def drop(self, row: Row) -> None:
        """As it was when it was added."""
        self._gone.add(self._name(row))
        if len(self._gone) > _SMALL and len(self._gone) * 2 > len(self._heap):
            self._heap = [name for name in self._heap if name not in self._gone]
            self._gone.clear()
            heapify(self._heap)

    def __iter__(self) -> Iterator[Place]:
        """In order, at O(log k) for the k-th: the frontier holds what may come next."""
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            name, index = heappop(frontier)
            if name not in self._gone:
                yield (-name[0], -name[1]) if self._lowest else name
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))

    def _name(self, row: Row) -> Place:
        return (-row.rank, -row.entry.id) if self._lowest else (0, row.entry.id)
