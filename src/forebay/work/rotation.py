"""How a worker's free slots are divided over its queues: evenly and in turns, or by their weights."""

from collections import Counter
from collections.abc import Mapping, Sequence

from forebay.core.lease import Lease
from forebay.core.share import lifted, turn_after
from forebay.store.protocol import Want


class QueueRotation:
    """Which queues a claim names, and for how many jobs. With weights, each queue gets its share while it has work."""

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int]) -> None:
        self._queues = tuple(queues)
        self._weights = weights
        self._turns = dict.fromkeys(queues, 0)
        self._next = 0

    def wants(self, room: int) -> list[Want]:
        """For all the room; without weights, what a queue leaves is taken next time round."""
        if len(self._queues) == 1:
            return [Want(self._queues[0], room)]
        return self._by_weight(room, self._queues) if self._weights else self._evenly(room)

    def more(self, room: int, wants: Sequence[Want], leases: Sequence[Lease]) -> list[Want]:
        """What is left of the room goes to the queues that gave all that was wanted, or that no want named."""
        if not self._weights or len(leases) >= room:
            return []
        given = Counter(lease.job.queue for lease in leases)
        empty = {want.queue for want in wants if given[want.queue] < want.count}
        return self._by_weight(room - len(leases), [queue for queue in self._queues if queue not in empty])

    def _evenly(self, room: int) -> list[Want]:
        self._next = (self._next + 1) % len(self._queues)
        order = (*self._queues[self._next :], *self._queues[: self._next])
        each, rest = divmod(room, len(order))
        return [Want(queue, each + (n < rest)) for n, queue in enumerate(order) if each + (n < rest) > 0]

    def _by_weight(self, room: int, queues: Sequence[str]) -> list[Want]:
        """As if each of these had more than enough. The others had none, and save nothing up."""
        parts: Counter[str] = Counter()
        while room > 0 and queues:
            queue = min(queues, key=self._turns.__getitem__)
            weight = self._weights.get(queue, 1)
            count = min(weight, room)
            self._turns[queue] = turn_after(self._turns[queue], weight, count)
            parts[queue] += count
            room -= count
        if queues:
            current = min(self._turns[queue] for queue in queues)
            self._turns = {queue: lifted(turn, current) for queue, turn in self._turns.items()}
        return [Want(queue, count) for queue, count in parts.items()]
