"""How much one caller may ask for: requests a second, requests at once, jobs an hour and a day.

One caller's flood is its own: each has a bucket and a number of requests under way, so what is refused to one leaves
the others their room. All tables are bounded. A bucket that has filled up again equals a new one, so it can be
forgotten; only when very many callers are busy at once the longest silent one is forgotten before that.

Rates and places are each server's own; quotas are counted for all servers together (`usage.py`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from threading import Lock
from time import monotonic
from typing import Final

from msgspec import Struct

from forebay.serve.problems import Problem

CALLERS_MOST: Final = 20_000
QUEUE_NAMES: Final = 1_000
"""Names of queues without a spec that a key may use in a day, unless it says otherwise."""

HOUR: Final = 3_600
DAY: Final = 86_400


class Allowance(Struct, frozen=True):
    """What one caller may ask for; None: as much as it likes. `burst` is at least one request."""

    rate: float | None = None
    burst: int | None = None
    quota_hour: int | None = None
    quota_day: int | None = None
    queue_names: int | None = None


class Bounds(Struct, frozen=True, kw_only=True):
    """What the server has room for.

    at_once   requests under way;  each: of one caller
    waiting   long polls, which hold nothing but a socket;  waiting_each: of one caller
    """

    at_once: int = 4_096
    each: int = 512
    waiting: int = 20_000
    waiting_each: int = 15_000


class Buckets:
    """Token buckets, one a caller: `rate` tokens a second up to `burst`."""

    def __init__(self, clock: Callable[[], float] = monotonic, most: int = CALLERS_MOST) -> None:
        self._clock = clock
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, caller: str, rate: float, burst: int) -> float:
        """0 when a token was there, else the seconds until one is."""
        now = self._clock()
        level, at = self._levels.get(caller, (float(burst), now))
        level = min(float(burst), level + (now - at) * rate)
        wait = 0.0 if level >= 1 else (1 - level) / rate
        self._levels[caller] = (level - 1 if level >= 1 else level, now)
        self._levels.move_to_end(caller)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return wait


class Quotas:
    """Jobs a caller enqueued in this hour and this day, by the clock's own hours and days (UTC).

    `news` is what was spent here since it was last asked for; `learn` adds what others spent.
    """

    def __init__(self, clock: Callable[[], float], most: int = CALLERS_MOST) -> None:
        self._clock = clock
        self._most = most
        self._spent: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()
        self._news: Counter[str] = Counter()
        self._guard = Lock()

    def __len__(self) -> int:
        return len(self._spent)

    def spend(self, caller: str, jobs: int, limits: dict[int, int | None]) -> float:
        """0 when they fit and are counted, else the seconds until the quota begins anew."""
        limited = {period: limit for period, limit in limits.items() if limit is not None}
        if not limited:
            return 0.0
        now = self._clock()
        with self._guard:
            for period, limit in limited.items():
                window, used = self._used(caller, period, now)
                if used + jobs > limit:
                    return (window + 1) * period - now
            self._add(caller, jobs, now)
            self._news[caller] += jobs
        return 0.0

    def news(self) -> dict[str, int]:
        with self._guard:
            news, self._news = self._news, Counter()
        return dict(news)

    def learn(self, spent: dict[str, int], at: float) -> None:
        """What other servers, or this one before its start, let pass at this time."""
        with self._guard:
            for caller, jobs in spent.items():
                self._add(caller, jobs, at)

    def _used(self, caller: str, period: int, now: float) -> tuple[int, int]:
        window = int(now // period)
        known, used = self._spent.get((caller, period), (window, 0))
        return window, used if known == window else 0

    def _add(self, caller: str, jobs: int, at: float) -> None:
        for period in (HOUR, DAY):
            if int(at // period) == int(self._clock() // period):
                window, used = self._used(caller, period, at)
                self._spent[caller, period] = (window, used + jobs)
                self._spent.move_to_end((caller, period))
        while len(self._spent) > 2 * self._most:
            self._spent.popitem(last=False)


class QueueNames:
    """Names of queues that a caller brought up today (UTC): each is counted once, up to a bound.

    `news` and `learn` as of `Quotas`: all servers of a store count together, also after a restart.
    """

    def __init__(self, clock: Callable[[], float], most: int = CALLERS_MOST) -> None:
        self._clock = clock
        self._most = most
        self._day = 0
        self._named: OrderedDict[str, set[str]] = OrderedDict()
        self._news: dict[str, list[str]] = {}
        self._guard = Lock()

    def take(self, caller: str, names: Collection[str], limit: int) -> float:
        """0 when they are known, or fit and are counted; else the seconds until the count begins anew."""
        now = self._clock()
        with self._guard:
            known = self._of(caller, now)
            fresh = [name for name in dict.fromkeys(names) if name not in known]
            if fresh and len(known) + len(fresh) > limit:
                return (self._day + 1) * DAY - now
            known.update(fresh)
            if fresh:
                self._news.setdefault(caller, []).extend(fresh)
        return 0.0

    def news(self) -> dict[str, list[str]]:
        with self._guard:
            news, self._news = self._news, {}
        return news

    def learn(self, named: Mapping[str, Collection[str]], at: float) -> None:
        with self._guard:
            if int(at // DAY) == int(self._clock() // DAY):
                for caller, names in named.items():
                    self._of(caller, at).update(names)

    def _of(self, caller: str, now: float) -> set[str]:
        if int(now // DAY) != self._day:
            self._day = int(now // DAY)
            self._named.clear()
        known = self._named.setdefault(caller, set())
        self._named.move_to_end(caller)
        while len(self._named) > self._most:
            self._named.popitem(last=False)
        return known


class Limits:
    """All limits of one server. `turn` holds a place while a request is under way."""

    def __init__(
        self,
        bounds: Bounds = Bounds(),  # noqa: B008
        default: Allowance = Allowance(),  # noqa: B008
        *,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float],
    ) -> None:
        self.bounds = bounds
        self._default = default
        self._buckets = Buckets(clock)
        self.quotas = Quotas(wall)
        self.names = QueueNames(wall)
        self._busy: dict[tuple[bool, str], int] = {}
        self._under_way = {False: 0, True: 0}
        self.refused: dict[str, int] = {
            "rate": 0,
            "quota": 0,
            "queue-names": 0,
            "at-once": 0,
            "bad-key": 0,
            "connections": 0,
        }

    @contextmanager
    def turn(self, caller: str, allowance: Allowance, waits: bool) -> Iterator[None]:
        """A place for one request, or a 429 for its caller, or a 503 when the house is full."""
        self._pace(caller, allowance)
        self._enter(caller, waits)
        try:
            yield
        finally:
            self._leave(caller, waits)

    def spend(self, caller: str, allowance: Allowance, jobs: int) -> None:
        """Count jobs against the caller's quotas, or refuse them all."""
        hour = self._default.quota_hour if allowance.quota_hour is None else allowance.quota_hour
        day = self._default.quota_day if allowance.quota_day is None else allowance.quota_day
        if wait := self.quotas.spend(caller, jobs, {HOUR: hour, DAY: day}):
            self.refused["quota"] += 1
            raise _slow_down("quota", "The quota of the key is spent", wait)

    def name_queues(self, caller: str, allowance: Allowance, names: Collection[str]) -> None:
        """Count names of queues that nobody configured against the caller's bound, or refuse them all."""
        limit = QUEUE_NAMES if allowance.queue_names is None else allowance.queue_names
        if wait := self.names.take(caller, names, limit):
            self.refused["queue-names"] += 1
            detail = (
                f"the key may use {limit} names of queues that are not configured a day: configure them, or try again"
            )
            raise _slow_down("queue-names", "The key names too many queues", wait, detail)

    def connection_dropped(self) -> None:
        self.refused["connections"] += 1

    def _pace(self, caller: str, allowance: Allowance) -> None:
        rate = self._default.rate if allowance.rate is None else allowance.rate
        if rate is None:
            return
        burst = allowance.burst or self._default.burst or max(1, ceil(rate))
        if wait := self._buckets.take(caller, rate, burst):
            self.refused["rate"] += 1
            raise _slow_down("rate", "Too many requests of this key", wait)

    def _enter(self, caller: str, waits: bool) -> None:
        most, each = (
            (self.bounds.waiting, self.bounds.waiting_each) if waits else (self.bounds.at_once, self.bounds.each)
        )
        own = self._busy.get((waits, caller), 0)
        if own >= each or self._under_way[waits] >= most:
            self.refused["at-once"] += 1
            if own >= each:
                raise _slow_down("at-once", "Too many requests of this key at once", 1)
            raise Problem(503, "busy", "The server is busy", "try again in a moment", {"Retry-After": "1"})
        self._busy[waits, caller] = own + 1
        self._under_way[waits] += 1

    def _leave(self, caller: str, waits: bool) -> None:
        self._under_way[waits] -= 1
        own = self._busy[waits, caller] - 1
        if own:
            self._busy[waits, caller] = own
        else:
            del self._busy[waits, caller]


def _slow_down(slug: str, title: str, wait: float, detail: str = "") -> Problem:
    seconds = max(1, ceil(wait))
    return Problem(
        429,
        slug,
        title,
        f"{detail or 'try again'} in {seconds} s",
        headers={"Retry-After": str(seconds)},
        extra={"retry_after": seconds},
    )
