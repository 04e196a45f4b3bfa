"""Time: nothing is handed out early, nothing after its expiry, and a waiter is woken when there is work."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from forebay.core.errors import Closed
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.ledger import Change
from forebay.core.outcome import EXPIRED
from forebay.core.policy import AtMost, Bounded, KeepFor, Until
from forebay.store.protocol import CancelAnswer
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import SECOND, Harness
from forebay_proof.conformance.racing import RacingCall

_AT_ONCE = timedelta(0)
_HOUR = timedelta(hours=1)


@case
def a_delayed_job_is_not_handed_out_early(h: Harness) -> None:
    job_id = h.one(delay=2 * h.short)
    assert h.state(job_id) is State.WAITING
    h.advance(h.short)
    assert h.claim() == []
    h.advance(h.short)
    lease = h.take()
    assert lease.job.id == job_id
    assert lease.job.claimed_at is not None
    assert lease.job.claimed_at >= lease.job.due_at


@case
def a_job_with_a_run_time_is_not_handed_out_early(h: Harness) -> None:
    run_at = h.now() + 2 * h.short
    job_id = h.one(run_at=run_at)
    h.advance(h.short)
    assert h.claim() == []
    h.advance(h.short)
    lease = h.take()
    assert (lease.job.id, lease.job.due_at) == (job_id, run_at)


@case
def a_run_time_in_the_past_is_now(h: Harness) -> None:
    start = h.now()
    job_id = h.one(run_at=start - 3_600 * SECOND)
    assert h.take().job.id == job_id
    assert h.get(job_id).due_at >= start


@case
def jobs_fall_due_one_by_one(h: Harness) -> None:
    ids = [h.one(delay=number * h.short) for number in (3, 1, 2)]
    came = []
    for _ in range(3):
        h.advance(h.short)
        came += [lease.job.id for lease in h.claim(3)]
    assert came == [ids[1], ids[2], ids[0]]


@case
def no_claim_is_ever_early(h: Harness) -> None:
    ids = [h.one(delay=number * h.short // 5) for number in range(10)]
    leases: list[Lease] = []
    while len(leases) < len(ids):
        leases += h.claim(10)
        h.advance(h.short // 7)
    assert all(lease.job.claimed_at is not None and lease.job.claimed_at >= lease.job.due_at for lease in leases)
    assert sorted(lease.job.id for lease in leases) == ids


@case
def a_job_that_will_be_first_is_not_handed_out_early_either(h: Harness) -> None:
    scheduled = h.one(delay=2 * h.short)
    retried, *backlog = h.enqueue(3)
    h.fail(h.take(), after=2 * h.short)
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(5)] == backlog
    h.advance(h.short)
    leases = h.claim(5)
    assert sorted(lease.job.id for lease in leases) == sorted([scheduled, retried])
    assert all(lease.job.claimed_at is not None and lease.job.claimed_at >= lease.job.due_at for lease in leases)


@case
def a_retry_waits_for_its_time(h: Harness) -> None:
    job_id = h.one()
    h.fail(h.take(), after=2 * h.short)
    h.advance(h.short)
    assert h.claim() == []
    h.advance(h.short)
    assert h.take().job.id == job_id


@case
def a_release_for_later_waits_for_its_time(h: Harness) -> None:
    job_id = h.one()
    h.release(h.take(), after=2 * h.short)
    h.advance(h.short)
    assert h.claim() == []
    h.advance(h.short)
    assert h.take().job.id == job_id


@case
def promote_returns_how_many_became_ready_and_when_the_next_is_due(h: Harness) -> None:
    first, second = h.one(delay=h.short), h.one(delay=4 * h.short)
    promotion = h.store.promote(10)
    assert (promotion.ready, promotion.next_due) == (0, h.get(first).due_at)
    h.advance(h.short)
    promotion = h.store.promote(10)
    assert (promotion.ready, promotion.next_due) == (1, h.get(second).due_at)
    assert h.get(first).state is State.READY
    assert h.get(second).state is State.WAITING


@case
def promote_with_nothing_to_do_returns_zero(h: Harness) -> None:
    h.one()
    promotion = h.store.promote(10)
    assert (promotion.ready, promotion.next_due) == (0, None)


@case
def promote_is_bounded(h: Harness) -> None:
    h.enqueue(5, delay=h.short)
    h.advance(h.short)
    assert [h.store.promote(2).ready for _ in range(4)] == [2, 2, 1, 0]


@case
def claim_needs_no_promote(h: Harness) -> None:
    ids = h.enqueue(3, delay=h.short)
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(3)] == ids


@case
def a_promotion_moves_no_more_than_its_limit(h: Harness) -> None:
    late = h.enqueue(5, expires_at=h.now() + h.short, delay=2 * h.short)
    due = h.enqueue(5, delay=h.short)
    h.advance(h.short + SECOND // 50)
    for number in range(1, 6):
        assert h.store.promote(1).ready == 1
        assert [job and job.state for job in h.store.get(due)].count(State.READY) == number
        assert [job and job.state for job in h.store.get(late)].count(State.DEAD) == number
    assert h.store.promote(1).ready == 0
    assert [lease.job.id for lease in h.claim(10)] == due


@case_if(Need.DURABLE)
def a_promotion_drops_no_more_than_its_limit(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta))
    h.enqueue(5)
    h.drain(batch=5)
    h.advance(h.short + SECOND // 50)
    for number in range(1, 6):
        h.store.promote(1)
        ranges = [job_range for entry in h.store.ledger(-1, 100) for job_range in entry.record.ranges]
        assert sum(job_range.n for job_range in ranges if job_range.change == Change.PURGED) == number


@case
def an_expired_job_goes_to_the_dead_letters_unclaimed(h: Harness) -> None:
    job_id = h.one(expires_at=h.now() + h.short)
    h.advance(h.short + SECOND)
    assert h.claim() == []
    job = h.get(job_id)
    assert (job.state, job.attempt, job.delivery) == (State.DEAD, 0, 0)
    assert [error.kind for error in job.errors] == [EXPIRED]
    assert job.finished_at is not None
    h.nothing_left()


@case
def an_expired_job_is_not_handed_out_a_moment_later(h: Harness) -> None:
    h.spec(eligibility=AtMost(2), capacity=Bounded(3))
    expired = h.one(expires_at=h.now() + h.short // 4)
    good = h.one()
    h.store.promote(10)
    h.advance(h.short // 2)
    assert [lease.job.id for lease in h.claim(1)] == [good]
    backlog = h.backlog()
    assert (backlog.dead, backlog.running, backlog.ready, backlog.waiting) == (1, 1, 0, 0)
    assert h.state(expired) is State.DEAD
    h.enqueue(2)
    assert len(h.claim(2)) == 1


@case
def a_job_is_not_handed_out_a_microsecond_after_it_expired(h: Harness) -> None:
    # Behind a full hundredth of a second: a store that tidies up by such a grain has not met the job yet.
    expires_at = (h.now() + h.short) // 10_000 * 10_000 + 1
    late, good = h.enqueue(2, expires_at=expires_at), h.one()
    h.advance(expires_at + 1 - h.now())
    assert [lease.job.id for lease in h.claim(3)] == [good]
    assert [h.state(job_id) for job_id in late] == [State.DEAD] * 2
    backlog = h.backlog()
    assert (backlog.dead, backlog.running, backlog.ready, backlog.waiting) == (2, 1, 0, 0)


@case
def a_job_that_expires_while_it_waits_dies_without_a_claim(h: Harness) -> None:
    job_id = h.one(delay=3_600 * SECOND, expires_at=h.now() + h.short)
    h.advance(h.short + SECOND)
    assert h.state(job_id) is State.DEAD
    h.nothing_left()


@case
def a_job_that_expires_at_a_closed_gate_dies_there(h: Harness) -> None:
    h.spec(eligibility=Until("go"))
    job_id = h.one(expires_at=h.now() + h.short)
    h.advance(h.short + SECOND)
    assert h.state(job_id) is State.DEAD
    h.store.set_gate("until/go", 10)
    h.nothing_left()


@case
def a_draft_that_comes_too_late_is_never_handed_out(h: Harness) -> None:
    job_id = h.one(expires_at=h.now() - 1)
    assert h.claim() == []
    h.advance(SECOND)
    assert h.state(job_id) is State.DEAD


@case
def a_job_claimed_in_time_may_end_after_its_expiry(h: Harness) -> None:
    h.one(expires_at=h.now() + h.short)
    lease = h.take()
    h.advance(2 * h.short + SECOND)
    h.store.promote(10)
    assert len(h.store.extend([lease], _HOUR)) == 1
    assert h.ack(lease) is Settled.APPLIED
    h.nothing_left()


@case
def a_retry_after_the_expiry_is_not_handed_out(h: Harness) -> None:
    job_id = h.one(expires_at=h.now() + h.short)
    lease = h.take()
    h.advance(h.short + 1)
    assert h.fail(lease) is Settled.APPLIED
    assert h.claim() == []
    h.advance(SECOND)
    assert h.state(job_id) is State.DEAD
    assert [error.kind for error in h.get(job_id).errors] == ["Boom", EXPIRED]


@case
def an_expired_job_makes_room(h: Harness) -> None:
    h.spec(capacity=Bounded(1), eligibility=AtMost(1))
    h.one(expires_at=h.now() + h.short)
    h.advance(h.short + SECOND)
    assert h.claim() == []
    job_id = h.one()
    assert h.take().job.id == job_id


@case
def an_expired_job_runs_after_a_redrive(h: Harness) -> None:
    job_id = h.one(expires_at=h.now() + h.short)
    h.advance(h.short + SECOND)
    assert h.claim() == []
    assert h.store.redrive([job_id]) == [job_id]
    assert h.drain() == [job_id]


@case
def a_claim_passes_expired_jobs_and_finds_the_others(h: Harness) -> None:
    expired = h.enqueue(3, expires_at=h.now() + h.short)
    good = h.enqueue(2)
    h.advance(h.short + 1)
    assert [lease.job.id for lease in h.claim(2)] == good
    h.advance(SECOND)
    assert {h.state(job_id) for job_id in expired} == {State.DEAD}


@case
def wait_returns_at_once_when_there_is_work(h: Harness) -> None:
    h.one()
    assert h.store.wait(["other", "q"], _HOUR) is True


@case
def wait_without_work_ends_with_its_time(h: Harness) -> None:
    assert h.store.wait(["q"], _AT_ONCE) is False
    waiter = RacingCall(lambda: h.store.wait(["q"], h.short_delta))
    h.until_asleep(1)
    h.advance(h.short)
    assert waiter.result() is False


@case
def wait_is_woken_by_a_new_job(h: Harness) -> None:
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    assert waiter.running
    h.one()
    assert waiter.result() is True


@case
def wait_is_woken_when_a_job_falls_due(h: Harness) -> None:
    job_id = h.one(delay=2 * h.short)
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    h.advance(2 * h.short)
    assert waiter.result() is True
    assert h.take().job.id == job_id


@case
def wait_is_woken_when_a_lease_runs_out(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    h.lapse(lease)
    assert waiter.result() is True
    assert [overdue.fence for overdue in h.store.overdue(5)] == [lease.fence]


@case
def wait_is_woken_by_work_that_becomes_due_earlier_than_was_known(h: Harness) -> None:
    """A delayed job, a retry and another worker's lease, each new after the waiter fell asleep."""
    h.one(queue="other")
    held = h.take("other")
    changes: list[Callable[[], object]] = [
        lambda: h.one(delay=h.short),
        lambda: h.fail(held, after=h.short),
        lambda: (h.one(queue="other"), h.take("other", lease_for=h.short_delta)),
    ]
    for change in changes:
        waiter = h.asleep_in(lambda: h.store.wait(["q", "other"], _HOUR))
        change()
        h.until_asleep_or_done(waiter)
        h.advance(h.short + h.short // 10)
        assert waiter.result(patience=10) is True
        h.drain()
        h.drain("other")
        h.reap()
        h.drain("other")


@case
def wait_is_woken_when_a_slot_is_freed(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    h.enqueue(2)
    lease = h.take()
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    h.ack(lease)
    assert waiter.result() is True


@case
def wait_is_woken_by_a_redrive(h: Harness) -> None:
    job_id = h.dead()
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    h.store.redrive([job_id])
    assert waiter.result() is True


@case
def closing_the_store_wakes_waiters(h: Harness) -> None:
    def wait() -> None:
        with suppress(Closed):
            h.store.wait(["q"], _HOUR)

    waiter = RacingCall(wait)
    h.until_asleep(1)
    h.store.close()
    waiter.result()


@case
def wait_does_not_spin_at_a_paused_queue(h: Harness) -> None:
    h.one()
    h.store.pause("q")
    assert h.store.wait(["q"], _AT_ONCE) is False
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    h.store.resume("q")
    assert waiter.result() is True


@case
def wait_does_not_spin_at_a_closed_gate(h: Harness) -> None:
    h.spec(eligibility=Until("go"))
    h.one()
    h.store.promote(10)
    assert h.claim() == [], "which is when its lane is found closed"
    assert h.store.wait(["q"], _AT_ONCE) is False
    waiter = RacingCall(lambda: h.store.wait(["q"], _HOUR))
    h.until_asleep(1)
    h.store.set_gate("until/go", 1)
    assert waiter.result() is True


@case
def a_cancelled_delay_never_comes_due(h: Harness) -> None:
    job_id = h.one(delay=h.short)
    assert h.store.cancel([job_id]) == [CancelAnswer.CANCELLED]
    assert h.store.promote(10).next_due is None
    h.advance(h.short)
    assert h.claim() == []


@case_if(Need.DURABLE)
def a_delay_outlives_a_reopening(h: Harness) -> None:
    job_id = h.one(delay=2 * h.short)
    h.advance(h.short)
    h.reopen()
    assert h.claim() == []
    h.advance(h.short)
    assert h.take().job.id == job_id
