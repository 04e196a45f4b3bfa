"""Which names get series of their own: as many as there is room for, and the rest together under `other`.

A label for every name that a producer thinks of would let one of them fill the memory of this process and of everybody
who scrapes it. The first `queues` queues and the first `pairs` pairs of queue and kind are told apart; further kinds of
a known queue are its `other`, further queues are `other` altogether. Sums stay right: nothing is left out.
"""

from typing import Final

OTHER: Final = "other"
QUEUES_MOST: Final = 100
PAIRS_MOST: Final = 200
"""Together about 20,000 series at the most."""

Pair = tuple[str, str]


class Names:
    """First come, first served, for the life of the process: a series never moves from one name to another."""

    def __init__(self, queues: int = QUEUES_MOST, pairs: int = PAIRS_MOST) -> None:
        self._queues_most = queues
        self._pairs_most = pairs
        self._queues: set[str] = set()
        self._pairs: set[Pair] = set()

    def queue(self, queue: str) -> str:
        """The label of a queue."""
        if queue in self._queues:
            return queue
        if len(self._queues) >= self._queues_most:
            return OTHER
        self._queues.add(queue)
        return queue

    def pair(self, queue: str, kind: str) -> Pair:
        """The labels of a kind of job in a queue."""
        pair = (queue, kind)
        if pair in self._pairs:
            return pair
        if self.queue(queue) == OTHER:
            return (OTHER, OTHER)
        if len(self._pairs) >= self._pairs_most:
            return (queue, OTHER)
        self._pairs.add(pair)
        return pair
