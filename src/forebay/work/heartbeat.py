"""Heartbeats: the roles that keep a worker's leases, presence and progress in the store, and receive cancel requests.

The renewer runs in its own thread, so that a handler that blocks the event loop does not lose its lease. A lease that
cannot be renewed is lost: the pool marks the run, the handler can see it (`ctx.lost`), and its result is discarded.

The cancel listener blocks in the store while jobs run here, so a cancel request arrives at once. Notifications may get
lost: the store also polls once a second, and the renewer sees requests too.

The progress reporter writes the progress that handlers set, once a second, many jobs in one call. Of several values set
within a second only the last is written. A value set just before the end of a run may be lost, and a failed write is
not retried.
"""

import os
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final, Protocol

from forebay.core.instant import seconds
from forebay.core.job import Progress
from forebay.core.lease import Fence, Lease
from forebay.core.limits import MAX_BATCH
from forebay.core.presence import MAX_KINDS, MAX_QUEUES, Presence, unhandled_kinds
from forebay.store.protocol import Beating, ProgressReport, Store
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.run import lease_clock

_CANCEL_WAIT: Final = timedelta(seconds=2)
_CANCEL_IDLE: Final = 0.25
_PROGRESS_INTERVAL: Final = 1.0
_ANNOUNCE_INTERVAL: Final = 5.0
ANNOUNCED_FOR: Final = seconds(30)
"""A worker that has not announced itself for this long is no longer listed."""


class HeldLeases(Protocol):
    """The part of a pool that renewals and cancellations use."""

    def held(self) -> list[Lease]: ...

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None: ...

    def mark_lost(self, fences: Sequence[Fence]) -> None: ...

    def request_cancel(self, fences: Sequence[Fence]) -> None: ...


class Renewer:
    """Extends all held leases three times per lease duration; in one call where the store supports it (`beat`)."""

    name = "renewer"

    def __init__(
        self, store: Store, held: HeldLeases, options: Options, clock: Callable[[], float] = lease_clock
    ) -> None:
        self._store = store
        self._held = held
        self._lease_for = options.lease_for
        self._clock = clock
        self.renewed = 0
        self.lost = 0

    def step(self) -> float:
        leases = self._held.held()
        if isinstance(self._store, Beating) and leases:
            leases = self._beat(self._store, leases)
        for start in range(0, len(leases), MAX_BATCH):
            self._extend(leases[start : start + MAX_BATCH])
        return self._lease_for.total_seconds() / 3

    def _beat(self, store: Beating, leases: list[Lease]) -> list[Lease]:
        """Extend all leases at once; returns those that the store does not have, which need `extend`."""
        ends = self._clock() + self._lease_for.total_seconds()
        answer = store.beat(leases, self._lease_for)
        # A run that ended during the call is neither lost nor unknown.
        held_now = {lease.fence for lease in self._held.held()}
        unknown = held_now.intersection(answer.unknown)
        self._held.renewed({lease.fence for lease in leases}.difference(answer.unknown, answer.lost), ends)
        self._apply([fence for fence in answer.lost if fence in held_now], answer.cancel_requested)
        self.renewed += len(held_now) - len(unknown)
        return [lease for lease in leases if lease.fence in unknown]

    def _extend(self, leases: Sequence[Lease]) -> None:
        ends = self._clock() + self._lease_for.total_seconds()
        extended = self._store.extend(leases, self._lease_for)
        alive = {lease.fence for lease in extended}
        self._held.renewed(alive, ends)
        lost = [lease.fence for lease in leases if lease.fence not in alive]
        self._apply(lost, [lease.fence for lease in extended if lease.job.cancel_requested])
        self.renewed += len(leases)

    def _apply(self, lost: Sequence[Fence], cancel_requested: Sequence[Fence]) -> None:
        self._held.mark_lost(lost)
        self._held.request_cancel(cancel_requested)
        self.renewed -= len(lost)
        self.lost += len(lost)


class CancelListener:
    """Waits for cancel requests and passes them to the pool."""

    name = "cancel listener"

    def __init__(self, store: Store, held: HeldLeases, owner: str) -> None:
        self._store = store
        self._held = held
        self._owner = owner
        self._requested: set[Fence] = set()

    def step(self) -> float:
        held = {lease.fence for lease in self._held.held()}
        self._requested &= held
        if not held:
            return _CANCEL_IDLE
        requests = self._store.wait_cancel_requests(self._owner, _CANCEL_WAIT, self._requested)
        self._held.request_cancel(requests)
        self._requested.update(requests)
        return 0


class ProgressSource(Protocol):
    """The part of a pool that the progress reporter uses."""

    def progress(self) -> Sequence[ProgressReport]: ...


class ProgressReporter:
    """Writes the progress values that have changed."""

    name = "progress reporter"

    def __init__(self, store: Store, pool: ProgressSource) -> None:
        self._store = store
        self._pool = pool
        self._written: dict[Fence, Progress] = {}

    def step(self) -> float:
        current = self._pool.progress()
        changed = [report for report in current if self._written.get(report[0]) is not report[1]]
        self._written = dict(current)
        for start in range(0, len(changed), MAX_BATCH):
            self._store.report_progress(changed[start : start + MAX_BATCH])
        return _PROGRESS_INTERVAL


class Announcer:
    """Announces the worker to the store every few seconds, so that operators see it while it is idle too."""

    name = "announcer"

    def __init__(self, store: Store, pool: Pool, options: Options, owner: str, kinds: Collection[str]) -> None:
        self._store = store
        self._pool = pool
        self._options = options
        self._owner = owner
        self._kinds = tuple(sorted(kinds)) if len(kinds) <= MAX_KINDS else ()
        self._host = socket.gethostname()[:60] or "localhost"

    def step(self) -> float:
        unhandled = self._pool.unhandled()
        presence = Presence(
            self._owner,
            self._host,
            os.getpid(),
            self._options.queues[:MAX_QUEUES],
            self._kinds,
            self._options.concurrency,
            self._pool.running,
            unhandled=unhandled,
        )
        self._store.announce(presence, ANNOUNCED_FOR)
        if unhandled:
            without_handler = unhandled_kinds(self._store.workers("", MAX_BATCH))
            self._pool.handled_elsewhere = frozenset(unhandled).difference(without_handler)
        return _ANNOUNCE_INTERVAL

    def withdraw(self) -> None:
        """Remove the worker from the list now, rather than when its announcement expires."""
        self._store.withdraw(self._owner)
