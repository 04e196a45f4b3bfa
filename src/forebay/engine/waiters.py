"""Which threads of this process are woken when a queue has work for claimers, or room for producers.

As many are woken as there is enough for, the longest waiting first; one that needs more than there is does not hold up
those behind it.
"""

from threading import Event


class QueueWaiters:
    """The waiters of one queue, and how much each needs. Guarded by the store's lock."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[Event, int] = {}

    def add(self, waiter: Event, need: int = 1) -> None:
        self.waiting[waiter] = need

    def drop(self, waiter: Event) -> None:
        self.waiting.pop(waiter, None)

    def wake(self, count: int) -> None:
        for waiter, need in list(self.waiting.items()):
            if count <= 0:
                return
            if need > count:
                continue
            del self.waiting[waiter]
            # A waiter at several queues may have been woken by another one: the next one is woken for this.
            if not waiter.is_set():
                waiter.set()
                count -= need

    def wake_all(self) -> None:
        for waiter in self.waiting:
            waiter.set()
        self.waiting.clear()
