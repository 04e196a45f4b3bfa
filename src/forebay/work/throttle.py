"""A rate limit for log records: a storm of failures must not fill a disk, and what it leaves out is counted."""

from collections.abc import Callable, Hashable
from threading import Lock
from time import monotonic
from typing import Final

MAX_KEYS: Final = 200
"""Keys with a limit of their own; further ones share one."""

_OTHERS: Final = "others"


class _Bucket:
    """A token bucket: `burst` tokens, `rate` new ones a second."""

    def __init__(self, burst: int, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = float(burst)
        self._at = now

    def tokens(self, now: float) -> float:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens

    def full(self, now: float) -> bool:
        return self.tokens(now) >= self._burst

    def take(self) -> None:
        self._tokens -= 1


class Throttle:
    """Admits `burst` events of a key at once and `rate` a second after that; of all keys together `total` times that.

    Safe from any thread.
    """

    def __init__(self, burst: int, rate: float, total: int = 1, clock: Callable[[], float] = monotonic) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._guard = Lock()
        self._buckets: dict[Hashable, _Bucket] = {}
        self._all = _Bucket(burst * total, rate * total, clock())
        self._refused: dict[Hashable, int] = {}

    def admit(self, key: Hashable) -> bool:
        """Whether this event may be written."""
        now = self._clock()
        with self._guard:
            key = self._known(key, now)
            bucket = self._buckets.setdefault(key, _Bucket(self._burst, self._rate, now))
            if bucket.tokens(now) < 1 or self._all.tokens(now) < 1:
                self._refused[key] = self._refused.get(key, 0) + 1
                return False
            bucket.take()
            self._all.take()
            return True

    def take_refused(self) -> dict[Hashable, int]:
        """How many events were refused since the last call, by key."""
        with self._guard:
            refused, self._refused = self._refused, {}
        return refused

    def take_refused_of(self, key: Hashable) -> int:
        with self._guard:
            return self._refused.pop(key, 0)

    def _known(self, key: Hashable, now: float) -> Hashable:
        if key in self._buckets or len(self._buckets) < MAX_KEYS:
            return key
        self._buckets = {known: bucket for known, bucket in self._buckets.items() if not bucket.full(now)}
        return key if len(self._buckets) < MAX_KEYS else _OTHERS
