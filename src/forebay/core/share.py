"""How classes take turns: deficit round robin (Shreedhar and Varghese), one job being one unit.

Each class with work is visited in turn; a visit earns it its weight, and it takes jobs while its deficit lasts. A turn
cut short by the end of a claim goes on in the next claim. A class without work loses its place and its deficit:
idle time is not saved up. Deterministic, no clock, no randomness; the order of visits is the order of arrival.
"""

from collections import deque
from collections.abc import Callable, Mapping


class Share:
    """The turn-taking of one queue. `waiting(name)` tells how many jobs a class could give right now."""

    def __init__(self, weights: Mapping[str, int], default: int = 1) -> None:
        self._weights = dict(weights)
        self._default = default
        self._ring: deque[str] = deque()
        self._deficit: dict[str, int] = {}

    def join(self, name: str) -> None:
        """A class has work; its place is at the end of the ring."""
        if name not in self._deficit:
            self._deficit[name] = 0
            self._ring.append(name)

    def deal(self, count: int, waiting: Callable[[str], int]) -> list[tuple[str, int]]:
        """Who gives how many of the next `count` jobs, in this order."""
        dealt: list[tuple[str, int]] = []
        given: dict[str, int] = {}
        while count > 0 and self._ring:
            name = self._ring[0]
            left = waiting(name) - given.get(name, 0)
            if left <= 0:
                self._leave()
                continue
            if self._deficit[name] == 0:
                self._deficit[name] = self._weights.get(name, self._default)
            take = min(count, left, self._deficit[name])
            self._deficit[name] -= take
            count -= take
            given[name] = given.get(name, 0) + take
            dealt.append((name, take))
            if take == left:
                self._leave()
            elif self._deficit[name] == 0:
                self._ring.rotate(-1)
        return dealt

    def _leave(self) -> None:
        del self._deficit[self._ring.popleft()]
