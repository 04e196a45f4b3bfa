"""A heap whose keys may grow unseen, and which may be loaded piece by piece; and a merge of walks that begin late."""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any, Final, Generic, TypeAlias, TypeVar

_SMALL: Final = 64
_numbers: Final = count()
"""What tells entries with the same key apart."""

T = TypeVar("T")
Placed = TypeVar("Placed", bound=tuple[Any, ...])
"""Begins with a rank and an id."""

Key: TypeAlias = tuple[int, ...]
More: TypeAlias = Callable[[], Key | None]
"""Loads further things into an order; the key below which all are loaded, or None once everything is."""


class Order(Generic[T]):
    """Things by key, smallest first. Keys may grow unseen: a key is read again when its thing surfaces.

    A thing whose key became smaller must be `put` again; one whose key is None is dropped.
    """

    __slots__ = ("_heap", "_horizon", "_key", "_live", "_more")

    def __init__(self, key: Callable[[T], Key | None], more: More | None = None) -> None:
        self._key = key
        self._more = more
        self._horizon: Key | None = None if more is None else ()
        self._heap: list[tuple[Key, int, T]] = []
        self._live: dict[T, tuple[Key, int, T]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, thing: T) -> bool:
        return thing in self._live

    def put(self, thing: T) -> bool:
        """Whether the thing may be the first one now; False: one before it was there already."""
        key = self._key(thing)
        known = self._live.get(thing)
        if key is None or (known is not None and known[0] == key):
            return False
        entry = self._live[thing] = (key, next(_numbers), thing)
        if len(self._heap) > 2 * len(self._live) + _SMALL:
            self._heap = list(self._live.values())
            heapify(self._heap)
        else:
            heappush(self._heap, entry)
        return self._heap[0] is entry

    def drop(self, thing: T) -> None:
        self._live.pop(thing, None)

    def sole(self) -> T | None:
        """The only thing there is, if so; its key is not read."""
        return next(iter(self._live)) if len(self._live) == 1 and self._horizon is None else None

    def first(self) -> T | None:
        thing = self._surfaced()
        if self._horizon is None:
            return thing
        while self._horizon is not None and self._more is not None:
            if thing is not None and self._live[thing][0] < self._horizon:
                break
            self._horizon = self._more()
            thing = self._surfaced()
        return thing

    def _surfaced(self) -> T | None:
        heap, live = self._heap, self._live
        while heap:
            entry = heap[0]
            known_key, _, thing = entry
            if live.get(thing) is not entry:
                heappop(heap)
                continue
            key = self._key(thing)
            if key == known_key:
                return thing
            if key is None:
                heappop(heap)
                del live[thing]
            else:
                entry = live[thing] = (key, next(_numbers), thing)
                heapreplace(heap, entry)
                if heap[0] is entry:
                    return thing
        return None


def merged(starts: Iterable[tuple[Key, T]], walk: Callable[[T], Iterator[Placed]]) -> Iterator[Placed]:
    """What these walks give, by (rank, id). Each begins when it is next, at the key before which it has nothing."""
    waiting = dict(enumerate(starts))
    heap: list[tuple[Key, int, Placed | None]] = [(key, number, None) for number, (key, _) in waiting.items()]
    heapify(heap)
    walks: dict[int, Iterator[Placed]] = {}
    while heap:
        _, number, item = heap[0]
        if item is None:
            walks[number] = walk(waiting[number][1])
        else:
            yield item
        item = next(walks[number], None)
        if item is None:
            heappop(heap)
        else:
            heapreplace(heap, (item[:2], number, item))
