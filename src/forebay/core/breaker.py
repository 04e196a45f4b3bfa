"""Circuit breakers and the retry budget.

`Breaker` is the policy for a kind of job, or for all kinds that name the same dependency, `Circuit` its state in one
process: closed, open after a number of consecutive failures, half-open after a cooldown, closed again by a success.
While it is open, jobs are released uncharged, so an outage of a dependency costs no attempts. `Budget` limits retries
to a share of all runs. The current time is an argument.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, Instant, checked_micros, micros, seconds
from forebay.core.limits import MAX_DURATION
from forebay.core.names import check_name
from forebay.core.outcome import Failed, Outcome, Succeeded
from forebay.core.policy import check_between

_BURST = 10.0


class Breaker(Struct, frozen=True):
    """Open after `failures` consecutive failures; after `cooldown` admit `probes` runs to test the dependency.

    Kinds whose breakers have one `name` share its state; without a name each kind has its own.
    """

    failures: int = 5
    cooldown: timedelta = seconds(30)
    probes: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        check_between("Breaker failures", self.failures, 1, 1_000_000)
        check_between("Breaker probes", self.probes, 1, 1_000)
        checked_micros("Breaker cooldown", self.cooldown, timedelta(milliseconds=1), MAX_DURATION)
        if self.name is not None:
            check_name("Breaker name", self.name)

    def key(self, kind: str) -> tuple[str | None, str]:
        """What the state of this breaker is kept under, for a kind of job."""
        return (None, kind) if self.name is None else (self.name, "")


class Circuit:
    """The state of one breaker."""

    __slots__ = ("_failed", "_opened_at", "_policy", "_probing")

    def __init__(self, policy: Breaker) -> None:
        self._policy = policy
        self._failed = 0
        self._opened_at: Instant | None = None
        self._probing = 0

    def state(self, now: Instant) -> Literal["closed", "open", "half-open"]:
        if self._opened_at is None:
            return "closed"
        return "open" if now < self._opened_at + micros(self._policy.cooldown) else "half-open"

    def admit(self, now: Instant) -> Duration:
        """0: run the job now. Otherwise: release it with this delay."""
        state = self.state(now)
        if state == "closed":
            return 0
        if state == "half-open" and self._probing < self._policy.probes:
            self._probing += 1
            return 0
        cooldown = micros(self._policy.cooldown)
        return cooldown if self._opened_at is None else max(self._opened_at + cooldown - now, cooldown // 10, 1)

    def record(self, outcome: Outcome, now: Instant) -> None:
        """How a run that was admitted has ended."""
        match outcome:
            case Succeeded():
                self.succeeded()
            case Failed():
                self.failed(now)
            case _:
                self.abandoned()

    def succeeded(self) -> None:
        self._failed = self._probing = 0
        self._opened_at = None

    def abandoned(self) -> None:
        """A run ended without evidence about the dependency: another run may be the probe."""
        self._probing = max(0, self._probing - 1)

    def failed(self, now: Instant) -> None:
        self._failed += 1
        self._probing = max(0, self._probing - 1)
        if self._opened_at is not None or self._failed >= self._policy.failures:
            self._opened_at = now


def circuits_of(breakers: Mapping[str, Breaker]) -> dict[str, Circuit]:
    """The state of each kind's breaker; kinds that share a name share the state."""
    circuits = {breaker.key(kind): Circuit(breaker) for kind, breaker in breakers.items()}
    return {kind: circuits[breaker.key(kind)] for kind, breaker in breakers.items()}


class Budget:
    """Limits retries to `share` of all runs, with a small burst."""

    __slots__ = ("_share", "_tokens")

    def __init__(self, share: float) -> None:
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise Invalid("retry budget", f"{share} is not in 0 … 1", "0.2 lets a fifth of all runs be retries")
        self._share = share
        self._tokens = _BURST

    def first_run(self) -> None:
        self._tokens = min(_BURST, self._tokens + self._share)

    def may_retry(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
