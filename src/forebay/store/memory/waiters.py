"""Threads that sleep until a queue has something for them: claimers for work, producers for room.

A wake-up goes to as many sleepers as there is news for, longest asleep first. A sleeper that was woken but leaves
without taking anything passes the news on, so that none is lost with it.
"""

from collections import deque
from threading import Event


class Waiters:
    """Sleepers of one queue. Guarded by the store's lock, but for the sleeping itself."""

    __slots__ = ("sleepers",)

    def __init__(self) -> None:
        self.sleepers: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self.sleepers)

    def add(self, sleeper: Event) -> None:
        self.sleepers.append(sleeper)

    def drop(self, sleeper: Event) -> None:
        if sleeper in self.sleepers:
            self.sleepers.remove(sleeper)

    def wake(self, count: int) -> None:
        while count > 0 and self.sleepers:
            sleeper = self.sleepers.popleft()
            # One sleeper may wait at several queues; news it already has goes to the next one.
            if not sleeper.is_set():
                sleeper.set()
                count -= 1
