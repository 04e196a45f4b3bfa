"""What the pages of one server share, cached so that many readers cost the store as much as one.

Queue totals are read at most once a second. On a store where that is slow, a page shows the last totals while the next
ones are read in the background, so that no page waits for a full count. Totals that the metrics have just polled are
used instead of another read. Before the first count, a page says so instead of waiting.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.limits import MAX_BATCH
from forebay.core.presence import Presence, unhandled_kinds
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.context import ServerContext
from forebay.serve.dashboard.bulk_actions import BulkActions
from forebay.serve.dashboard.views.causes import CauseScan
from forebay.serve.dashboard.views.last_verdict import LastVerdict, last_verdict
from forebay.serve.dashboard.views.rates import RateTracker
from forebay.serve.dashboard.views.search import NewestId
from forebay.serve.queue_totals import QueueTotals, exists, from_store_totals, totals_for
from forebay.serve.security.visibility import sees_all
from forebay.store.protocol import Backlog, Totals

T = TypeVar("T")

_log = logging.getLogger("forebay.serve")

MAX_STREAMS: Final = 100
"""Concurrent live pages; further ones do not update until they are reloaded."""

_MAX_SCANS: Final = 16
_FRESH_SECONDS: Final = 1.0
_STALE_SECONDS: Final = 60.0
_SLOW_SECONDS: Final = 0.05
_FIRST_COUNT_SECONDS: Final = 0.05
_VERDICT_SECONDS: Final = 0.05


class Observation(Struct, Generic[T], frozen=True):
    """A value that was read elsewhere: when, and how long that took."""

    value: T
    at: float
    took: float


class CachedValue(Generic[T]):
    """A value that may be a second old. A slow one may be older, and is then read again in the background.

    `observe`: the same value as read elsewhere, if it was; it is used instead of a read.
    """

    def __init__(self, read: Callable[[], T], observe: Callable[[], Observation[T] | None] = lambda: None) -> None:
        self._read = read
        self._observe = observe
        self._guard = Lock()
        self._value: T | None = None
        self._read_at = float("-inf")
        self._invalidated_at = float("-inf")
        self._took = 0.0

    def get(self) -> T:
        self._take_observation()
        age = monotonic() - self._read_at
        known = self._value
        if known is not None and age < _FRESH_SECONDS:
            return known
        if known is None or self._took < _SLOW_SECONDS or age > _STALE_SECONDS:
            with self._guard:
                return self._refresh()
        if self._guard.acquire(blocking=False):
            Thread(target=self._refresh_in_background, name="forebay-view-cache", daemon=True).start()
        return known

    def soon(self, seconds: float) -> T | None:
        """As `get`; None when there is no value yet and the first read takes longer than this."""
        self._take_observation()
        if self._value is None:
            if self._guard.acquire(blocking=False):
                Thread(target=self._refresh_in_background, name="forebay-view-cache", daemon=True).start()
            if not self._guard.acquire(timeout=seconds):
                return None
            self._guard.release()
        return self.get()

    def latest(self, seconds: float) -> T | None:
        """What was read last, after at most this time: an old value is read again in the background."""
        if monotonic() - self._read_at >= _FRESH_SECONDS:
            if self._guard.acquire(blocking=False):
                Thread(target=self._refresh_in_background, name="forebay-view-cache", daemon=True).start()
            if self._guard.acquire(timeout=seconds):
                self._guard.release()
        return self._value

    def invalidate(self) -> None:
        """This server made a change: the next `get` reads again."""
        self._invalidated_at = monotonic()
        self._read_at = float("-inf")

    def _take_observation(self) -> None:
        observed = self._observe()
        if observed is not None and observed.at > self._read_at and observed.at - observed.took > self._invalidated_at:
            self._value, self._read_at, self._took = observed.value, observed.at, observed.took

    def _refresh_in_background(self) -> None:
        try:
            self._refresh()
        except Exception as error:
            _log.warning("the dashboard shows old totals, the store failed: %s: %s", type(error).__name__, error)
        finally:
            self._guard.release()

    def _refresh(self) -> T:
        if self._value is not None and monotonic() - self._read_at < _FRESH_SECONDS:
            return self._value
        began = monotonic()
        value = self._read()
        self._took = monotonic() - began
        self._value, self._read_at = value, monotonic() if began >= self._invalidated_at else float("-inf")
        return value


class ViewCache:
    """At `app.state.view_cache`."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.store = context.store
        self.rate_tracker = RateTracker(context.store)
        self.bulk_actions = BulkActions(context)
        self.newest = NewestId(context.store)
        self.streams = 0
        self._totals: CachedValue[Totals] = CachedValue(partial(self.store.totals, MAX_BATCH), self._polled_totals)
        self._totals_by_queues: OrderedDict[tuple[str, ...], CachedValue[QueueTotals]] = OrderedDict()
        self._specs: CachedValue[list[QueueSpec]] = CachedValue(self.store.specs)
        self._workers: CachedValue[list[Presence]] = CachedValue(partial(self.store.workers, "", MAX_BATCH))
        self._scans: OrderedDict[str | None, CauseScan] = OrderedDict()
        self._verdict: CachedValue[LastVerdict | None] = CachedValue(self._remote_verdict)

    def totals(self, actor: Actor) -> QueueTotals:
        """The totals of the queues that the actor can reach, without logs and reserved names."""
        if not sees_all(actor):
            return self._totals_for(actor).get()
        return from_store_totals(self._totals.get(), self._logs())

    def totals_soon(self, actor: Actor) -> QueueTotals | None:
        """None: the server has just started, and the first count is not done yet."""
        if not sees_all(actor):
            return self._totals_for(actor).soon(_FIRST_COUNT_SECONDS)
        counted = self._totals.soon(_FIRST_COUNT_SECONDS)
        return None if counted is None else from_store_totals(counted, self._logs())

    def backlog(self, actor: Actor, name: str) -> Backlog | None:
        """One queue, read now; None when this actor cannot see it."""
        if not actor.reaches(name) or name in self._logs() or not exists(self.store, name):
            return None
        return self.store.backlog([name])[0]

    def specs(self, actor: Actor) -> dict[str, QueueSpec]:
        return {spec.name: spec for spec in self._specs.get() if actor.reaches(spec.name)}

    def workers(self) -> list[Presence]:
        """The workers that have announced themselves."""
        return self._workers.get()

    def unhandled(self, actor: Actor) -> dict[str, list[str]]:
        """By queue: the kinds that no worker has a handler for."""
        found: dict[str, list[str]] = {}
        for queue, kind in unhandled_kinds(self.workers()):
            if actor.reaches(queue):
                found.setdefault(queue, []).append(kind)
        return found

    def scan(self, actor: Actor) -> CauseScan:
        """The dead letters of the actor's tenant, or of all; the page filters them by queue."""
        scan = self._scans.pop(actor.tenant, None) or CauseScan(self.store, actor.tenant)
        self._scans[actor.tenant] = scan
        if len(self._scans) > _MAX_SCANS:
            self._scans.popitem(last=False)
        return scan

    def verdict(self) -> LastVerdict | None:
        """Of the last audit. An object store that does not answer delays no page."""
        if self.context.read_verdict is not None:
            return self._verdict.latest(_VERDICT_SECONDS)
        lake = self.context.settings.lake
        return None if lake is None else last_verdict(Path(lake, "verdict.json").read_bytes)

    def _remote_verdict(self) -> LastVerdict | None:
        read = self.context.read_verdict
        return None if read is None else last_verdict(read)

    def _logs(self) -> set[str]:
        return {spec.name for spec in self._specs.get() if spec.is_log}

    def _totals_for(self, actor: Actor) -> CachedValue[QueueTotals]:
        """The totals for an actor with some queues; actors with the same queues share them."""
        whole = replace(actor, tenant=None)
        totals = self._totals_by_queues.pop(actor.queues, None) or CachedValue(partial(totals_for, self.store, whole))
        self._totals_by_queues[actor.queues] = totals
        if len(self._totals_by_queues) > _MAX_SCANS:
            self._totals_by_queues.popitem(last=False)
        return totals

    def _polled_totals(self) -> Observation[Totals] | None:
        snapshot = self.context.metrics.poller.snapshot
        return None if snapshot is None else Observation(snapshot.totals, snapshot.at, snapshot.took)

    def invalidate(self) -> None:
        """Read everything again: this server has made a change."""
        self._totals.invalidate()
        for totals in list(self._totals_by_queues.values()):
            totals.invalidate()
        self._specs.invalidate()
        for scan in list(self._scans.values()):
            scan.invalidate()
