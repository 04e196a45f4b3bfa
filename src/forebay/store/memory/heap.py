"""A heap that forgets lazily: entries that no longer hold are skipped when they surface.

The owner says when an entry went stale (`forget`), and once more than half of a large heap is stale it is rebuilt:
amortised O(1) a forgotten entry, and the memory stays within twice what is alive.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from forebay.store.memory.row import Row

_SMALL = 64

Item: TypeAlias = tuple[int, int, Row]


class LazyHeap:
    """Rows by (key, id), smallest first; `holds(key, row)` tells whether an entry still means anything.

    `items` is the raw heap, stale entries and all: empty means that nothing is there.
    """

    __slots__ = ("_holds", "_stale", "items")

    def __init__(self, holds: Callable[[int, Row], bool]) -> None:
        self._holds = holds
        self.items: list[Item] = []
        self._stale = 0

    def __len__(self) -> int:
        return len(self.items) - self._stale

    def push(self, key: int, row: Row) -> None:
        heappush(self.items, (key, row.entry.id, row))

    def peek(self) -> Row | None:
        while self.items:
            key, _, row = self.items[0]
            if self._holds(key, row):
                return row
            heappop(self.items)
            self._stale = max(0, self._stale - 1)
        return None

    def pop(self) -> Row | None:
        row = self.peek()
        if row is not None:
            heappop(self.items)
        return row

    def take(self, count: int) -> list[Row]:
        """Up to so many rows, in order."""
        items, holds = self.items, self._holds
        rows: list[Row] = []
        while items and len(rows) < count:
            key, _, row = heappop(items)
            if holds(key, row):
                rows.append(row)
            elif self._stale:
                self._stale -= 1
        return rows

    def rows(self) -> Iterator[Row]:
        """What still holds, in no order."""
        return (row for key, _, row in self.items if self._holds(key, row))

    def forget(self) -> None:
        """One entry, wherever it is, no longer holds."""
        self._stale += 1
        if self._stale > _SMALL and self._stale * 2 > len(self.items):
            self.items = [item for item in self.items if self._holds(item[0], item[2])]
            heapify(self.items)
            self._stale = 0
