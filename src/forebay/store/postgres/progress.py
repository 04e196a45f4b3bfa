"""How far running jobs are: a row each in an unlogged table, so that a report touches neither runs nor the log."""

from collections.abc import Sequence
from typing import Final

from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Settled
from forebay.store.checks import checked_reports
from forebay.store.postgres.queries import statement
from forebay.store.postgres.queues import QueueVerbs
from forebay.store.protocol import ProgressReport

_REPORT: Final = statement("report")
_REPORTS: Final = statement("reports")


class ProgressVerbs(QueueVerbs):
    """Report, and show what was reported."""

    def report_progress(self, reports: Sequence[ProgressReport]) -> list[Settled]:
        newest = checked_reports(reports)
        if not newest:
            return []
        rows = [(*fence, progress.portion, progress.note) for fence, progress in newest.items()]
        columns = [list(column) for column in zip(*rows, strict=True)]
        known = set(self._server.query(_REPORT, (*columns, self._at)))
        return [Settled.APPLIED if fence in known else Settled.STALE for fence, _ in reports]

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = super().get(ids)
        running = [job.id for job in jobs if job is not None and job.state is State.RUNNING]
        if not running:
            return jobs
        rows = self._server.query(_REPORTS, (running,))
        told = {job_id: (delivery, Progress(*rest)) for job_id, delivery, *rest in rows}
        return [with_progress(job, *told[job.id]) if job is not None and job.id in told else job for job in jobs]
