"""The machine's clock: the only place in Forebay that reads the time.

Wall time at the start plus monotonic time since, so that a step of the wall clock (NTP, a suspended laptop, an
operator) neither ends all leases at once nor makes them last for ever.
"""

import time

from forebay.core.clock import Signal
from forebay.core.instant import Duration, Instant


class SystemClock:
    """Microseconds since 1970 that never run backwards."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> Instant:
        return (self._offset + time.monotonic_ns()) // 1_000

    def wait(self, signal: Signal, duration: Duration) -> None:
        signal.wait(duration / 1_000_000)
