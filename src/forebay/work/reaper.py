"""The reaper reclaims expired leases, the promoter makes due jobs ready. Every worker runs both; any number may race.

No leader is needed: `overdue` reads, `decide` decides, and `settle` is fenced. After an outage of the store all leases
may have expired, including those of live workers, so the reaper first gives them time to renew. Where the store
promotes jobs at the claim, the promoter finds nothing to do.
"""

import random
from collections.abc import Callable
from typing import Final

from forebay.core.decide import decide
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Verdict
from forebay.core.policy import Routing
from forebay.store.protocol import Store
from forebay.work.job_log import JobLog
from forebay.work.recovery import expired_outcome
from forebay.work.start_marks import ProcessMarks

_BATCH: Final = 200
_INTERVAL: Final = 0.5
_MIN_REST: Final = 0.02
"""Seconds between two promotions where jobs fall due all the time. A claim takes what is due by itself."""

_OUTAGE: Final = 3
"""Consecutive failures that count as an outage."""

_AFTER_OUTAGE: Final = 3.0
"""Seconds within which every live worker reconnects and renews its leases."""

_OWN_GRACE: Final = 60_000_000
"""Microseconds after the end of a lease for which a worker does not reclaim a job that it runs itself."""


class Reaper:
    """Settles jobs whose lease has expired."""

    name = "reaper"

    def __init__(
        self,
        store: Store,
        routing: Callable[[str], Routing],
        draw: Callable[[], float] = random.random,
        interval: float = _INTERVAL,
        *,
        after_outage: bool = False,
        log: JobLog | None = None,
        marks: Callable[[str], ProcessMarks | None] = lambda _: None,
        owner: str | None = None,
    ) -> None:
        """after_outage  act as after an outage: a new process has no record of whether there was one

        marks         reads the start marks of an owner, if they are on this machine
        owner         this process. A job that it has begun is not reclaimed for a minute after its lease ended: it is
                      running, and its lease is renewed as soon as the store is reachable
        """
        self._store = store
        self._routing = routing
        self._draw = draw
        self._interval = interval
        self._log = log or JobLog()
        self._marks = marks
        self._owner = owner
        self._failures = _OUTAGE if after_outage else 0
        self.reaped = 0

    def step(self) -> float:
        if self._failures >= _OUTAGE:
            # A write: a store that only answers reads has not recovered yet.
            self._store.promote(1)
            self._failures = 0
            return _AFTER_OUTAGE
        self._failures += 1
        overdue = self._store.overdue(_BATCH)
        if not overdue:
            self._failures = 0
            return self._interval
        marks = {owner: self._marks(owner) for owner in {lease.owner for lease in overdue}}
        own = marks.get(self._owner or "")
        running_here = {} if own is None else own.begun or {}
        grace_ended = self._store.now() - _OWN_GRACE
        reclaimed = [lease for lease in overdue if lease.fence not in running_here or lease.until <= grace_ended]
        verdicts = [(lease, self._verdict(lease, marks[lease.owner])) for lease in reclaimed]
        for (lease, verdict), answer in zip(verdicts, self._store.settle(verdicts), strict=True):
            if answer is Settled.APPLIED:
                self.reaped += 1
                self._log.ended(lease.job, verdict)
        self._failures = 0
        return 0.0 if len(verdicts) == _BATCH else self._interval

    def _verdict(self, lease: Lease, marks: ProcessMarks | None) -> Verdict:
        outcome = expired_outcome(marks, lease.fence)
        return decide(lease.job, outcome, self._routing(lease.job.queue), self._draw())


class Promoter:
    """Makes due jobs ready and opens gates."""

    name = "promoter"

    def __init__(self, store: Store, interval: float = _INTERVAL) -> None:
        self._store = store
        self._interval = interval
        self.promoted = 0

    def step(self) -> float:
        promotion = self._store.promote(_BATCH)
        self.promoted += promotion.ready
        if promotion.ready == _BATCH:
            return 0.0
        if promotion.next_due is None:
            return self._interval
        return min(self._interval, max(_MIN_REST, (promotion.next_due - self._store.now()) / 1_000_000))
