"""The reference model of how jobs die: where they lie, for how long, and who is forgotten when too many do.

Forgetting is the store's to time: a dead letter may be gone from the end of its time on, and the oldest may be gone as
soon as more lie in a queue than it keeps. Which of those that died within one second is free.
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
from forebay_proof.model_claims import ClaimModel
from forebay_proof.model_gates import Item

_SECOND = 1_000_000
UNHELD: dict[str, Any] = {"owner": None, "claimed_at": None, "lease_until": None}


class GraveModel(ClaimModel):
    """Jobs, and what becomes of those that die."""

    def crowded(self) -> list[str]:
        """Queues in which more dead lie than they keep."""
        return [queue for queue in self.specs if self._excess(queue) > 0]

    def _forgotten(self, now: Instant, item: Item, pictures: Mapping[int, Job | None]) -> bool:
        """Whether a finished job may be gone without anybody's word; `pictures` show who is still there."""
        if item.kept_until and item.kept_until <= now:
            return True
        if item.job.state is not State.DEAD or self._excess(item.job.queue) <= 0:
            return False
        left = [i.job for i in self.jobs(State.DEAD, queue=item.job.queue) if pictures.get(i.job.id) is not None]
        return all((job.finished_at or 0) > (item.job.finished_at or 0) - _SECOND for job in left)

    def _excess(self, queue: str) -> int:
        rule = self.spec(queue).routing.dead
        most = None if rule is None else rule.most
        return 0 if most is None else len(self.jobs(State.DEAD, queue=queue)) - most

    def _die(self, item: Item, error: Failure, now: Instant) -> None:
        job = item.job
        grave = Stamper(self.spec(job.queue)).grave(now, lambda queue: Stamper(self.spec(queue))) or DeadLetterRule()
        self._change(
            replace(item, fresh=False, kept_until=grave.kept_until),
            state=State.DEAD,
            queue=grave.queue or job.queue,
            home=job.queue if grave.queue else None,
            finished_at=now,
            errors=errors_of(job, error, now),
            **UNHELD,
        )

    def _change(self, item: Item, **changes: Any) -> None:
        self.items[item.job.id] = replace(item, job=replace(item.job, **changes))


def errors_of(job: Job, error: Failure, now: Instant) -> tuple[Failure, ...]:
    return (*job.errors, replace(error, at=now, attempt=job.attempt))[-ERRORS_KEPT:]
