"""How far running jobs are: a row each in a table of its own, so that a report does not rewrite a job."""

from collections.abc import Mapping, Sequence
from typing import Final

from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.store.protocol import Promotion
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.queues import QueueVerbs
from forebay.store.sqlite.row import id_list
from forebay.store.sqlite.turn import Turn

_REPORT: Final = statement("report")
_REPORTS: Final = statement("reports")
_DROP: Final = statement("drop_reports")


class ProgressVerbs(QueueVerbs):
    """Report, and show what was reported."""

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        known = self._write(lambda turn: _report(turn, newest)) if newest else set()
        return {fence: fence in known for fence in newest}

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = super().get(ids)
        running = [job.id for job in jobs if job is not None and job.state is State.RUNNING]
        if not running:
            return jobs
        with self._read() as (reader, _):
            told = {
                job_id: (delivery, Progress(*rest))
                for job_id, delivery, *rest in reader.execute(_REPORTS, (id_list(running),))
            }
        return [with_progress(job, *told[job.id]) if job is not None and job.id in told else job for job in jobs]

    def promote(self, limit: int) -> Promotion:
        promotion = super().promote(limit)
        with self._read() as (reader, _):
            (reported,) = reader.execute("SELECT EXISTS (SELECT 1 FROM progress)").fetchone()
        if reported:
            self._write(lambda turn: turn.connection.execute(_DROP))
        return promotion


def _report(turn: Turn, newest: Mapping[Fence, Progress]) -> set[Fence]:
    """The fences that are current."""
    return {
        fence
        for fence, progress in newest.items()
        if turn.connection.execute(_REPORT, (*fence, progress.portion, progress.note, turn.now)).fetchall()
    }
