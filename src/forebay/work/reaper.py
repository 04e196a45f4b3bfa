"""The reaper and the promoter tend the store from every worker, bounded; any number of them may race.

The reaper is not a job and needs no leader: `overdue` reads, `decide` decides, `settle` is fenced. After an outage of
the store everybody's leases may have run out, also of those who live: the reaper lets them speak first. The promoter
moves what fell due; where a store promotes at the claim, it finds nothing to do.
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
_EVERY: Final = 0.5
_OUTAGE: Final = 3
"""So many failures in a row are one; a single one is an accident."""

_AFTER_OUTAGE: Final = 3.0
"""Seconds in which everyone who lives has reached the store again, and renewed what it holds."""

_SPARED: Final = 60_000_000
"""Microseconds for which a worker leaves its own begun jobs alone after their leases ended."""


class Reaper:
    """Takes jobs back from workers that fell silent."""

    name = "reaper"

    def __init__(
        self,
        store: Store,
        routing: Callable[[str], Routing],
        draw: Callable[[], float] = random.random,
        every: float = _EVERY,
        *,
        wary: bool = False,
        log: JobLog | None = None,
        marks: Callable[[str], ProcessMarks | None] = lambda _: None,
        owner: str | None = None,
    ) -> None:
        """`wary`: this process is new, and cannot know whether there was an outage just now.

        `marks` reads the start marks of an owner, where they are on this machine. What `owner`, this process, has
        begun is spared for a minute after its lease ended: it runs, and is renewed as soon as the store is back.
        """
        self._store = store
        self._routing = routing
        self._draw = draw
        self._every = every
        self._log = log or JobLog()
        self._marks = marks
        self._owner = owner
        self._failures = _OUTAGE if wary else 0
        self.reaped = 0

    def step(self) -> float:
        if self._failures >= _OUTAGE:
            # A store that only answers questions is not back yet: this one writes, or might.
            self._store.promote(1)
            self._failures = 0
            return _AFTER_OUTAGE
        self._failures += 1
        overdue = self._store.overdue(_BATCH)
        if not overdue:
            self._failures = 0
            return self._every
        marks = {owner: self._marks(owner) for owner in {lease.owner for lease in overdue}}
        own = marks.get(self._owner or "")
        mine = {} if own is None else own.begun or {}
        spared = self._store.now() - _SPARED
        taken = [lease for lease in overdue if lease.fence not in mine or lease.until <= spared]
        verdicts = [(lease, self._verdict(lease, marks[lease.owner])) for lease in taken]
        for (lease, verdict), answer in zip(verdicts, self._store.settle(verdicts), strict=True):
            if answer is Settled.APPLIED:
                self.reaped += 1
                self._log.ended(lease.job, verdict)
        self._failures = 0
        return 0.0 if len(verdicts) == _BATCH else self._every

    def _verdict(self, lease: Lease, marks: ProcessMarks | None) -> Verdict:
        outcome = expired_outcome(marks, lease.fence)
        return decide(lease.job, outcome, self._routing(lease.job.queue), self._draw())


class Promoter:
    """Moves what fell due and opens gates."""

    name = "promoter"

    def __init__(self, store: Store, every: float = _EVERY) -> None:
        self._store = store
        self._every = every
        self.promoted = 0

    def step(self) -> float:
        promotion = self._store.promote(_BATCH)
        self.promoted += promotion.ready
        if promotion.ready == _BATCH:
            return 0.0
        if promotion.next_due is None:
            return self._every
        return min(self._every, max(0.001, (promotion.next_due - self._store.now()) / 1_000_000))
