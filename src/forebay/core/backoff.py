"""Backoff: the delay before a failed job is retried. `draw` is uniform in [0, 1) and an argument.

Values of the routing axis; `forebay.core.policy` has them too, with all the others.
"""

from datetime import timedelta
from typing import TypeAlias

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, checked_micros, micros, minutes, ms
from forebay.core.limits import MAX_DURATION

_NEVER = timedelta(0)
_TICK = timedelta(milliseconds=1)


class FullJitter(Struct, frozen=True, forbid_unknown_fields=True, tag="full-jitter"):
    """Uniform in [0, min(cap, base · 2^attempt)]: the spread that keeps a thousand failures from returning together."""

    base: timedelta = ms(500)
    cap: timedelta = minutes(1)

    def __post_init__(self) -> None:
        _check_backoff(self.base, self.cap)

    def delay(self, attempt: int, draw: float) -> Duration:
        return int(draw * _doubled(self.base, self.cap, attempt))


class Exponential(Struct, frozen=True, forbid_unknown_fields=True, tag="exponential"):
    """min(base · 2^attempt + jitter, cap), the jitter uniform in [0, base · 2^attempt · spread)."""

    base: timedelta = ms(500)
    cap: timedelta = minutes(1)
    spread: float = 0.5

    def __post_init__(self) -> None:
        _check_backoff(self.base, self.cap)
        if type(self.spread) not in (int, float) or not 0 <= self.spread <= 1:
            raise Invalid("Exponential spread", f"{self.spread} is outside 0 … 1", "0.5 suits most jobs")

    def delay(self, attempt: int, draw: float) -> Duration:
        grown = _doubled(self.base, self.cap, attempt)
        return min(grown + int(grown * self.spread * draw), micros(self.cap))


class Fixed(Struct, frozen=True, forbid_unknown_fields=True, tag="fixed"):
    """Always the same delay, without jitter: for tests and for callers that add their own."""

    duration: timedelta = _NEVER

    def __post_init__(self) -> None:
        checked_micros("Fixed", self.duration, _NEVER, MAX_DURATION)

    def delay(self, attempt: int, draw: float) -> Duration:
        return micros(self.duration)


Backoff: TypeAlias = FullJitter | Exponential | Fixed


def _check_backoff(base: timedelta, cap: timedelta) -> None:
    checked_micros("backoff base", base, _TICK, MAX_DURATION)
    checked_micros("backoff cap", cap, base, MAX_DURATION)


def _doubled(base: timedelta, cap: timedelta, attempt: int) -> Duration:
    """The exponent stops where even the smallest base has passed the largest cap: no overflow, no huge integer."""
    return min(micros(cap), micros(base) << min(max(attempt, 0), 48))
