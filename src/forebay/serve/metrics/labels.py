"""Which names get their own series: a limited number; the rest share the label `other`.

A label for every name that a producer invents would let one producer fill the memory of this process and of its
scrapers. The first `queues` queues and the first `pairs` pairs of queue and kind have their own series; further kinds
of a known queue share its `other`, further queues share one `other`. Sums stay correct: nothing is left out.
"""

from typing import Final

OTHER: Final = "other"
MAX_QUEUES: Final = 100
MAX_PAIRS: Final = 200
"""Together at most about 20,000 series."""

Pair = tuple[str, str]


class LabelNames:
    """First come, first served, for the life of the process: the name behind a series never changes."""

    def __init__(self, queues: int = MAX_QUEUES, pairs: int = MAX_PAIRS) -> None:
        self._max_queues = queues
        self._max_pairs = pairs
        self._queues: set[str] = set()
        self._pairs: set[Pair] = set()

    def queue(self, queue: str) -> str:
        """The label of a queue."""
        if queue in self._queues:
            return queue
        if len(self._queues) >= self._max_queues:
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
        if len(self._pairs) >= self._max_pairs:
            return (queue, OTHER)
        self._pairs.add(pair)
        return pair
