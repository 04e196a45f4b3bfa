"""The model of dead letters: in which queue they are kept, for how long, and which are dropped when there are too many.

The store chooses when: a dead letter may be gone from the end of its time on, and the oldest may be gone as soon as a
queue has more than it keeps. Which of those that died within one second goes is free.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from forebay.core.entries import DeadLetterRule
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import Failure
from forebay.core.stamp import Stamper
from forebay_proof.model.jobs import SECOND, Item, JobTable

UNHELD: dict[str, Any] = {"owner": None, "claimed_at": None, "lease_until": None, "progress": None}


class DeadLetterModel:
    """What becomes of jobs that fail for good or expire."""

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs

    def over_dead_limit(self) -> list[str]:
        """Queues that have more dead letters than they keep."""
        return [queue for queue in self._jobs.specs if self._excess(queue) > 0]

    def forgettable(self, now: Instant, item: Item, shown: Mapping[int, Job | None]) -> bool:
        """Whether a finished job may be gone by itself; `shown` has the jobs that are still there."""
        if item.kept_until and item.kept_until <= now:
            return True
        if item.job.state is not State.DEAD or self._excess(item.job.queue) <= 0:
            return False
        left = [i.job for i in self._jobs.in_state(State.DEAD, queue=item.job.queue) if shown.get(i.job.id) is not None]
        return all((job.finished_at or 0) > (item.job.finished_at or 0) - SECOND for job in left)

    def _excess(self, queue: str) -> int:
        rule = self._jobs.spec(queue).routing.dead
        most = None if rule is None else rule.limit
        return 0 if most is None else len(self._jobs.in_state(State.DEAD, queue=queue)) - most

    def dead_letter(self, item: Item, error: Failure, now: Instant) -> None:
        job = item.job
        rule = (
            Stamper(self._jobs.spec(job.queue)).dead_letter(now, lambda queue: Stamper(self._jobs.spec(queue)))
            or DeadLetterRule()
        )
        self._jobs.change(
            replace(item, fresh=False, kept_until=rule.kept_until),
            state=State.DEAD,
            queue=rule.queue or job.queue,
            home=job.queue if rule.queue else None,
            finished_at=now,
            errors=errors_of(job, error, now),
            **UNHELD,
        )


def errors_of(job: Job, error: Failure, now: Instant) -> tuple[Failure, ...]:
    return (*job.errors, replace(error, at=now, attempt=job.attempt))[-ERRORS_KEPT:]
