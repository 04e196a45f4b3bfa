"""A clock that only a test moves, so that days of leases pass in microseconds and no test sleeps."""

from threading import Condition
from typing import Final

from forebay.core.clock import Signal
from forebay.core.instant import Duration, Instant

_FIRST_POLL: Final = 0.001
_LONGEST_POLL: Final = 0.02


class ManualClock:
    """Starts at a round instant; `advance` moves it and wakes every waiter whose time has come."""

    def __init__(self, start: Instant = 1_700_000_000_000_000) -> None:
        self._now = start
        self._changed = Condition()
        self._sleeping: dict[int, Signal] = {}

    def now(self) -> Instant:
        """The instant that it shows."""
        return self._now

    def advance(self, duration: Duration) -> Instant:
        """Move on by microseconds; a clock never runs backwards."""
        if duration < 0:
            raise ValueError("a clock never runs backwards")
        with self._changed:
            self._now += duration
            self._changed.notify_all()
        return self._now

    def wait(self, signal: Signal, duration: Duration) -> None:
        """Sleep until the signal is set by another thread, or the clock was moved past it."""
        with self._changed:
            until = self._now + duration
            self._sleeping[id(signal)] = signal
            self._changed.notify_all()
        try:
            poll = _FIRST_POLL
            while not signal.wait(poll):
                with self._changed:
                    if self._now >= until:
                        return
                poll = min(_LONGEST_POLL, poll * 1.25)
        finally:
            with self._changed:
                del self._sleeping[id(signal)]

    def until_asleep(self, count: int, patience: float = 60.0) -> None:
        """Block the test until so many threads sleep on this clock; `TimeoutError` if they never do.

        A thread that was signalled is about to look at the clock again: it does not sleep.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.asleep() >= count, patience):
                raise TimeoutError(f"{self.asleep()} of {count} threads sleep on the clock")

    def asleep(self) -> int:
        """How many threads sleep on this clock."""
        return sum(not signal.is_set() for signal in self._sleeping.values())
