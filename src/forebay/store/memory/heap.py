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
    """Rows by (key, id), smallest first; `holds(key, row)` tells whether an entry still means anything."""

    __slots__ = ("_holds", "_items", "_stale")

    def __init__(self, holds: Callable[[int, Row], bool]) -> None:
        self._holds = holds
        self._items: list[Item] = []
        self._stale = 0

    def __len__(self) -> int:
        return len(self._items) - self._stale

    def push(self, key: int, row: Row) -> None:
        heappush(self._items, (key, row.entry.id, row))

    def peek(self) -> Row | None:
        while self._items:
            key, _, row = self._items[0]
            if self._holds(key, row):
                return row
            heappop(self._items)
            self._stale = max(0, self._stale - 1)
        return None

    def pop(self) -> Row | None:
        row = self.peek()
        if row is not None:
            heappop(self._items)
        return row

    def take(self, count: int) -> list[Row]:
        """Up to so many rows, in order."""
        items, holds = self._items, self._holds
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
        return (row for key, _, row in self._items if self._holds(key, row))

    def forget(self) -> None:
        """One entry, wherever it is, no longer holds."""
        self._stale += 1
        if self._stale > _SMALL and self._stale * 2 > len(self._items):
            self._items = [item for item in self._items if self._holds(item[0], item[2])]
            heapify(self._items)
            self._stale = 0
