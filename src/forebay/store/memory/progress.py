"""How far running jobs are. It is kept in memory alone: nothing depends on it, and a journal need not carry it."""

from collections.abc import Sequence

from msgspec.structs import replace

from forebay.core.clock import Clock
from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.store.memory.engine import Recorder
from forebay.store.memory.facts import Facts
from forebay.store.memory.queues import QueueVerbs


class ProgressVerbs(QueueVerbs):
    """Report, and show what was reported."""

    def __init__(self, facts: Facts, clock: Clock, recorder: Recorder | None) -> None:
        super().__init__(facts, clock, recorder)
        self._progress: dict[int, tuple[int, Progress]] = {}

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        with self._lock:
            now = self._begin()
            self._progress = {job_id: told for job_id, told in self._progress.items() if self._runs(job_id, told[0])}
            for (job_id, delivery), progress in newest.items():
                if self._runs(job_id, delivery):
                    self._progress[job_id] = (delivery, replace(progress, at=now))
            return {fence: self._runs(*fence) for fence in newest}

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs, told = super().get(ids), self._progress
        return [
            with_progress(job, *told[job_id]) if job_id in told else job for job_id, job in zip(ids, jobs, strict=True)
        ]

    def _runs(self, job_id: int, delivery: int) -> bool:
        row = self._facts.rows.get(job_id)
        return row is not None and row.state is State.RUNNING and row.delivery == delivery
