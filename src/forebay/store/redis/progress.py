"""How far running jobs are: a field each in one hash, dropped with the delivery."""

from collections.abc import Sequence
from typing import Any

import msgspec

from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.store.redis.queues import QueueVerbs
from forebay.store.redis.row import packed, sid, sids


class ProgressVerbs(QueueVerbs):
    """Report, and show what was reported."""

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        known = [fence for fence in newest if sids(fence[:1])]
        rows = [(sid(job_id), delivery, *_shape(newest[job_id, delivery])) for job_id, delivery in known]
        answers = self._call("report", packed(rows)) if rows else []
        return dict.fromkeys(newest, False) | {fence: bool(told) for fence, told in zip(known, answers, strict=True)}

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = super().get(ids)
        running = [job.id for job in jobs if job is not None and job.state is State.RUNNING]
        if not running:
            return jobs
        found = self._server.command("HMGET", self._key("progress"), *sids(running))
        told = {job_id: msgspec.msgpack.decode(each) for job_id, each in zip(running, found, strict=True) if each}
        return [_shown(job, told[job.id]) if job is not None and job.id in told else job for job in jobs]


def _shape(progress: Progress) -> tuple[float, str]:
    return progress.portion, progress.note


def _shown(job: Job, told: Sequence[Any]) -> Job | None:
    delivery, portion, note, at = told
    return with_progress(job, delivery, Progress(portion, note, int(at)))
