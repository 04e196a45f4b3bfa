"""Capacity of a worker: how many slots a job takes, and how free slots are divided among the queues.

A job takes as many slots as it costs, at most all of them, so that every job fits into an empty worker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.share import lifted, turn_after
from forebay.store.protocol import Want

MAX_QUEUES: Final = 16
"""Queues in one claim. A claim costs the store something for each queue, whatever it finds there."""


def slots_of(job: Job, size: int) -> int:
    """The slots that the job takes in a worker of this size."""
    return min(job.cost, size)


def fit_count(leases: Sequence[Lease], free: int, size: int) -> int:
    """How many of the leases, in order, fit into the free slots. A job that does not fit also stops those after it."""
    for number, lease in enumerate(leases):
        free -= slots_of(lease.job, size)
        if free < 0:
            return number
    return len(leases)


class QueueRotation:
    """Divides a claim among the queues: evenly in rotation, or by weight while several of them have work."""

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int]) -> None:
        self._queues = tuple(queues)
        self._weights = weights
        self._turns = dict.fromkeys(queues, 0)
        self._next = 0
        self._empty = 0

    def wants(self, free: int) -> list[Want]:
        """The first claim for this many free slots. Without weights, slots left over are offered in the next round."""
        if len(self._queues) == 1:
            return [Want(self._queues[0], free)]
        return self._by_weight(free, self._queues) if self._weights else self._evenly(free)

    def more(self, free: int, wants: Sequence[Want], leases: Sequence[Lease]) -> list[Want]:
        """A second claim for the slots that the first left free, from the queues that it did not find empty."""
        if not self._weights or len(leases) >= free:
            return []
        given = Counter(lease.job.queue for lease in leases)
        empty = {want.queue for want in wants if given[want.queue] < want.count}
        return self._by_weight(free - len(leases), [queue for queue in self._queues if queue not in empty])

    def all_empty(self, wants: Sequence[Want], leases: Sequence[Lease]) -> bool:
        """Whether no queue had a job since the last one was found. Call it once after each claim."""
        self._empty = 0 if leases else self._empty + len(wants)
        if self._empty < len(self._queues):
            return False
        self._empty = 0
        return True

    def _evenly(self, free: int) -> list[Want]:
        order = (*self._queues[self._next :], *self._queues[: self._next])
        count = min(free, len(order), MAX_QUEUES)
        self._next = (self._next + (count if count < len(order) else 1)) % len(order)
        each, rest = divmod(free, count)
        return [Want(queue, each + (n < rest)) for n, queue in enumerate(order[:count])]

    def _by_weight(self, free: int, queues: Sequence[str]) -> list[Want]:
        """Divide as if each of these queues had enough jobs. The other queues are empty and accumulate no credit."""
        parts: Counter[str] = Counter()
        while free > 0 and queues:
            queue = min(queues, key=self._turns.__getitem__)
            weight = self._weights.get(queue, 1)
            count = min(weight, free)
            self._turns[queue] = turn_after(self._turns[queue], weight, count)
            parts[queue] += count
            free -= count
        if queues:
            current = min(self._turns[queue] for queue in queues)
            self._turns = {queue: lifted(turn, current) for queue, turn in self._turns.items()}
        return [Want(queue, count) for queue, count in parts.items()]
