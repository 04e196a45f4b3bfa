"""The central decision of the state machine: from the outcome of a run to the verdict to write.

Attempts are counted at the claim, not at the failure: a worker that dies silently has still used one, so `attempt`
already includes the run that just ended.

When a worker fails, only the jobs that it had begun are charged. If it is unknown which had begun, the attempt is given
back and the job becomes a suspect, which runs in quarantine. There no other job can be the cause, so the second time in
a row the job is charged: a job that kills its process ends after one delivery more than it has attempts. If the worker
of a quarantine fails, its suspects are not charged either, a limited number of times in a row. A job with a single
attempt is the exception: it must never start twice, so it is charged if it may have begun.
"""

from typing import Final, assert_never

from forebay.core.instant import minutes, seconds
from forebay.core.job import Job
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import (
    ABANDONED,
    Abandoned,
    Ack,
    Cancel,
    DeadLetter,
    Displaced,
    Dropped,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Retry,
    Snoozed,
    Succeeded,
    Unaccounted,
    Unhandled,
    Verdict,
    Withdrawn,
)
from forebay.core.policy import Exponential, Routing

_HANDLED_ELSEWHERE: Final = Exponential(seconds(1), seconds(5))
_UNHANDLED: Final = Exponential(seconds(1), minutes(1))
"""The delay of a job that reached a worker without its handler; it grows with the uncharged deliveries."""


_MAX_SPARED: Final = ERRORS_KEPT - 1
"""How often in a row a suspect is not charged for the death of its worker, which it may have caused indirectly."""


def decide(job: Job, outcome: Outcome, routing: Routing, draw: float) -> Verdict:
    """The verdict on a run. `draw` is uniform in [0, 1)."""
    attempts_left = job.attempt < job.max_attempts
    match outcome:
        case Succeeded(result, keep_for):
            return Ack(result, keep_for)
        case Failed(error, None) if attempts_left:
            return Retry(routing.backoff.delay(job.attempt, draw), error)
        case Failed(error, after) if attempts_left and after is not None:
            return Retry(after, error)
        case Failed(error) | Dropped(error):
            return DeadLetter(error)
        case Unaccounted(cause) if not job.needs_quarantine and job.max_attempts > 1:
            return Release(0, _abandoned(job, cause), expired=True)
        case Displaced(cause) if _spared(job) < _MAX_SPARED and job.max_attempts > 1:
            return Release(0, _abandoned(job, cause))
        case Unaccounted(cause):
            return decide(job, Abandoned(cause, expired=True), routing, draw)
        case Displaced(cause):
            return decide(job, Abandoned(cause), routing, draw)
        case Abandoned(cause, expired) if attempts_left:
            return Retry(0, _abandoned(job, cause), keep_rank=True, expired=expired)
        case Abandoned(cause, expired):
            return DeadLetter(_abandoned(job, cause), expired)
        case Snoozed(after):
            return Release(after)
        case Interrupted(expired):
            return Release(expired=expired)
        case Unhandled(elsewhere, error):
            backoff = _HANDLED_ELSEWHERE if elsewhere else _UNHANDLED
            return Release(backoff.delay(job.delivery - job.attempt, draw), error)
        case Withdrawn(keep_for):
            return Cancel(keep_for)
        case _:
            assert_never(outcome)


def _spared(job: Job) -> int:
    """How often in a row this attempt was given back because the cause was unknown."""
    spared = 0
    for error in reversed(job.errors):
        if not error.abandoned or error.attempt < job.attempt:
            break
        spared += 1
    return spared


def _abandoned(job: Job, cause: str) -> Failure:
    """The failure of a lost worker, with the number of times in a row that the cause was the same."""
    before = 0
    for error in reversed(job.errors):
        if not error.abandoned or not error.message.startswith(cause):
            break
        before += 1
    return Failure(ABANDONED, f"{cause} ({before + 1} times)" if before else cause)
