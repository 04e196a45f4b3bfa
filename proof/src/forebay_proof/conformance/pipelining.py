"""Verdicts that ride on the next claim: as a settle, then a claim. A store without the verb makes two calls of it."""

from forebay.core.errors import BatchTooLarge
from forebay.core.instant import minutes
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import AtMost
from forebay.store.protocol import Pipelining, Want
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import QUEUE, Harness


def _both(h: Harness, settlements: list[Settlement], count: int = 10) -> tuple[list[Settled], list[Lease]]:
    wants = [Want(QUEUE, count)]
    if isinstance(h.store, Pipelining):
        return h.store.settle_and_claim(settlements, wants, "me", minutes(1))
    return h.store.settle(settlements), h.store.claim(wants, "me", minutes(1))


@case
def verdicts_are_settled_and_the_next_jobs_are_claimed(h: Harness) -> None:
    ids = h.enqueue(4)
    answers, first = _both(h, [], 2)
    assert answers == []
    answers, second = _both(h, [(lease, Ack()) for lease in first], 2)
    assert answers == [Settled.APPLIED] * 2
    assert [lease.job.id for lease in (*first, *second)] == ids
    assert (h.backlog().running, h.backlog().ready) == (2, 0)


@case
def a_retried_job_may_be_claimed_by_the_same_call(h: Harness) -> None:
    job_id = h.one(max_attempts=3)
    _, (lease,) = _both(h, [])
    answers, (again,) = _both(h, [(lease, Retry(0, Failure("Boom")))])
    assert answers == [Settled.APPLIED]
    assert (again.job.id, again.job.attempt, again.job.delivery) == (job_id, 2, 2)
    assert _both(h, [(lease, Ack())]) == ([Settled.STALE], [])


@case
def a_repeated_call_settles_nothing_twice(h: Harness) -> None:
    h.enqueue(3)
    _, leases = _both(h, [])
    for _ in range(2):
        assert _both(h, [(lease, Ack()) for lease in leases]) == ([Settled.APPLIED] * 3, [])
    h.nothing_left()


@case
def a_slot_that_a_verdict_frees_is_taken_by_the_same_call(h: Harness) -> None:
    h.spec(eligibility=AtMost(1) & AtMost(1, per="subject"))
    h.enqueue(4, subject="ada", max_attempts=2)
    _, leases = _both(h, [])
    for verdict in (Ack(), DeadLetter(Failure("Boom")), Release(), Ack()):
        assert len(leases) == 1
        answers, leases = _both(h, [(leases[0], verdict)])
        assert answers == [Settled.APPLIED]


@case
def both_calls_are_on_record_the_settle_first(h: Harness) -> None:
    h.enqueue(2)
    _, leases = _both(h, [], 1)
    first, following = h.store.ledger_extent()
    _both(h, [(lease, Ack()) for lease in leases], 1)
    records = [entry.record for entry in h.store.ledger(following - 1, 10)] if following > first else []
    assert [record.verb for record in records] == (["settle", "claim"] if h.store.ledger_rule().on else [])


@case
def a_call_with_too_many_verdicts_claims_nothing(h: Harness) -> None:
    h.enqueue(2)
    _, leases = _both(h, [], 1)
    with h.unchanged():
        refused(BatchTooLarge, lambda: _both(h, [(leases[0], Release())] * (MAX_BATCH + 1)))
