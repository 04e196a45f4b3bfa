"""Order: the smallest (rank, id) first. FIFO, priority, aging and deadline, and when a job keeps its rank."""

from datetime import timedelta

from forebay.core.outcome import Release
from forebay.core.policy import Aging, AtMost, Deadline, Priority
from forebay.store.protocol import Want
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import LONG, SECOND, Harness

ordered = case_if(Need.EXACT_ORDER)


@ordered
def fifo_is_the_order_of_acceptance(h: Harness) -> None:
    ids = []
    for _ in range(5):
        ids.append(h.one())
        h.advance(1_000)
    assert h.drain() == ids


@ordered
def within_one_batch_the_smaller_id_goes_first(h: Harness) -> None:
    ids = h.enqueue(20)
    assert h.drain(batch=3) == ids


@ordered
def one_large_claim_follows_the_same_order_as_many_small_ones(h: Harness) -> None:
    h.spec(selection=Priority())
    receipts = h.send(*[h.draft(priority=number % 3) for number in range(9)])
    expected = [receipts[number].id for number in (2, 5, 8, 1, 4, 7, 0, 3, 6)]
    leases = h.claim(9)
    assert [lease.job.id for lease in leases] == expected
    h.store.settle([(lease, Release()) for lease in reversed(leases)])
    assert h.drain() == expected


@ordered
def a_scheduled_job_goes_before_an_older_backlog_once_it_is_due(h: Harness) -> None:
    backlog = h.enqueue(3)
    due = h.one(delay=h.short)
    assert h.take().job.id == backlog[0]
    h.advance(h.short + 1)
    young = h.one()
    assert h.drain() == [due, *backlog[1:], young]


@ordered
def scheduled_jobs_go_by_due_time_not_by_acceptance(h: Harness) -> None:
    late = h.one(delay=2 * h.short)
    early = h.one(run_at=h.now() + h.short)
    soon = h.one()
    h.advance(2 * h.short + 1)
    assert h.drain() == [early, late, soon]


@ordered
def a_scheduled_job_that_finds_its_gate_closed_gets_the_next_slot(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    h.one()
    running = h.take()
    backlog, due = h.one(), h.one(delay=h.short)
    h.advance(h.short + 1)
    h.store.promote(10)
    h.ack(running)
    assert h.drain() == [due, backlog]


@ordered
def a_slot_that_an_expired_job_leaves_goes_to_the_first_in_rank(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="subject"))
    h.one(subject="s", expires_at=h.now() + h.short // 4)
    first, second = h.one(subject="s"), h.one()
    h.advance(h.short // 2)
    assert [lease.job.id for lease in h.claim(5)] == [first, second]


@ordered
def in_a_priority_queue_priority_decides_and_not_the_wait(h: Harness) -> None:
    h.spec(selection=Priority())
    low, due, high = h.one(priority=0), h.one(priority=1, delay=h.short), h.one(priority=2)
    h.advance(h.short + 1)
    assert h.drain() == [high, due, low]


@ordered
def with_a_deadline_the_deadline_decides_and_not_the_wait(h: Harness) -> None:
    h.spec(selection=Deadline())
    hour = h.now() + 3_600 * SECOND
    late, due, early = h.one(deadline=hour + 2), h.one(deadline=hour + 1, delay=h.short), h.one(deadline=hour)
    h.advance(h.short + 1)
    assert h.drain() == [early, due, late]


@ordered
def with_aging_a_scheduled_job_takes_its_place_by_its_due_time(h: Harness) -> None:
    h.spec(selection=Aging(step=h.short_delta))
    old, due = h.one(), h.one(delay=h.short)
    h.fail(h.take(), after=2 * h.short)
    h.advance(h.short // 2)
    between = h.one()
    h.advance(2 * h.short)
    young = h.one()
    assert h.drain() == [between, due, old, young]


@ordered
def fifo_ignores_priorities(h: Harness) -> None:
    ids = [receipt.id for receipt in h.send(h.draft(priority=1), h.draft(priority=9), h.draft(priority=-5))]
    assert h.drain() == ids


@ordered
def a_run_time_in_the_past_gives_no_head_start(h: Harness) -> None:
    first = h.one()
    h.advance(h.short)
    second = h.one(run_at=h.now() - 10 * h.short)
    assert h.drain() == [first, second]


@ordered
def the_highest_priority_goes_first_and_ties_go_by_id(h: Harness) -> None:
    h.spec(selection=Priority())
    low, high, minus, high_too = h.send(*[h.draft(priority=priority) for priority in (0, 5, -5, 5)])
    assert h.drain() == [high.id, high_too.id, low.id, minus.id]


@ordered
def a_late_high_priority_passes_an_old_low_one(h: Harness) -> None:
    h.spec(selection=Priority())
    old = h.one(priority=1)
    h.advance(h.short)
    new = h.one(priority=2)
    assert h.drain() == [new, old]


@ordered
def a_due_high_priority_goes_before_ready_low_ones(h: Harness) -> None:
    h.spec(selection=Priority())
    high = h.one(priority=9, delay=h.short)
    low = h.enqueue(2, priority=1)
    assert h.take().job.id == low[0]
    h.advance(h.short + 1)
    assert h.take().job.id == high


@ordered
def the_extremes_of_priority_are_ordered(h: Harness) -> None:
    h.spec(selection=Priority())
    lowest, zero, highest = h.send(*[h.draft(priority=priority) for priority in (-(2**31) + 1, 0, 2**31 - 1)])
    assert h.drain() == [highest.id, zero.id, lowest.id]


@ordered
def with_aging_a_point_of_priority_is_worth_one_step(h: Harness) -> None:
    h.spec(selection=Aging(step=h.short_delta))
    old = h.one(priority=0)
    h.advance(h.short * 3)
    two_ahead = h.one(priority=2)
    four_ahead = h.one(priority=4)
    assert h.drain() == [four_ahead, old, two_ahead]


@ordered
def with_aging_no_job_starves(h: Harness) -> None:
    h.spec(selection=Aging(step=timedelta(milliseconds=10)))
    old = h.one(priority=0)
    h.advance(h.short)
    h.enqueue(20, priority=9)
    assert h.take().job.id == old


@ordered
def the_extremes_of_aging_are_ordered(h: Harness) -> None:
    h.spec(selection=Aging(step=timedelta(hours=1)))
    lowest, zero, highest = h.send(*[h.draft(priority=priority) for priority in (-(2**31) + 1, 0, 2**31 - 1)])
    assert h.drain() == [highest.id, zero.id, lowest.id]


@ordered
def the_earliest_deadline_goes_first_and_none_at_all_goes_last(h: Harness) -> None:
    h.spec(selection=Deadline())
    hour = h.now() + 3_600 * SECOND
    none, late, early, early_too = h.send(
        h.draft(), h.draft(deadline=hour + SECOND), h.draft(deadline=hour), h.draft(deadline=hour)
    )
    assert h.drain() == [early.id, early_too.id, late.id, none.id]


@ordered
def a_missed_deadline_is_still_run_first(h: Harness) -> None:
    h.spec(selection=Deadline())
    missed = h.one(deadline=h.now() + h.short)
    h.advance(2 * h.short)
    open_ended = h.one(deadline=h.now() + 3_600 * SECOND)
    assert h.drain() == [missed, open_ended]


@ordered
def a_released_job_keeps_its_place(h: Harness) -> None:
    first, second = h.enqueue(2)
    h.advance(h.short)
    h.release(h.take())
    assert h.drain() == [first, second]


@ordered
def a_job_released_for_later_keeps_its_place_when_it_is_due(h: Harness) -> None:
    first, second = h.enqueue(2)
    h.release(h.take(), after=h.short)
    h.advance(h.short + 1)
    third = h.one()
    assert h.drain() == [first, second, third]


@ordered
def a_job_released_for_later_does_not_pass_an_older_one(h: Harness) -> None:
    first, second = h.enqueue(2)
    leases = h.claim(2)
    h.release(leases[1], after=h.short)
    h.release(leases[0])
    third = h.one()
    h.advance(h.short + 1)
    assert h.drain() == [first, second, third]


@ordered
def a_released_job_that_was_first_is_first_again(h: Harness) -> None:
    due, backlog = h.one(delay=h.short), h.one()
    h.advance(h.short + 1)
    h.release(h.take())
    h.release(h.take(), after=h.short)
    h.advance(h.short + 1)
    assert h.drain() == [due, backlog]


@ordered
def a_retry_that_had_to_wait_goes_before_the_backlog(h: Harness) -> None:
    first, second, third = h.enqueue(3)
    h.fail(h.take(), after=2 * h.short)
    h.fail(h.take(), after=h.short)
    h.advance(2 * h.short + 1)
    fourth = h.one()
    assert h.drain() == [second, first, third, fourth]


@ordered
def a_retry_without_delay_goes_to_the_end_of_a_fifo(h: Harness) -> None:
    first, second = h.enqueue(2)
    h.advance(h.short)
    h.fail(h.take())
    assert h.drain() == [second, first]


@ordered
def a_first_job_that_is_retried_without_delay_is_not_first_any_more(h: Harness) -> None:
    due, backlog = h.one(delay=h.short), h.one()
    h.advance(h.short + 1)
    lease = h.take()
    assert lease.job.id == due
    h.fail(lease)
    assert h.drain() == [backlog, due]


@ordered
def a_retried_job_keeps_its_priority(h: Harness) -> None:
    h.spec(selection=Priority())
    high, low = h.one(priority=5), h.one(priority=1)
    h.advance(h.short)
    h.fail(h.take())
    assert h.drain() == [high, low]


@ordered
def a_retried_job_keeps_its_deadline(h: Harness) -> None:
    h.spec(selection=Deadline())
    hour = h.now() + 3_600 * SECOND
    urgent, other = h.one(deadline=hour), h.one(deadline=hour + 1)
    h.advance(h.short)
    h.fail(h.take())
    assert h.drain() == [urgent, other]


@ordered
def with_aging_a_retried_job_ages_from_its_new_due_time(h: Harness) -> None:
    h.spec(selection=Aging(step=h.short_delta))
    first, second = h.enqueue(2, priority=1)
    h.advance(2 * h.short)
    h.fail(h.take())
    third = h.one(priority=2)
    assert h.drain() == [second, third, first]


@ordered
def a_redriven_job_goes_to_the_end_of_a_fifo(h: Harness) -> None:
    dead = h.dead()
    h.advance(1_000)
    waiting = h.one()
    h.advance(1_000)
    h.store.redrive([dead])
    assert h.drain() == [waiting, dead]


@ordered
def a_redriven_job_that_was_first_is_not_first_any_more(h: Harness) -> None:
    due, backlog = h.one(delay=h.short), h.one()
    h.advance(h.short + 1)
    h.dead_letter(h.take())
    h.store.redrive([due])
    assert h.drain() == [backlog, due]


@ordered
def a_new_spec_keeps_the_ranks_of_accepted_jobs(h: Harness) -> None:
    first, second = h.send(h.draft(priority=1), h.draft(priority=9))
    h.spec(selection=Priority())
    assert h.drain() == [first.id, second.id]


@ordered
def the_order_of_wants_is_the_order_of_leases(h: Harness) -> None:
    here, there = h.enqueue(2), h.enqueue(2, queue="other")
    leases = h.store.claim([Want("other", 1), Want("q", 2), Want("other", 5)], "worker", LONG)
    assert [lease.job.id for lease in leases] == [there[0], *here, there[1]]


@case
def a_claim_gives_no_more_than_was_wanted(h: Harness) -> None:
    h.enqueue(5)
    assert [len(h.claim(2)) for _ in range(4)] == [2, 2, 1, 0]


@case_if(Need.DURABLE)
def a_reopening_keeps_the_order(h: Harness) -> None:
    h.spec(selection=Priority())
    receipts = h.send(*[h.draft(priority=number % 4) for number in range(12)])
    h.release(h.take())
    h.reopen()
    expected = sorted(receipts, key=lambda receipt: (-(receipts.index(receipt) % 4), receipt.id))
    assert h.drain() == [receipt.id for receipt in expected]


@case_if(Need.DURABLE)
def a_reopening_keeps_the_first_job_first(h: Harness) -> None:
    retried, backlog = h.enqueue(2)
    due = h.one(delay=h.short)
    h.fail(h.take(), after=2 * h.short)
    h.reopen()
    h.advance(2 * h.short + 1)
    h.store.promote(10)
    h.reopen()
    assert h.drain() == [due, retried, backlog]
