"""How far running jobs are: a row each in an unlogged table, so that a report touches neither runs nor the log."""

from collections.abc import Sequence
from typing import Final

from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.store.postgres.queries import statement
from forebay.store.postgres.queues import QueueVerbs

_REPORT: Final = statement("report")
_REPORTS: Final = statement("reports")


class ProgressVerbs(QueueVerbs):
    """Report, and show what was reported."""

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        if not newest:
            return {}
        rows = [(*fence, progress.portion, progress.note) for fence, progress in newest.items()]
        columns = [list(column) for column in zip(*rows, strict=True)]
        known = set(self._server.query(_REPORT, (*columns, self._at)))
        return {fence: fence in known for fence in newest}

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = super().get(ids)
        running = [job.id for job in jobs if job is not None and job.state is State.RUNNING]
        if not running:
            return jobs
        rows = self._server.query(_REPORTS, (running,))
        told = {job_id: (delivery, Progress(*rest)) for job_id, delivery, *rest in rows}
        return [with_progress(job, *told[job.id]) if job is not None and job.id in told else job for job in jobs]
