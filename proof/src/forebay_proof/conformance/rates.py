"""Rates: so many may start in a length of time, and a burst at once. Only a claim that hands a job out spends them."""

from datetime import timedelta

from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.outcome import Abandoned
from forebay.core.policy import All, AtMost, InOrder, Priority, Rate
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import Harness
from forebay_proof.conformance.racing import RacingCall, answers, race


def one_a_moment(h: Harness, burst: int = 1, **how: str) -> Rate:
    return Rate(1, h.short_delta, burst=burst, **how)  # type: ignore[arg-type]


@case
def first_the_burst_starts_and_then_one_by_one(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=3))
    ids = h.enqueue(6)
    assert [lease.job.id for lease in h.claim(6)] == ids[:3]
    assert h.claim(6) == []
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(6)] == ids[3:4]
    assert h.claim(6) == []
    h.advance(2 * h.short)
    assert [lease.job.id for lease in h.claim(6)] == ids[4:]


@case
def an_acknowledgement_gives_nothing_back(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    first, second = h.enqueue(2)
    assert h.drain() == [first]
    assert h.claim() == []
    h.advance(h.short)
    assert h.drain() == [second]
    h.nothing_left()


@case
def the_starts_of_an_idle_time_are_not_saved_up_beyond_the_burst(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=2))
    h.enqueue(8)
    for _ in range(5):
        h.advance(h.short)
        h.store.promote(10)
    backlog = h.backlog()
    assert (backlog.ready, backlog.waiting) == (8, 0)
    assert len(h.claim(8)) == 2


@case
def starts_are_not_saved_up_for_jobs_that_fall_due_either(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=2))
    h.enqueue(3, delay=h.short)
    h.advance(2 * h.short)
    h.store.promote(10)
    backlog = h.backlog()
    assert (backlog.ready, backlog.waiting) == (3, 0)
    assert len(h.claim(3)) == 2


@case
def a_claim_spends_only_what_it_hands_out(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=5))
    ids = h.enqueue(5)
    assert h.take().job.id == ids[0]
    backlog = h.backlog()
    assert (backlog.running, backlog.ready, backlog.waiting) == (1, 4, 0)
    assert [lease.job.id for lease in h.claim(2)] == ids[1:3]


@case
def at_a_rate_the_first_in_rank_starts_first(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h), selection=Priority())
    low = h.one()
    high = h.one(priority=9)
    assert h.take().job.id == high
    h.advance(h.short)
    assert h.take().job.id == low


@case
def a_rate_per_tenant_does_not_hold_the_others(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, per="tenant"))
    ada, bob, free = h.enqueue(2, tenant="ada"), h.enqueue(2, tenant="bob"), h.one()
    assert sorted(lease.job.id for lease in h.claim(9)) == sorted([ada[0], bob[0], free])
    assert h.claim(9) == []
    h.advance(h.short)
    assert sorted(lease.job.id for lease in h.claim(9)) == sorted([ada[1], bob[1]])


@case
def a_retry_costs_a_start_again(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    first = h.one()
    h.fail(h.take())
    assert h.claim() == []
    h.advance(h.short)
    lease = h.take()
    assert (lease.job.id, lease.job.attempt) == (first, 2)


@case
def promote_returns_when_a_rate_opens(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    h.enqueue(2)
    started = h.now()
    h.take()
    next_due = h.store.promote(10).next_due
    assert next_due is not None
    assert started + h.short <= next_due <= h.now() + h.short
    h.advance(2 * h.short)
    assert h.store.promote(10).next_due is None
    h.take()


@case
def wait_is_woken_when_a_rate_opens(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    h.enqueue(2)
    h.take()
    task = RacingCall(lambda: h.store.wait(["q"], timedelta(minutes=1)))
    h.until_asleep(1)
    assert task.running
    h.advance(2 * h.short)
    assert task.result() is True
    h.take()


@case
def wait_is_woken_by_a_job_whose_rate_is_open(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    task = RacingCall(lambda: h.store.wait(["q"], timedelta(minutes=1)))
    h.until_asleep(1)
    h.one()
    assert task.result() is True
    h.take()


@case
def a_rate_that_holds_nothing_makes_nothing_due(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=2))
    h.one()
    h.take()
    h.store.set_gate("rate/q", 1)
    assert h.store.promote(10).next_due is None


@case
def a_rate_that_a_cheaper_head_passes_now_makes_nothing_due(h: Harness) -> None:
    h.spec(eligibility=Rate(3, 3 * h.short_delta, burst=3, per="tenant"))
    h.one(tenant="a")
    cheap = h.take()
    h.one(tenant="a", cost=3)
    assert h.claim() == []
    h.advance(h.short // 2)
    assert h.store.promote(10).next_due is not None
    h.conclude(cheap, Abandoned())
    assert h.store.promote(10).next_due is None
    assert h.take().job.id == cheap.job.id


@case
def an_operator_closes_a_rate_and_opens_it_again(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=2))
    h.store.set_gate("rate/q", 0)
    ids = h.enqueue(3)
    h.advance(5 * h.short)
    assert h.claim(3) == []
    assert h.store.promote(10).next_due is None
    h.store.set_gate("rate/q", None)
    assert [lease.job.id for lease in h.claim(3)] == ids[:2]


@case
def a_paused_queue_takes_nothing_of_its_rate(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    first = h.one()
    h.store.pause("q")
    assert h.claim() == []
    assert h.state(first) is State.READY
    h.store.resume("q")
    assert h.take().job.id == first


@case
def new_limits_hold_at_once_and_spent_starts_stay_spent(h: Harness) -> None:
    h.spec(eligibility=Rate(1, 5 * h.short_delta, burst=1))
    h.enqueue(4)
    h.take()
    h.spec(eligibility=one_a_moment(h))
    h.advance(h.short)
    assert h.claim(4) == [], "the start of before is paid until its time"
    h.advance(4 * h.short)
    assert len(h.claim(4)) == 1
    h.advance(h.short)
    assert len(h.claim(4)) == 1


@case
def a_larger_burst_holds_at_once(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=Rate(1, 100 * h.short_delta, burst=1, per=per))  # type: ignore[arg-type]
        h.enqueue(6, queue=queue, tenant="t")
        assert (len(h.claim(6, queue)), h.claim(6, queue)) == (1, [])
        h.spec(queue, eligibility=Rate(1, 100 * h.short_delta, burst=3, per=per))  # type: ignore[arg-type]
        assert (len(h.claim(6, queue)), h.claim(6, queue)) == (2, [])


@case
def a_rate_that_was_removed_holds_nothing(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=Rate(1, 100 * h.short_delta, burst=1, per=per))  # type: ignore[arg-type]
        h.enqueue(4, queue=queue, tenant="t")
        assert (len(h.claim(4, queue)), h.claim(4, queue)) == (1, [])
        h.spec(queue)
        assert len(h.claim(4, queue)) == 3


@case
def promote_returns_when_the_rate_of_a_lane_opens(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, per="tenant"))
    h.enqueue(2, tenant="a")
    started = h.now()
    assert (len(h.claim(9)), h.claim(9)) == (1, [])
    next_due = h.store.promote(10).next_due
    assert next_due is not None
    assert started + h.short <= next_due <= h.now() + h.short
    assert h.store.wait(["q"], timedelta(0)) is False
    task = RacingCall(lambda: h.store.wait(["q"], timedelta(minutes=1)))
    h.until_asleep(1)
    h.advance(2 * h.short)
    assert task.result() is True
    h.take()
    assert h.store.promote(10).next_due is None


@case
def a_job_that_expires_at_a_rate_dies_there(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    h.one()
    h.take()
    stale, fresh = h.one(expires_at=h.now() + h.short // 2), h.one()
    h.advance(2 * h.short)
    assert h.take().job.id == fresh
    assert h.state(stale) is State.DEAD


@case
def no_start_is_spent_on_a_job_that_has_expired(h: Harness) -> None:
    for number, rate in enumerate((one_a_moment(h), one_a_moment(h, per="tenant"))):
        queue = f"q{number}"
        h.spec(queue, eligibility=rate)
        stale = h.enqueue(3, queue=queue, tenant="t", expires_at=h.now() + h.short // 4)
        fresh = h.one(queue=queue, tenant="t")
        h.advance(h.short // 2)
        assert h.take(queue).job.id == fresh
        assert {h.state(job_id) for job_id in stale} == {State.DEAD}


@case
def a_claim_that_finds_the_ready_expired_starts_others(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, per="tenant"))
    stale, paced = h.one(expires_at=h.now() + h.short // 4), h.one(tenant="ada")
    h.advance(h.short // 2)
    assert h.take().job.id == paced
    assert h.state(stale) is State.DEAD


@case
def a_cancelled_job_leaves_its_start_to_the_next(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h))
    h.enqueue(1)
    h.take()
    first, second = h.enqueue(2)
    h.store.cancel([first])
    h.advance(h.short)
    assert h.take().job.id == second
    h.advance(h.short)
    assert h.claim() == []


@case
def a_cap_beside_a_rate_holds_too(h: Harness) -> None:
    h.spec(eligibility=All((AtMost(1), one_a_moment(h, burst=3))))
    first, second, third = h.enqueue(3)
    lease = h.take()
    assert lease.job.id == first
    assert h.claim(3) == []
    h.ack(lease)
    lease = h.take()
    assert lease.job.id == second
    h.ack(lease)
    assert h.drain() == [third]
    h.nothing_left()


@case
def two_rates_hold_together(h: Harness) -> None:
    h.spec(eligibility=All((one_a_moment(h, burst=2, per="tenant"), one_a_moment(h, burst=3))))
    ada = h.enqueue(4, tenant="ada")
    bob = h.enqueue(4, tenant="bob")
    assert sorted(lease.job.id for lease in h.claim(8)) == sorted([*ada[:2], bob[0]])
    h.advance(h.short)
    assert len(h.claim(8)) == 1
    assert h.claim(8) == []


@case
def a_line_beside_a_rate_keeps_its_order(h: Harness) -> None:
    h.spec(eligibility=All((InOrder(per="subject"), one_a_moment(h, burst=9))))
    ids = h.enqueue(3, subject="s")
    assert h.drain() == ids
    h.nothing_left()


@case
def a_costly_job_takes_its_cost_of_a_rate(h: Harness) -> None:
    h.spec(eligibility=one_a_moment(h, burst=3))
    costly, next_costly, small = h.one(cost=3), h.one(cost=2), h.one()
    assert [lease.job.id for lease in h.claim(3)] == [costly]
    h.advance(h.short)
    assert h.claim(3) == []
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(3)] == [next_costly]
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(3)] == [small]
    refused(Invalid, lambda: h.one(cost=4))


@case
def a_cap_that_queues_share_holds_them_together(h: Harness) -> None:
    for queue in ("mail", "media"):
        h.spec(queue, eligibility=AtMost(2, shared="gpu"))
    h.enqueue(2, queue="mail")
    waiting = h.one(queue="media")
    leases = h.claim(2, "mail")
    assert (len(leases), h.claim(1, "media")) == (2, [])
    h.ack(leases[0])
    assert h.take("media").job.id == waiting


@case
def a_rate_that_queues_share_goes_to_the_next_claim(h: Harness) -> None:
    for queue in ("mail", "media"):
        h.spec(queue, eligibility=one_a_moment(h, shared="api"))
    first = h.enqueue(2, queue="mail")
    other = h.one(queue="media")
    assert h.take("media").job.id == other
    assert h.claim(2, "mail") == []
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(2, "mail")] == first[:1]


def _costly_beside_cheap(h: Harness, rate: Rate) -> None:
    """The other queue may claim nothing for long, and its job is not what this one waits for."""
    for queue in ("mail", "media"):
        h.spec(queue, eligibility=rate)
    h.enqueue(3, queue="mail", tenant="t")
    assert len(h.claim(2, "mail")) == 2
    costly = h.one(queue="media", tenant="t", cost=3)
    assert h.claim(1, "media") == []
    assert not h.store.wait(["media"], timedelta(0))
    h.advance(h.short)
    assert h.claim(1, "media") == []
    h.advance(h.short)
    h.store.promote(9)
    assert h.store.wait(["media"], timedelta(0))
    assert h.take("media").job.id == costly


@case
def a_shared_rate_opens_for_a_costly_job_beside_a_queue_that_it_admits_already(h: Harness) -> None:
    _costly_beside_cheap(h, one_a_moment(h, burst=3, shared="api"))


@case
def a_shared_rate_per_tenant_opens_for_a_costly_job_beside_one_that_it_admits(h: Harness) -> None:
    _costly_beside_cheap(h, one_a_moment(h, burst=3, shared="api", per="tenant"))


@case
def racing_claims_start_no_more_than_the_burst(h: Harness) -> None:
    h.spec(eligibility=Rate(1, timedelta(hours=1), burst=7))
    h.enqueue(20)
    came = [lease for leases in answers(race(8, lambda number: h.claim(3, owner=f"w{number}"))) for lease in leases]
    assert len({lease.job.id for lease in came}) == len(came) == 7
