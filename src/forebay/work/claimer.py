"""The claimer claims no more jobs than can start now, so every leased job is really running.

A job takes as many slots of the pool as it costs, which is known only after the claim. A job that does not fit is
released uncharged, together with the jobs after it, and the claimer waits until it would fit, so that light jobs do not
overtake a heavy one for ever. If long jobs keep the slots busy, the claimer continues with other jobs after some
seconds. It estimates how many jobs fit from the cost of the last batch.

A suspect (`Job.needs_quarantine`) takes no slot of the pool: it runs in quarantine. Suspects that do not fit there are
released uncharged with a short delay.
"""

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import ceil
from threading import Event, Lock
from time import perf_counter
from typing import Final, Protocol

from forebay.core.instant import seconds
from forebay.core.lease import Lease, Settlement
from forebay.core.outcome import Release
from forebay.store.protocol import Store, Want
from forebay.work.capacity import QueueRotation, slots_of
from forebay.work.metrics import Histogram
from forebay.work.options import Options
from forebay.work.run import lease_clock

_IDLE: Final = seconds(1)
_CAPACITY_WAIT: Final = 0.05
_SUSPECT_DELAY: Final = 1_000_000
_HEAVY_DELAY: Final = 3_000_000
_MAX_RESERVED_STEPS: Final = 200
"""Steps for which slots are kept free for a heavy job."""

_UNRESERVED_CLAIMS: Final = 50
"""Claims without such a reservation after one that failed."""

_FREE_HINTS: Final = 2
_EMPTY_HINT_REST: Final = 0.01
_MAX_EMPTY_HINT_REST: Final = 0.08
_CLOSED_REST: Final = 1.0


class Slots(Protocol):
    """The part of a pool that the claimer uses."""

    @property
    def free(self) -> int: ...

    def fits(self, leases: Sequence[Lease]) -> int: ...

    def submit(self, leases: Sequence[Lease], lease_ends: float) -> None: ...

    def quarantine(self, leases: Sequence[Lease], lease_ends: float) -> int: ...

    def wait_for_capacity(self, timeout: float, minimum: int = 0) -> None: ...


class Claimer:
    """Fills the pool. Claims rotate over the queues, or follow their weights, so that no queue starves."""

    name = "claimer"

    def __init__(
        self,
        store: Store,
        slots: Slots,
        options: Options,
        owner: str,
        settle: Callable[[Sequence[Settlement]], None],
        draw: Callable[[], float] = random.random,
        claim: Callable[[Sequence[Want], str, timedelta], list[Lease]] | None = None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._store = store
        self._claim = claim
        self._slots = slots
        self._options = options
        self._owner = owner
        self._settle = settle
        self._draw = draw
        self._clock = clock
        self._lease_ends = 0.0
        self._unreserved_claims = 0
        self._reserved = 0
        self._reserved_steps = 0
        self._cost = 1
        self._closing = Event()
        self._claiming = Lock()
        self._rotation = QueueRotation(options.queues, options.weights)
        self._hinted = False
        self._empty_hints = 0
        self.claims = 0
        self.claimed = 0
        self.durations = Histogram()

    def step(self) -> float:
        """One claim, or one wait until there may be something to claim."""
        with self._claiming:
            rest = self._claim_round()
        return self._idle() if rest is None else rest

    def _claim_round(self) -> float | None:
        """One claim; returns the seconds to rest, None when the queues are empty."""
        if self._closing.is_set():
            return _CLOSED_REST
        if self._reserved > self._slots.free and self._reserved_steps < _MAX_RESERVED_STEPS:
            self._slots.wait_for_capacity(_CAPACITY_WAIT, self._reserved)
            self._reserved_steps += 1
            return 0.0
        if self._reserved > self._slots.free:
            self._unreserved_claims = _UNRESERVED_CLAIMS
        self._reserved, self._reserved_steps = 0, 0
        self._unreserved_claims = max(0, self._unreserved_claims - 1)
        count = self._claim_size()
        if count <= 0:
            self._slots.wait_for_capacity(_CAPACITY_WAIT)
            return 0.0
        wants = self._rotation.wants(count)
        # Counted from before the claim: the process may be stopped while it waits for the answer.
        self._lease_ends = self._clock() + self._options.lease_for.total_seconds()
        leases = self._claim_jobs(wants)
        if more := self._rotation.more(count, wants, leases):
            leases += self._claim_jobs(more)
        if self._rotation.all_empty(wants, leases):
            return None
        if not leases:
            return 0.0
        self._hinted, self._empty_hints = False, 0
        self.claimed += len(leases)
        if self._closing.is_set():
            self._settle([(lease, Release()) for lease in leases])
        else:
            self._dispatch(leases)
        return 0.0

    def close(self) -> None:
        """Stop claiming. The jobs of a claim in progress are released."""
        self._closing.set()

    def join(self, timeout: float) -> None:
        """Return once no claim is in progress, or after the timeout. A closed claimer may still wait, but not claim."""
        if self._claiming.acquire(timeout=timeout):
            self._claiming.release()

    def _dispatch(self, leases: list[Lease]) -> None:
        """Send suspects to the quarantine and the other jobs to the pool."""
        suspects = [lease for lease in leases if lease.job.errors and lease.job.needs_quarantine]
        if suspects:
            left = suspects[self._slots.quarantine(suspects, self._lease_ends) :]
            self._settle([(lease, Release(int(_SUSPECT_DELAY * (0.5 + self._draw())))) for lease in left])
            leases = [lease for lease in leases if lease not in suspects]
        if leases:
            self._begin(leases)

    def _claim_size(self) -> int:
        """How many jobs to claim."""
        free = self._slots.free
        return min(free if self._cost == 1 else max(min(free, 1), free // self._cost), self._options.claim_batch)

    def _begin(self, leases: list[Lease]) -> None:
        """Start the jobs that fit and release the others: with a delay if slots will not become free soon."""
        size = self._options.concurrency
        self._cost = ceil(sum(slots_of(lease.job, size) for lease in leases) / len(leases)) if leases else 1
        count = self._slots.fits(leases)
        self._slots.submit(leases[:count], self._lease_ends)
        if count == len(leases):
            return
        if self._unreserved_claims == 0:
            self._reserved = slots_of(leases[count].job, size)
        delay = 0 if self._reserved else _HEAVY_DELAY
        delays = [0 if lease.job.cost == 1 else int(delay * (0.5 + self._draw())) for lease in leases[count:]]
        self._settle([(lease, Release(delay)) for lease, delay in zip(leases[count:], delays, strict=True)])

    def _idle(self) -> float:
        """Wait for a hint that jobs may be ready. Repeated hints without jobs (an expired lease) cause a backoff."""
        if self._hinted:
            self._hinted = False
            self._empty_hints += 1
            beyond = self._empty_hints - _FREE_HINTS - len(self._options.queues)
            if beyond > 0:
                return min(_EMPTY_HINT_REST * 2.0**beyond, _MAX_EMPTY_HINT_REST) * (0.5 + self._draw())
        self._hinted = self._store.wait(self._options.queues, _IDLE)
        if not self._hinted:
            self._empty_hints = 0
        return 0.0

    def _claim_jobs(self, wants: Sequence[Want]) -> list[Lease]:
        claim = self._claim or self._store.claim
        started = perf_counter()
        leases = claim(wants, self._owner, self._options.lease_for)
        self.durations.add(int((perf_counter() - started) * 1_000_000))
        self.claims += 1
        return leases
