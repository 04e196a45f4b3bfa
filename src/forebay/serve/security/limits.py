"""Limits per caller: requests per second, concurrent requests, jobs per hour and per day.

Each caller has its own token bucket and its own number of requests in flight, so that one caller's flood does not
affect the others. All tables are bounded. A full bucket equals a new one, so it can be evicted; only when very many
callers are active at once, the least recently used bucket is evicted before it is full.

Rates and concurrency are per server. Quotas are shared by all servers of a store, across restarts: each server appends
what its callers used to the retained log `forebay.usage`, every `PUBLISH_SECONDS` if there is anything, and reads what
the other servers appended. Between two reads a caller can exceed its quota by what all servers admit in that time.
Callers without a quota are not counted. Entries older than `KEPT` are trimmed.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from threading import Lock
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.instant import days, hours, micros
from forebay.serve.problems import Problem
from forebay.serve.security.keys import ensure_log
from forebay.store.protocol import Store

MAX_CALLERS: Final = 20_000
QUEUE_NAMES: Final = 1_000
"""Names of queues without a spec that a key may use per day, unless the key sets another limit."""

HOUR: Final = 3_600
DAY: Final = 86_400

USAGE_LOG: Final = "forebay.usage"
PUBLISH_SECONDS: Final = 2.0
KEPT: Final = days(1) + hours(1)
READ_BATCH: Final = 1_000
NAMES_BATCH: Final = 1_000
TRIM_INTERVAL: Final = 1_000
"""Entries between two trims."""


class Allowance(Struct, frozen=True):
    """The limits of one caller; None: unlimited. `burst` is at least one request."""

    rate: float | None = None
    burst: int | None = None
    quota_hour: int | None = None
    quota_day: int | None = None
    queue_names: int | None = None


class ConcurrencyLimits(Struct, frozen=True, kw_only=True):
    """Requests in flight on this server, in total and per caller. Long polls, which hold only a socket, count apart."""

    max_requests: int = 4_096
    max_requests_per_caller: int = 512
    max_polls: int = 20_000
    max_polls_per_caller: int = 15_000


class TokenBuckets:
    """Token buckets, one per caller: `rate` tokens per second up to `burst`."""

    def __init__(self, clock: Callable[[], float] = monotonic, max_callers: int = MAX_CALLERS) -> None:
        self._clock = clock
        self._max_callers = max_callers
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, caller: str, rate: float, burst: int) -> float:
        """0 when a token was available, else the seconds until one is."""
        now = self._clock()
        level, at = self._levels.get(caller, (float(burst), now))
        level = min(float(burst), level + (now - at) * rate)
        wait = 0.0 if level >= 1 else (1 - level) / rate
        self._levels[caller] = (level - 1 if level >= 1 else level, now)
        self._levels.move_to_end(caller)
        if len(self._levels) > self._max_callers:
            self._levels.popitem(last=False)
        return wait


class Quotas:
    """Jobs that callers enqueued in the current hour and day (UTC).

    `take_unreported` returns what this server counted since the last call; `add_remote` adds the counts of others.
    """

    def __init__(self, clock: Callable[[], float], max_callers: int = MAX_CALLERS) -> None:
        self._clock = clock
        self._max_callers = max_callers
        self._spent: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()
        self._unreported: Counter[str] = Counter()
        self._guard = Lock()

    def __len__(self) -> int:
        return len(self._spent)

    def charge_jobs(self, caller: str, jobs: int, limits: dict[int, int | None]) -> float:
        """0 when the jobs fit and are counted, else the seconds until the quota resets."""
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
            self._unreported[caller] += jobs
        return 0.0

    def take_unreported(self) -> dict[str, int]:
        with self._guard:
            counts, self._unreported = self._unreported, Counter()
        return dict(counts)

    def add_remote(self, spent: dict[str, int], at: float) -> None:
        """Add what other servers, or this one before a restart, counted at this time."""
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
        while len(self._spent) > 2 * self._max_callers:
            self._spent.popitem(last=False)


class QueueNames:
    """Names of queues without a spec that callers used today (UTC): each is counted once, up to a limit.

    `take_unreported` and `add_remote` as in `Quotas`: all servers of a store count together, also after a restart.
    """

    def __init__(self, clock: Callable[[], float], max_callers: int = MAX_CALLERS) -> None:
        self._clock = clock
        self._max_callers = max_callers
        self._day = 0
        self._named: OrderedDict[str, set[str]] = OrderedDict()
        self._unreported: dict[str, list[str]] = {}
        self._guard = Lock()

    def charge(self, caller: str, names: Collection[str], limit: int) -> float:
        """0 when the names are known, or fit and are counted; else the seconds until the count resets."""
        now = self._clock()
        with self._guard:
            known = self._of(caller, now)
            fresh = [name for name in dict.fromkeys(names) if name not in known]
            if fresh and len(known) + len(fresh) > limit:
                return (self._day + 1) * DAY - now
            known.update(fresh)
            if fresh:
                self._unreported.setdefault(caller, []).extend(fresh)
        return 0.0

    def take_unreported(self) -> dict[str, list[str]]:
        with self._guard:
            names, self._unreported = self._unreported, {}
        return names

    def add_remote(self, named: Mapping[str, Collection[str]], at: float) -> None:
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
        while len(self._named) > self._max_callers:
            self._named.popitem(last=False)
        return known


class Limits:
    """All limits of one server. `admit` holds a slot while a request is in flight."""

    def __init__(
        self,
        concurrency: ConcurrencyLimits = ConcurrencyLimits(),  # noqa: B008
        default: Allowance = Allowance(),  # noqa: B008
        *,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float],
    ) -> None:
        self.concurrency = concurrency
        self._default = default
        self._buckets = TokenBuckets(clock)
        self.quotas = Quotas(wall_clock)
        self.names = QueueNames(wall_clock)
        self._in_flight_by_caller: dict[tuple[bool, str], int] = {}
        self._in_flight = {False: 0, True: 0}
        self.refused: dict[str, int] = {
            "rate": 0,
            "quota": 0,
            "queue-names": 0,
            "concurrency": 0,
            "bad-key": 0,
            "connections": 0,
        }

    @contextmanager
    def admit(self, caller: str, allowance: Allowance, is_poll: bool) -> Iterator[None]:
        """A slot for one request; a 429 when its caller has too many, a 503 when the server has."""
        self._check_rate(caller, allowance)
        self._enter(caller, is_poll)
        try:
            yield
        finally:
            self._leave(caller, is_poll)

    def charge_jobs(self, caller: str, allowance: Allowance, jobs: int) -> None:
        """Count jobs against the caller's quotas, or refuse them all."""
        hour = self._default.quota_hour if allowance.quota_hour is None else allowance.quota_hour
        day = self._default.quota_day if allowance.quota_day is None else allowance.quota_day
        if wait := self.quotas.charge_jobs(caller, jobs, {HOUR: hour, DAY: day}):
            self.refused["quota"] += 1
            raise _too_many("quota", "The key's quota is used up", wait)

    def charge_queue_names(self, caller: str, allowance: Allowance, names: Collection[str]) -> None:
        """Count names of queues without a spec against the caller's limit, or refuse them all."""
        limit = QUEUE_NAMES if allowance.queue_names is None else allowance.queue_names
        if wait := self.names.charge(caller, names, limit):
            self.refused["queue-names"] += 1
            detail = f"at most {limit} queues without a spec per key and day: configure the queues, or try again"
            raise _too_many("queue-names", "The key uses too many queue names", wait, detail)

    def connection_dropped(self) -> None:
        self.refused["connections"] += 1

    def _check_rate(self, caller: str, allowance: Allowance) -> None:
        rate = self._default.rate if allowance.rate is None else allowance.rate
        if rate is None:
            return
        burst = allowance.burst or self._default.burst or max(1, ceil(rate))
        if wait := self._buckets.take(caller, rate, burst):
            self.refused["rate"] += 1
            raise _too_many("rate", "Too many requests per second", wait)

    def _enter(self, caller: str, is_poll: bool) -> None:
        bounds = self.concurrency
        in_total, per_caller = (
            (bounds.max_polls, bounds.max_polls_per_caller)
            if is_poll
            else (bounds.max_requests, bounds.max_requests_per_caller)
        )
        own = self._in_flight_by_caller.get((is_poll, caller), 0)
        if own >= per_caller or self._in_flight[is_poll] >= in_total:
            self.refused["concurrency"] += 1
            if own >= per_caller:
                detail = f"at most {per_caller} in flight per key: try again"
                raise _too_many("concurrency", "Too many concurrent requests", 1, detail)
            raise Problem(503, "busy", "The server is busy", "try again in a moment", {"Retry-After": "1"})
        self._in_flight_by_caller[is_poll, caller] = own + 1
        self._in_flight[is_poll] += 1

    def _leave(self, caller: str, is_poll: bool) -> None:
        self._in_flight[is_poll] -= 1
        own = self._in_flight_by_caller[is_poll, caller] - 1
        if own:
            self._in_flight_by_caller[is_poll, caller] = own
        else:
            del self._in_flight_by_caller[is_poll, caller]


def _too_many(slug: str, title: str, wait: float, detail: str = "") -> Problem:
    seconds = max(1, ceil(wait))
    return Problem(
        429,
        slug,
        title,
        f"{detail or 'try again'} in {seconds} s",
        headers={"Retry-After": str(seconds)},
        extra={"retry_after": seconds},
    )


class UsageReport(Struct, frozen=True):
    """What the callers of one server used since its last report: jobs, and names of queues without a spec."""

    server: str
    jobs: dict[str, int]
    queues: dict[str, list[str]] = {}


_decode: Final = msgspec.json.Decoder(UsageReport).decode


class UsageFollower:
    """A role: appends this server's usage to the log, and adds the other servers' usage to the quotas."""

    name = "usage"

    def __init__(self, store: Store, quotas: Quotas, names: QueueNames) -> None:
        self._store = store
        self._quotas = quotas
        self._names = names
        self._server = secrets.token_hex(8)
        self._offset: int | None = None
        self._unreported_jobs: dict[str, int] = {}
        self._unreported_names: list[tuple[str, str]] = []

    def step(self) -> float:
        self._publish()
        if self._offset is not None or any(spec.name == USAGE_LOG for spec in self._store.specs()):
            self._read_others()
        return PUBLISH_SECONDS

    def _publish(self) -> None:
        for caller, jobs in self._quotas.take_unreported().items():
            self._unreported_jobs[caller] = self._unreported_jobs.get(caller, 0) + jobs
        self._unreported_names += [
            (caller, name) for caller, names in self._names.take_unreported().items() for name in names
        ]
        while self._unreported_jobs or self._unreported_names:
            ensure_log(self._store, USAGE_LOG, KEPT)
            named: dict[str, list[str]] = {}
            for caller, name in self._unreported_names[:NAMES_BATCH]:
                named.setdefault(caller, []).append(name)
            body = msgspec.json.encode(UsageReport(self._server, self._unreported_jobs, named))
            (entry,) = self._store.append(USAGE_LOG, [body])
            self._unreported_jobs, self._unreported_names = {}, self._unreported_names[NAMES_BATCH:]
            if entry.offset % TRIM_INTERVAL == 0:
                self._store.trim(USAGE_LOG, self._store.now() - micros(KEPT), TRIM_INTERVAL)

    def _read_others(self) -> None:
        (first, _), *_ = self._store.extent(USAGE_LOG)
        after = first - 1 if self._offset is None else max(self._offset, first - 1)
        while page := self._store.read(USAGE_LOG, 0, after, READ_BATCH):
            for entry in page:
                report = _decode(entry.body)
                if report.server != self._server:
                    self._quotas.add_remote(report.jobs, entry.at / 1_000_000)
                    self._names.add_remote(report.queues, entry.at / 1_000_000)
            after = page[-1].offset
        self._offset = after
