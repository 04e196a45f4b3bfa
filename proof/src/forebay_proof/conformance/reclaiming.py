"""Jobs that are taken back from a worker that died, drained or was cut off: first again, at their old rank."""

from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import ABANDONED, Abandoned, Failure, Interrupted, Outcome, Release, Retry, Verdict
from forebay.core.policy import Aging, AtMost, Fair, InOrder, Priority, Rate
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, Harness

ordered = case_if(Need.EXACT_ORDER)

LOST = Failure(ABANDONED, "the lease of its worker ran out")
TAKEN_BACK: list[Outcome] = [Abandoned(), Interrupted()]
"""Charged, as what had begun, and uncharged, as what was only held."""

KEPT: list[Verdict] = [Retry(0, LOST, keep_rank=True), Release()]


def _take_back(h: Harness, lease: Lease, outcome: Outcome) -> None:
    assert h.conclude(lease, outcome) is Settled.APPLIED


@ordered
def a_reclaimed_job_goes_before_the_backlog(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        victim, *backlog = h.enqueue(4)
        lease = h.take()
        h.advance(h.short)
        late = h.one()
        _take_back(h, lease, outcome)
        assert h.drain() == [victim, *backlog, late], outcome


@ordered
def a_reaped_job_goes_before_the_backlog(h: Harness) -> None:
    victim, *backlog = h.enqueue(4)
    h.lapse(h.take(lease_for=h.short_delta))
    late = h.one()
    assert [lease.job.id for lease in h.reap()] == [victim]
    assert h.drain() == [victim, *backlog, late]


@ordered
def reclaimed_jobs_keep_their_order_among_each_other(h: Harness) -> None:
    ids = h.enqueue(6)
    leases = h.claim(4)
    h.advance(h.short)
    late = h.one()
    verdicts: list[Verdict] = [Release(), KEPT[0], KEPT[0], Release()]
    h.store.settle(list(zip(reversed(leases), verdicts, strict=True)))
    assert h.drain(batch=3) == [*ids, late]


@ordered
def a_job_that_is_reclaimed_again_and_again_keeps_its_rank(h: Harness) -> None:
    victim, *backlog = h.enqueue(3, max_attempts=9)
    for number in range(4):
        h.advance(h.short)
        lease = h.take()
        assert lease.job.id == victim
        _take_back(h, lease, TAKEN_BACK[number % 2])
    assert h.get(victim).attempt == 2
    assert h.drain() == [victim, *backlog]


@ordered
def a_reclaimed_job_is_found_by_claimers_that_are_past_it(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        victim = h.one()
        held = h.take()
        backlog = h.enqueue(3)
        h.advance(2 * h.short)
        backlog += h.enqueue(9)
        for job_id in backlog[:6]:
            lease = h.take()
            assert lease.job.id == job_id
            h.ack(lease)
        _take_back(h, held, outcome)
        assert h.drain() == [victim, *backlog[6:]], outcome


@ordered
def a_verdict_that_keeps_the_rank_keeps_it_over_a_delay(h: Harness) -> None:
    victim, *backlog = h.enqueue(3)
    assert h.settle(h.take(), Retry(h.short, ERROR, keep_rank=True)) is Settled.APPLIED
    assert h.state(victim) is State.WAITING
    h.advance(h.short + 1)
    late = h.one()
    assert h.drain() == [victim, *backlog, late]


@ordered
def a_first_job_is_first_again_when_it_is_reclaimed(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        backlog = h.enqueue(2)
        due = h.one(delay=h.short)
        h.advance(h.short + 1)
        lease = h.take()
        assert lease.job.id == due
        _take_back(h, lease, outcome)
        assert h.drain() == [due, *backlog], outcome


@ordered
def a_retry_that_is_reclaimed_has_the_rank_of_the_retry(h: Harness) -> None:
    retried, *backlog = h.enqueue(3)
    h.advance(h.short)
    h.fail(h.take())
    leases = h.claim(3)
    assert [lease.job.id for lease in leases] == [*backlog, retried]
    h.store.settle(list(zip(leases, (KEPT[1], KEPT[1], KEPT[0]), strict=True)))
    assert h.drain() == [*backlog, retried]


@ordered
def with_priorities_a_reclaimed_job_is_the_first_of_its_priority(h: Harness) -> None:
    h.spec(selection=Priority())
    victim, *equals = h.enqueue(3, priority=1)
    lease = h.take()
    h.advance(h.short)
    low, high = h.one(priority=0), h.one(priority=2)
    _take_back(h, lease, TAKEN_BACK[0])
    assert h.drain() == [high, victim, *equals, low]


@ordered
def with_aging_a_reclaimed_job_is_as_old_as_it_was(h: Harness) -> None:
    h.spec(selection=Aging(step=h.short_delta))
    victim, other = h.enqueue(2, priority=1)
    lease = h.take()
    h.advance(2 * h.short)
    late = h.one(priority=2)
    _take_back(h, lease, TAKEN_BACK[0])
    assert h.drain() == [victim, other, late]


@ordered
def a_reclaimed_job_is_the_first_of_its_class_and_takes_its_turn(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        h.spec(share=Fair())
        victim, *rest = h.enqueue(4, tenant="a")
        lease = h.take()
        h.advance(h.short)
        others = h.enqueue(4, tenant="b")
        _take_back(h, lease, outcome)
        order = h.drain()
        assert [job_id for job_id in order if job_id not in others] == [victim, *rest], outcome
        assert [job_id for job_id in order if job_id in others] == others
        assert {order[0] in others, order[1] in others} == {True, False}, f"the classes do not take turns: {order}"


@case
def the_head_of_a_line_that_is_reclaimed_is_the_head_again(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        h.spec(eligibility=InOrder())
        line = h.enqueue(3, subject="s")
        lease = h.take()
        h.advance(h.short)
        assert h.claim(9) == []
        _take_back(h, lease, outcome)
        held = h.claim(9)
        assert [each.job.id for each in held] == line[:1], outcome
        h.ack(held[0])
        assert h.drain() == line[1:]


@ordered
def a_slot_of_a_cap_goes_to_the_reclaimed_job(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        h.spec(eligibility=AtMost(2))
        first, victim, *held = h.enqueue(5)
        leases = h.claim(5)
        assert [lease.job.id for lease in leases] == [first, victim]
        h.advance(h.short)
        _take_back(h, leases[1], outcome)
        again = h.claim(5)
        assert [lease.job.id for lease in again] == [victim], outcome
        h.ack(leases[0])
        h.ack(again[0])
        assert h.drain() == held
        h.nothing_left()


@case
def the_next_start_of_a_rate_goes_to_the_reclaimed_job(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        h.spec(eligibility=Rate(1, h.short_delta))
        victim, *behind = h.enqueue(3)
        lease = h.take()
        _take_back(h, lease, outcome)
        assert h.claim(3) == [], "a start that was paid for is not given back"
        for job_id in (victim, *behind):
            h.advance(h.short)
            held = h.take()
            assert held.job.id == job_id, outcome
            h.ack(held)
        h.advance(h.short)


@case_if(Need.DURABLE)
def a_reopening_keeps_the_rank_of_reclaimed_jobs(h: Harness) -> None:
    ids = h.enqueue(4)
    leases = h.claim(2)
    h.advance(h.short)
    late = h.one()
    h.store.settle(list(zip(leases, KEPT, strict=True)))
    h.reopen()
    assert h.drain() == [*ids, late]


@ordered
def in_a_fifo_a_reclaimed_job_passes_older_ones_that_were_never_claimed(h: Harness) -> None:
    for outcome in TAKEN_BACK:
        older = h.enqueue(3)
        passed = h.claim(3)
        h.advance(1_000)
        victim = h.one()
        lease = h.take()
        assert lease.job.id == victim
        for each in passed:
            h.fail(each, after=h.short)
        _take_back(h, lease, outcome)
        h.advance(h.short + 1)
        late = h.one()
        assert h.drain() == [victim, *older, late], outcome
