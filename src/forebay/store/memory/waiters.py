"""Threads that sleep until a queue has something for them: claimers for work, producers for room.

News goes to as many sleepers as it is enough for, longest asleep first; one that needs more than there is does not hold
up those behind it.
"""

from threading import Event


class Waiters:
    """Sleepers of one queue and what each needs. Guarded by the store's lock, but for the sleeping itself."""

    __slots__ = ("sleepers",)

    def __init__(self) -> None:
        self.sleepers: dict[Event, int] = {}

    def add(self, sleeper: Event, need: int = 1) -> None:
        self.sleepers[sleeper] = need

    def drop(self, sleeper: Event) -> None:
        self.sleepers.pop(sleeper, None)

    def wake(self, count: int) -> None:
        for sleeper, need in list(self.sleepers.items()):
            if count <= 0:
                return
            if need > count:
                continue
            del self.sleepers[sleeper]
            # One sleeper may wait at several queues; news it already has goes to the next one.
            if not sleeper.is_set():
                sleeper.set()
                count -= need

    def wake_all(self) -> None:
        for sleeper in self.sleepers:
            sleeper.set()
        self.sleepers.clear()
