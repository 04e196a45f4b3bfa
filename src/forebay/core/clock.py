"""What a store needs of its clock. The core itself never reads one: instants come in as arguments."""

from typing import Protocol

from forebay.core.instant import Duration, Instant


class Signal(Protocol):
    """An event that a thread can wait for, such as `threading.Event`."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    """The store's own time. One clock decides what is due, overdue or expired; no other is read."""

    def now(self) -> Instant:
        """Microseconds since 1970; never runs backwards."""

    def wait(self, signal: Signal, duration: Duration) -> None:
        """Sleep until the signal is set or this much time has passed on this clock."""
