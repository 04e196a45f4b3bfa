"""Rows of one queue at one gate, where classes take turns: by class and rank, and whose turn it is.

Only memory: a recovered store parks its rows anew, and turns begin anew with them.
"""

from forebay.core.share import Ring
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.row import Row


class Turns:
    """The classes that have somebody parked there."""

    __slots__ = ("_classes", "_ring")

    def __init__(self) -> None:
        self._classes: dict[str, LazyHeap] = {}
        self._ring = Ring()

    def __bool__(self) -> bool:
        return bool(self._classes)

    def park(self, row: Row) -> None:
        self._classes.setdefault(row.entry.cls, LazyHeap()).push(row.rank, row)
        self._ring.join(row.entry.cls)

    def leave(self, row: Row) -> None:
        heap = self._classes[row.entry.cls]
        heap.forget(row.rank, row)
        if not len(heap):
            del self._classes[row.entry.cls]

    def head(self) -> str | None:
        """The class whose turn it is."""
        return self._ring.head(self._classes.__contains__)

    def first(self, cls: str | None) -> Row | None:
        heap = None if cls is None else self._classes.get(cls)
        return None if heap is None else heap.peek()

    def before(self, row: Row, most: int) -> int:
        """How many of its class go before this one."""
        return self._classes[row.entry.cls].before(row.rank, row, most)

    def took(self, row: Row, weight: int) -> None:
        self._ring.took(row.entry.cls, weight)
