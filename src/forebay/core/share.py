"""How classes take turns: deficit round robin (Shreedhar and Varghese), one job being one unit.

Each class with work is visited in turn; a visit earns it its weight, and it takes jobs while its deficit lasts. A turn
cut short by the end of a claim goes on in the next claim. A class without work loses its place and its deficit:
idle time is not saved up. Deterministic, no clock, no randomness; the order of visits is the order of arrival.

Where several processes deal the jobs of one queue, each by its own ring, none of them should begin with the same class:
the rounds that they are in the middle of would favour it. `start` says how much of a round counts as dealt already.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Final

_GOLDEN: Final = (5**0.5 - 1) / 2


def start_of(number: int) -> float:
    """Where in a round the process with that number begins: the next ones as far from each other as can be."""
    return number * _GOLDEN % 1.0


class Share:
    """The turn-taking of one queue. `waiting(name)` tells how many jobs a class could give right now."""

    def __init__(self, weights: Mapping[str, int], default: int = 1, start: float = 0.0) -> None:
        self._weights = dict(weights)
        self._default = default
        self._start = start
        self._fresh = True
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
        if self._fresh and self._ring:
            self._begin()
        while count > 0 and self._ring:
            name = self._ring[0]
            left = waiting(name) - given.get(name, 0)
            if left <= 0:
                self._leave()
                continue
            if self._deficit[name] == 0:
                self._deficit[name] = self._weight(name)
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

    def _begin(self) -> None:
        """Who comes first in a ring that was empty."""
        self._fresh = False
        skipped = int(self._start * sum(map(self._weight, self._ring)))
        while skipped >= self._weight(self._ring[0]):
            skipped -= self._weight(self._ring[0])
            self._ring.rotate(-1)
        self._deficit[self._ring[0]] = self._weight(self._ring[0]) - skipped

    def _weight(self, name: str) -> int:
        return self._weights.get(name, self._default)

    def _leave(self) -> None:
        del self._deficit[self._ring.popleft()]
        self._fresh = not self._ring


class Ring:
    """Turns at a gate, where who gets the next slot is asked one by one and the jobs bring the weights along."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, int] = OrderedDict()

    def join(self, name: str) -> None:
        """A class waits; its place is at the end of the ring."""
        self._left.setdefault(name, 0)

    def head(self, waits: Callable[[str], object]) -> str | None:
        """Whose turn it is, of those that wait; who does not loses its place."""
        while self._left:
            name = next(iter(self._left))
            if waits(name):
                return name
            del self._left[name]
        return None

    def took(self, name: str, weight: int) -> None:
        """One of the class was let in."""
        if name in self._left:
            self._left[name] = (self._left[name] or weight) - 1
            if not self._left[name]:
                self._left.move_to_end(name)
