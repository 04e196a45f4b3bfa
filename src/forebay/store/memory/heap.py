"""A heap that forgets lazily: an entry that was taken back is skipped when it surfaces.

`forget` counts the entry (key, id) as dead; equal entries are interchangeable, so a row may be pushed again under the
same key while its old entry is still inside. Once more than half of a large heap is dead it is rebuilt: amortised O(1)
a forgotten entry, and the memory stays within twice what is alive.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from forebay.store.memory.row import Row

_SMALL: Final = 64

Item: TypeAlias = tuple[int, int, Row]


class LazyHeap:
    """Rows by (key, id), smallest first. `items` is the raw heap with its dead: when it is empty, nothing is there."""

    __slots__ = ("_dead", "_dead_count", "items")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._dead: dict[tuple[int, int], int] = {}
        self._dead_count = 0

    def __len__(self) -> int:
        return len(self.items) - self._dead_count

    def push(self, key: int, row: Row) -> None:
        heappush(self.items, (key, row.entry.id, row))

    def head(self) -> Item | None:
        """The first row with its key and id."""
        items = self.items
        while items:
            if not self._dead or not self._bury(items[0]):
                return items[0]
            heappop(items)
        return None

    def peek(self) -> Row | None:
        head = self.head()
        return None if head is None else head[2]

    def pop(self) -> Row | None:
        return None if self.head() is None else heappop(self.items)[2]

    def walk(self) -> Iterator[Item]:
        """In order, at O(log k) for the k-th: the frontier holds what may come next. Nothing may change meanwhile."""
        items, dead = self.items, dict(self._dead)
        frontier = [(items[0], 0)] if items else []
        while frontier:
            item, index = heappop(frontier)
            if dead.get(item[:2], 0):
                dead[item[:2]] -= 1
            else:
                yield item
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(items):
                    heappush(frontier, (items[child], child))

    def take(self, count: int) -> list[Row]:
        """Up to so many rows, in order."""
        items = self.items
        rows: list[Row] = []
        while items and len(rows) < count:
            item = heappop(items)
            if not self._dead or not self._bury(item):
                rows.append(item[2])
        return rows

    def before(self, key: int, row: Row, most: int, counts: Callable[[Row], bool] = lambda _: True) -> int:
        """How many rows go before this one, `most` at most. Only what does, and what hangs below it, is looked at."""
        items, mine = self.items, (key, row.entry.id)
        found: dict[tuple[int, int], int] = {}
        places = [0]
        while places and len(found) < most + self._dead_count:
            place = places.pop()
            if place < len(items) and items[place][:2] < mine:
                places += (2 * place + 1, 2 * place + 2)
                if counts(items[place][2]):
                    found[items[place][:2]] = found.get(items[place][:2], 0) + 1
        return min(most, sum(times > self._dead.get(name, 0) for name, times in found.items()))

    def forget(self, key: int, row: Row) -> None:
        """The row's entry under this key, wherever it is, is dead."""
        name = (key, row.entry.id)
        if not self._dead and self.items[0][:2] == name:
            heappop(self.items)
            return
        self._dead[name] = self._dead.get(name, 0) + 1
        self._dead_count += 1
        if self._dead_count > _SMALL and self._dead_count * 2 > len(self.items):
            self._rebuild()

    def _bury(self, item: Item) -> bool:
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

    def _rebuild(self) -> None:
        if self._dead:
            self.items = [item for item in self.items if not self._bury(item)]
            heapify(self.items)
