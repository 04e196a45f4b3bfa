"""Which suspect may begin where: one at a time in each place, and the next one only after the verdict is durable."""

from collections import deque
from collections.abc import Iterable

from forebay.core.lease import Fence

Placement = tuple[Fence, int]
"""A suspect, and the place where it may begin now."""


class SuspectBoard:
    """So many places, and a bounded line of suspects that wait for one. For one thread at a time."""

    def __init__(self, places: int, max_waiting: int) -> None:
        self._capacity = places + max_waiting
        self._free = list(range(places))
        self._waiting: deque[Fence] = deque()
        self._place_of: dict[Fence, int] = {}

    @property
    def room(self) -> int:
        """How many more suspects it takes."""
        return self._capacity - len(self._waiting) - len(self._place_of)

    def admit(self, suspects: Iterable[Fence]) -> list[Placement]:
        self._waiting.extend(suspects)
        return self._begin()

    def settled(self, suspect: Fence) -> list[Placement]:
        """Its verdict is durable, or it has left without one."""
        place = self._place_of.pop(suspect, None)
        if place is not None:
            self._free.append(place)
        elif suspect in self._waiting:
            self._waiting.remove(suspect)
        return self._begin()

    def __contains__(self, suspect: Fence) -> bool:
        return suspect in self._place_of or suspect in self._waiting

    def _begin(self) -> list[Placement]:
        starts: list[Placement] = []
        while self._free and self._waiting:
            suspect, place = self._waiting.popleft(), self._free.pop()
            self._place_of[suspect] = place
            starts.append((suspect, place))
        return starts
