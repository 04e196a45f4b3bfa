"""The state machine's one decision: what happened to a running job, and therefore what to write.

Everything else is mechanical. Lives are counted at the claim, not at the failure: a worker that dies without a word
has still used one up, so `attempt` already includes the run that just ended.
"""

from typing import Final, assert_never

from forebay.core.instant import minutes, seconds
from forebay.core.job import Job
from forebay.core.outcome import (
    LEASE_RAN_OUT,
    Abandoned,
    Ack,
    Cancel,
    DeadLetter,
    Dropped,
    Failed,
    Interrupted,
    Outcome,
    Release,
    Retry,
    Snoozed,
    Succeeded,
    Unhandled,
    Verdict,
    Withdrawn,
)
from forebay.core.policy import Exponential, Routing

_HANDLED_ELSEWHERE: Final = Exponential(seconds(1), seconds(5))
_UNHANDLED: Final = Exponential(seconds(1), minutes(1))
"""How long a job waits that came to a worker without its handler; it grows with the deliveries that cost no attempt."""


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
        case Abandoned() if lives_left:
            return Retry(0, LEASE_RAN_OUT, keep_rank=True)
        case Abandoned():
            return DeadLetter(LEASE_RAN_OUT)
        case Snoozed(after):
            return Release(after)
        case Interrupted():
            return Release()
        case Unhandled(elsewhere):
            backoff = _HANDLED_ELSEWHERE if elsewhere else _UNHANDLED
            return Release(backoff.delay(job.delivery - job.attempt, draw))
        case Withdrawn(keep_for):
            return Cancel(keep_for)
        case _:
            assert_never(outcome)
