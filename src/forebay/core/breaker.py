"""When to stop asking a dependency that is down, and how much of the work may be retries.

`Breaker` is the policy of one kind of job; `Circuit` its state in one process: closed while things go well, open after
so many failures in a row, half open when it has rested, closed again by a success. While it is open, jobs are put back
unharmed, so an outage costs no lives. `Budget` lets retries be at most a share of all runs. No clock of its own.
"""

from datetime import timedelta
from typing import Literal

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, Span, checked_micros, micros, seconds
from forebay.core.limits import SPAN_MOST
from forebay.core.policy import check_between

_BURST = 10.0


class Breaker(Struct, frozen=True):
    """Open after `failures` in a row; rest for `rest`; then let `probes` through to see."""

    failures: int = 5
    rest: timedelta = seconds(30)
    probes: int = 1

    def __post_init__(self) -> None:
        check_between("Breaker failures", self.failures, 1, 1_000_000)
        check_between("Breaker probes", self.probes, 1, 1_000)
        checked_micros("Breaker rest", self.rest, timedelta(milliseconds=1), SPAN_MOST)


class Circuit:
    """One breaker at work. `saved` counts runs that were not wasted on a dependency known to be down."""

    __slots__ = ("_failed", "_opened_at", "_policy", "_probing", "saved")

    def __init__(self, policy: Breaker) -> None:
        self._policy = policy
        self._failed = 0
        self._opened_at: Instant | None = None
        self._probing = 0
        self.saved = 0

    def state(self, now: Instant) -> Literal["closed", "open", "half-open"]:
        if self._opened_at is None:
            return "closed"
        return "open" if now < self._opened_at + micros(self._policy.rest) else "half-open"

    def admit(self, now: Instant) -> Span:
        """0: run it. Otherwise: put it back for this long."""
        state = self.state(now)
        if state == "closed":
            return 0
        if state == "half-open" and self._probing < self._policy.probes:
            self._probing += 1
            return 0
        self.saved += 1
        rest = micros(self._policy.rest)
        return rest if self._opened_at is None else max(self._opened_at + rest - now, rest // 10, 1)

    def succeeded(self) -> None:
        self._failed = self._probing = 0
        self._opened_at = None

    def given_up(self) -> None:
        """A run ended and tells nothing about the dependency: the next one may be the probe."""
        self._probing = max(0, self._probing - 1)

    def failed(self, now: Instant) -> None:
        self._failed += 1
        self._probing = max(0, self._probing - 1)
        if self._opened_at is not None or self._failed >= self._policy.failures:
            self._opened_at = now


class Budget:
    """Retries may be at most `share` of all runs, with a little burst; `postponed` counts those that had to wait."""

    __slots__ = ("_share", "_tokens", "postponed")

    def __init__(self, share: float) -> None:
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise Invalid("retry budget", f"{share} is outside 0 … 1", "0.2 lets a fifth of all runs be retries")
        self._share = share
        self._tokens = _BURST
        self.postponed = 0

    def first_run(self) -> None:
        self._tokens = min(_BURST, self._tokens + self._share)

    def may_retry(self) -> bool:
        if self._tokens < 1:
            self.postponed += 1
            return False
        self._tokens -= 1
        return True
