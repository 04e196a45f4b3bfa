"""The state machine's one decision: what happened to a running job, and therefore what to write.

Everything else is mechanical. Attempts are counted at the claim, not at the failure: a worker that dies without a word
has still used one up, so `attempt` already includes the run that just ended.

A worker that fails charges only what it had begun. Where nobody knows what had begun, the rule errs towards the
innocent: the attempt is given back, and the job becomes a suspect that runs in quarantine. There nobody else can have
caused what happens, so the second time in a row it is charged: a killer ends after one delivery more than it has
attempts. Where the worker of a quarantine fails, the suspect in it is spared too, some times in a row. A job with one
attempt is the exception: it is never started twice, so it is charged for what may have begun.
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
"""How long a job waits that came to a worker without its handler; it grows with the deliveries that cost no attempt."""


_SPARED_MOST: Final = ERRORS_KEPT - 1
"""So often in a row a suspect is spared for the end of its worker: one that brings it about from afar ends too."""


def decide(job: Job, outcome: Outcome, routing: Routing, draw: float) -> Verdict:
    """`draw` is uniform in [0, 1) and comes from outside, as does everything else."""
    lives_left = job.attempt < job.max_attempts
    match outcome:
        case Succeeded(result, keep_for):
            return Ack(result, keep_for)
        case Failed(error, None) if lives_left:
            return Retry(routing.backoff.delay(job.attempt, draw), error)
        case Failed(error, after) if lives_left and after is not None:
            return Retry(after, error)
        case Failed(error) | Dropped(error):
            return DeadLetter(error)
        case Unaccounted(cause) if not job.needs_quarantine and job.max_attempts > 1:
            return Release(0, _abandoned(job, cause), expired=True)
        case Displaced(cause) if _spared(job) < _SPARED_MOST and job.max_attempts > 1:
            return Release(0, _abandoned(job, cause))
        case Unaccounted(cause):
            return decide(job, Abandoned(cause, expired=True), routing, draw)
        case Displaced(cause):
            return decide(job, Abandoned(cause), routing, draw)
        case Abandoned(cause, expired) if lives_left:
            return Retry(0, _abandoned(job, cause), keep_rank=True, expired=expired)
        case Abandoned(cause, expired):
            return DeadLetter(_abandoned(job, cause), expired)
        case Snoozed(after):
            return Release(after)
        case Interrupted(expired):
            return Release(expired=expired)
        case Unhandled(elsewhere):
            backoff = _HANDLED_ELSEWHERE if elsewhere else _UNHANDLED
            return Release(backoff.delay(job.delivery - job.attempt, draw))
        case Withdrawn(keep_for):
            return Cancel(keep_for)
        case _:
            assert_never(outcome)


def _spared(job: Job) -> int:
    """How often in a row this attempt was given back because nobody knew whether the job was to blame."""
    spared = 0
    for error in reversed(job.errors):
        if not error.abandoned or error.attempt < job.attempt:
            break
        spared += 1
    return spared


def _abandoned(job: Job, cause: str) -> Failure:
    """What is said of a holder that failed, and how often in a row it was the same."""
    before = 0
    for error in reversed(job.errors):
        if not error.abandoned or not error.message.startswith(cause):
            break
        before += 1
    return Failure(ABANDONED, f"{cause} ({before + 1} times)" if before else cause)
