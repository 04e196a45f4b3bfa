"""How far running jobs are: a field each in one hash, dropped with the delivery."""

from collections.abc import Sequence
from typing import Any

import msgspec

from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Settled
from forebay.store.checks import checked_reports
from forebay.store.protocol import ProgressReport
from forebay.store.redis.queues import QueueVerbs
from forebay.store.redis.row import packed, sid, sids


class ProgressVerbs(QueueVerbs):
    """Report, and show what was reported."""

    def report_progress(self, reports: Sequence[ProgressReport]) -> list[Settled]:
        newest = {fence: told for fence, told in checked_reports(reports).items() if sids(fence[:1])}
        rows = [(sid(job_id), delivery, told.portion, told.note) for (job_id, delivery), told in newest.items()]
        answers = self._call("report", packed(rows)) if rows else []
        known = {fence for fence, current in zip(newest, answers, strict=True) if current}
        return [Settled.APPLIED if fence in known else Settled.STALE for fence, _ in reports]

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = super().get(ids)
        running = [job.id for job in jobs if job is not None and job.state is State.RUNNING]
        if not running:
            return jobs
        found = self._server.command("HMGET", self._key("progress"), *sids(running))
        told = {job_id: msgspec.msgpack.decode(each) for job_id, each in zip(running, found, strict=True) if each}
        return [_shown(job, told[job.id]) if job is not None and job.id in told else job for job in jobs]


def _shown(job: Job, told: Sequence[Any]) -> Job | None:
    delivery, portion, note, at = told
    return with_progress(job, delivery, Progress(portion, note, int(at)))
