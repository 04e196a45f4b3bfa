"""How a worker's room is divided over its queues: evenly and in turns, or by their weights."""

from collections import Counter
from collections.abc import Mapping, Sequence

from forebay.core.lease import Lease
from forebay.core.share import Share
from forebay.store.protocol import Want


class Turns:
    """Who is asked for how much. With weights, each queue gets its part as long as it has work for it."""

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int]) -> None:
        self._queues = tuple(queues)
        self._share = Share(weights) if weights else None
        self._turn = 0

    def wants(self, room: int) -> list[Want]:
        """For all the room; without weights, what a queue leaves is taken next time round."""
        if len(self._queues) == 1:
            return [Want(self._queues[0], room)]
        return self._evenly(room) if self._share is None else self._dealt(self._share, room, self._queues)

    def more(self, room: int, wants: Sequence[Want], leases: Sequence[Lease]) -> list[Want]:
        """What is left of the room goes to those queues that gave all that they were asked for, or were not asked."""
        if self._share is None or len(leases) >= room:
            return []
        given = Counter(lease.job.queue for lease in leases)
        empty = {want.queue for want in wants if given[want.queue] < want.count}
        return self._dealt(self._share, room - len(leases), [queue for queue in self._queues if queue not in empty])

    def _evenly(self, room: int) -> list[Want]:
        self._turn = (self._turn + 1) % len(self._queues)
        order = (*self._queues[self._turn :], *self._queues[: self._turn])
        each, rest = divmod(room, len(order))
        return [Want(queue, each + (n < rest)) for n, queue in enumerate(order) if each + (n < rest) > 0]

    def _dealt(self, share: Share, room: int, queues: Sequence[str]) -> list[Want]:
        """As if each of them had more than enough; who has not loses the rest of this turn."""
        for queue in self._queues:
            share.join(queue)
        parts: Counter[str] = Counter()
        for queue, count in share.deal(room, lambda queue: room + 1 if queue in queues else 0):
            parts[queue] += count
        return [Want(queue, count) for queue, count in parts.items()]
