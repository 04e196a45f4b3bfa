"""`JobSimulator`: your handlers under crashes, redeliveries, delays and other orders, all from one seed.

    with JobSimulator(fb, seed=17) as sim:
        charge.enqueue(7)
        sim.advance(hours=1)
        assert bank.charges == [7]                      # whatever happened on the way

A worker may die before the handler, at an enqueue of the handler, at any await, or after the handler and before its
acknowledgement; each time the job runs again. No job has more faults than attempts to survive them, so a job that can
succeed does. The same seed gives the same faults at the same points; `random` is seeded too, until `close`.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from forebay.client import Forebay
from forebay.core.clock import Signal
from forebay.core.errors import Invalid
from forebay.core.instant import Duration
from forebay.core.job import Job
from forebay.core.lease import Fence, Lease
from forebay.core.limits import MAX_BATCH, MAX_LEASE
from forebay.core.outcome import Abandoned, Outcome
from forebay.store.protocol import Want
from forebay.testing.job_tester import JobTester
from forebay.work.run import Run

FaultMoment = Literal["before", "during", "after", "delay"]

MAX_CRASHES: Final = 3
"""Crashes of one job; fewer if it has fewer attempts."""

_FAULTS: Final[tuple[FaultMoment, ...]] = ("before", "during", "after", "delay")
_MAX_DELAY: Final = 30_000_000
_MAX_AWAIT: Final = 10.0
_CRASH_POINTS: Final = 4
_CLAIMED: Final = 4


class SimulatedCrash(BaseException):
    """The worker dies here. Not an `Exception`, so that no handler catches it."""


class JobSimulator(JobTester):
    """A `JobTester` whose worker fails at points that the seed chooses.

    seed     an integer; the same one repeats everything
    rate     how likely a run has a fault, from 0 to 1
    faults   what was injected, oldest first
    """

    def __init__(
        self, app: Forebay, *, seed: int, rate: float = 0.3, provided: Mapping[Any, Any] | None = None
    ) -> None:
        if not 0 <= rate <= 1:
            raise Invalid("rate", f"{rate!r} is not in 0 … 1", "give a share of the runs")
        self.seed = seed
        self.faults: list[str] = []
        self._random = random.Random(seed)
        self._rate = rate
        self._crashes: dict[int, int] = {}
        self._points_left: int | None = None
        self._await_limits: dict[Fence, float] = {}
        self._doomed: set[Fence] = set()
        self._random_before = random.getstate()
        random.seed(seed)
        super().__init__(app, provided=provided)

    def close(self) -> None:
        random.setstate(self._random_before)
        super().close()

    def _claim(self) -> list[Lease]:
        """Several jobs at once, which run in any order."""
        wants = [Want(name, self._random.randint(1, _CLAIMED)) for name in self._ready_queues()[:MAX_BATCH]]
        leases = self.store.claim(wants, "simulator", MAX_LEASE)
        self._random.shuffle(leases)
        return leases

    def _draw(self) -> float:
        return self._random.random()

    def _wait(self, signal: Signal, duration: Duration) -> None:
        """What runs while a handler waits crashes by faults of its own."""
        points, self._points_left = self._points_left, None
        try:
            super()._wait(signal, duration)
        finally:
            self._points_left = points

    def _outcomes(self, runs: Sequence[Run]) -> list[Outcome]:
        faults = {run.fence: self._fault(run) for run in runs}
        started = [run for run in runs if faults[run.fence] != "before"]
        crashed = {run.fence for run in started if faults[run.fence] in ("during", "after")}
        self._doomed |= crashed
        try:
            outcomes = dict(zip(started, super()._outcomes(started) if started else [], strict=True))
        except SimulatedCrash:
            outcomes = {}
        finally:
            self._doomed -= crashed
            self._points_left = None
            for fence in crashed:
                self._await_limits.pop(fence, None)
        for run in runs:
            if run not in started:
                outcomes[run] = Abandoned("the simulated worker died before the handler began")
            elif run.fence in crashed:
                outcomes[run] = Abandoned("the simulated worker died before the acknowledgement")
        return [outcomes[run] for run in runs]

    def _fault(self, run: Run) -> FaultMoment | None:
        """The fault of this run, noted and prepared."""
        job = run.lease.job
        fault = self._choose(job)
        if fault is None:
            return None
        self.faults.append(f"{fault}: {job.kind} {job.id}, delivery {job.delivery}")
        if fault == "delay":
            self.clock.advance(self._random.randint(1, _MAX_DELAY))
            return fault
        self._crashes[job.id] = self._crashes.get(job.id, 0) + 1
        if fault == "during" and run.handler.where == "loop":
            self._await_limits[run.fence] = self._random.uniform(0, _MAX_AWAIT)
        elif fault == "during":
            self._points_left = self._random.randrange(_CRASH_POINTS)
        return fault

    def _choose(self, job: Job) -> FaultMoment | None:
        """The fault of this run, if any. The last attempt has none that costs it."""
        if self._random.random() >= self._rate:
            return None
        fault = self._random.choice(_FAULTS)
        survives = job.attempt < job.max_attempts and self._crashes.get(job.id, 0) < MAX_CRASHES
        return fault if survives or fault == "delay" else None

    def _limit(self, run: Run) -> float | None:
        limits = [limit for limit in (super()._limit(run), self._await_limits.get(run.fence)) if limit is not None]
        return min(limits, default=None)

    def _raised(self, run: Run, error: Exception) -> Outcome:
        """What a run raises that ends with a crash is never known."""
        raised = len(self.errors)
        outcome = super()._raised(run, error)
        if run.fence in self._doomed:
            del self.errors[raised:]
        return outcome

    def _crash_point(self) -> None:
        if self._points_left is None:
            return
        if self._points_left == 0:
            raise SimulatedCrash
        self._points_left -= 1
