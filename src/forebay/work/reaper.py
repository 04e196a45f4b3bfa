"""The reaper and the promoter tend the store from every worker, bounded; any number of them may race.

The reaper is not a job and needs no leader: `overdue` reads, `decide` decides, `settle` is fenced. The promoter moves
what fell due; where a store promotes at the claim, it finds nothing to do.
"""

import random
from collections.abc import Callable
from typing import Final

from forebay.core.decide import decide
from forebay.core.lease import Settled
from forebay.core.outcome import Abandoned
from forebay.core.policy import Routing
from forebay.store.protocol import Store

_BATCH: Final = 200
_EVERY: Final = 0.5


class Reaper:
    """Takes jobs back from workers that fell silent."""

    name = "reaper"

    def __init__(
        self,
        store: Store,
        routing: Callable[[str], Routing],
        draw: Callable[[], float] = random.random,
        every: float = _EVERY,
    ) -> None:
        self._store = store
        self._routing = routing
        self._draw = draw
        self._every = every
        self.reaped = 0

    def step(self) -> float:
        overdue = self._store.overdue(_BATCH)
        if not overdue:
            return self._every
        verdicts = [
            (lease, decide(lease.job, Abandoned(lease.owner), self._routing(lease.job.queue), self._draw()))
            for lease in overdue
        ]
        self.reaped += self._store.settle(verdicts).count(Settled.APPLIED)
        return 0.0 if len(overdue) == _BATCH else self._every


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
