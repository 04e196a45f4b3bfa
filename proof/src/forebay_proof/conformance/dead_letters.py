"""Dead letters, redrive, purge and cancel: each transition happens once, also under races."""

from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.lease import Settled
from forebay.core.outcome import Failed, Withdrawn
from forebay.core.policy import AtMost, InOrder, KeepFor
from forebay.store.protocol import CancelAnswer
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, LONG, SECOND, Harness
from forebay_proof.conformance.racing import answers, race

CANCELLED, REQUESTED, GONE = CancelAnswer.CANCELLED, CancelAnswer.REQUESTED, CancelAnswer.GONE


@case
def a_dead_letter_stays_until_it_is_redriven_or_purged(h: Harness) -> None:
    job_id = h.dead(payload={"a": 1})
    h.advance(24 * 3_600 * SECOND if h.clock else h.short)
    assert h.claim() == []
    assert [(job.id, job.payload) for job in h.jobs(state=State.DEAD)] == [(job_id, {"a": 1})]
    assert h.backlog().dead == 1


@case
def a_redriven_job_has_all_its_attempts_again(h: Harness) -> None:
    job_id = h.one(max_attempts=2)
    for _ in range(2):
        h.conclude(h.take(), Failed(ERROR))
    assert h.store.redrive([job_id]) == [job_id]
    job = h.get(job_id)
    assert (job.attempt, job.delivery, len(job.errors)) == (0, 2, 2)
    for _ in range(2):
        h.conclude(h.take(), Failed(ERROR))
    assert h.state(job_id) is State.DEAD
    assert h.get(job_id).delivery == 4


@case
def a_redriven_job_is_no_longer_finished(h: Harness) -> None:
    job_id = h.dead()
    assert h.get(job_id).finished_at is not None
    h.store.redrive([job_id])
    assert h.get(job_id).finished_at is None
    assert h.take().job.finished_at is None


@case
def a_redriven_job_can_be_done(h: Harness) -> None:
    job_id = h.dead()
    h.store.redrive([job_id])
    assert h.drain() == [job_id]
    assert h.backlog().dead == 0
    h.nothing_left()


@case
def dead_letters_are_purged_by_their_ids(h: Harness) -> None:
    first, second, third = (h.dead() for _ in range(3))
    assert h.store.purge_dead([third, first, third, 10**9]) == [third, first]
    assert [job.id for job in h.jobs(state=State.DEAD)] == [second]
    assert h.backlog().dead == 1
    assert h.store.get([first]) == [None]
    assert h.store.redrive([first]) == []
    assert h.store.purge_dead([first, third]) == []


@case
def only_dead_jobs_are_purged_by_their_ids(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)))
    done, running, ready, waiting = h.one(), h.one(), h.one(), h.one(delay=3_600 * SECOND)
    h.ack(h.take())
    h.take()
    cancelled = h.one()
    h.store.cancel([cancelled])
    with h.unchanged():
        assert h.store.purge_dead([done, running, ready, waiting, cancelled]) == []


@case
def purging_the_dead_head_of_a_line_exposes_the_next_job(h: Harness) -> None:
    h.spec(eligibility=InOrder(dead_head="block"))
    dead = h.one(subject="s")
    following = h.one(subject="s")
    h.dead_letter(h.take())
    assert h.claim() == []
    assert h.store.purge_dead([dead]) == [dead]
    assert h.take().job.id == following


@case
def racing_purges_remove_each_dead_letter_once(h: Harness) -> None:
    ids = [h.dead() for _ in range(10)]
    moved = answers(race(4, lambda _: h.store.purge_dead(ids)))
    assert sorted(job_id for each in moved for job_id in each) == sorted(ids)
    assert h.backlog().dead == 0


@case
def only_dead_jobs_are_redriven(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)))
    dead = h.dead()
    done = h.one()
    h.ack(h.take())
    running = h.one()
    h.take()
    waiting = h.one(delay=3_600 * SECOND)
    ids = [running, waiting, done, dead, dead + 10**12]
    before = [h.state(job_id) for job_id in ids]
    assert h.store.redrive(ids) == [dead]
    assert [h.state(job_id) for job_id in ids] == [*before[:3], State.READY, None]


@case
def a_second_redrive_moves_nothing(h: Harness) -> None:
    job_id = h.dead()
    assert h.store.redrive([job_id]) == [job_id]
    with h.unchanged():
        assert h.store.redrive([job_id]) == []


@case
def an_id_twice_in_one_redrive_moves_once(h: Harness) -> None:
    job_id = h.dead()
    assert h.store.redrive([job_id, job_id]) == [job_id]
    assert h.backlog().depth == 1
    assert h.drain() == [job_id]


@case
def racing_redrives_move_a_job_once(h: Harness) -> None:
    ids = [h.dead() for _ in range(5)]
    moved = answers(race(16, lambda _: h.store.redrive(ids)))
    assert sorted(job_id for batch in moved for job_id in batch) == ids
    assert sorted(h.drain()) == ids
    h.nothing_left()


@case
def a_job_is_purged_or_redriven_never_both(h: Harness) -> None:
    for _ in range(10):
        job_id = h.dead()
        h.advance(2)
        before = h.now()
        outcome = answers(
            race(
                8,
                lambda number, job_id=job_id, before=before: (  # type: ignore[misc]
                    len(h.store.redrive([job_id])) if number % 2 else h.store.purge(State.DEAD, before, 10)
                ),
            )
        )
        assert sum(outcome) == 1
        moved = sum(outcome[1::2])
        assert h.drain() == [job_id] * moved
    assert h.jobs() == []
    h.nothing_left()


@case
def purge_removes_jobs_that_ended_before_the_instant(h: Harness) -> None:
    old = h.dead()
    h.advance(h.short)
    before = h.now()
    h.advance(1)
    new = h.dead()
    assert h.store.purge(State.DEAD, before, 10) == 1
    assert (h.state(old), h.state(new)) == (None, State.DEAD)
    assert h.store.purge(State.DEAD, before, 10) == 0
    assert h.backlog().dead == 1


@case
def purge_is_bounded_and_oldest_first(h: Harness) -> None:
    ids = []
    for _ in range(5):
        ids.append(h.dead())
        h.advance(1_000)
    assert h.store.purge(State.DEAD, h.now(), 2) == 2
    assert [job.id for job in h.jobs()] == ids[2:]
    assert [h.store.purge(State.DEAD, h.now(), 2) for _ in range(3)] == [2, 1, 0]


@case
def purge_takes_one_state_only(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)))
    dead = h.dead()
    done, cancelled = h.enqueue(2)
    h.ack(h.take())
    h.store.cancel([cancelled])
    h.advance(2)
    assert h.store.purge(State.DONE, h.now(), 10) == 1
    assert h.state(done) is None
    assert h.store.purge(State.CANCELLED, h.now(), 10) == 1
    assert [job.id for job in h.jobs()] == [dead]


@case
def a_purged_job_cannot_be_redriven(h: Harness) -> None:
    job_id = h.dead()
    h.advance(1)
    h.store.purge(State.DEAD, h.now(), 10)
    assert h.store.redrive([job_id]) == []
    assert h.claim() == []


@case
def a_waiting_or_ready_job_is_cancelled_at_once(h: Harness) -> None:
    ready, delayed = h.one(), h.one(delay=h.short)
    assert h.store.cancel([ready, delayed]) == [CANCELLED, CANCELLED]
    assert (h.state(ready), h.state(delayed)) == (None, None)
    h.advance(h.short)
    h.nothing_left()


@case
def a_held_job_is_cancelled_at_once(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    running, held = h.enqueue(2)
    lease = h.take()
    assert h.claim() == []
    assert h.store.cancel([held]) == [CANCELLED]
    h.ack(lease)
    assert lease.job.id == running
    h.nothing_left()


@case
def a_job_between_two_attempts_is_cancelled_at_once(h: Harness) -> None:
    job_id = h.one()
    h.fail(h.take(), after=h.short)
    assert h.store.cancel([job_id]) == [CANCELLED]
    h.advance(h.short)
    h.nothing_left()


@case
def cancelling_a_running_job_sets_a_request_that_its_holder_sees(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    assert not lease.job.cancel_requested
    assert h.store.cancel([job_id]) == [REQUESTED]
    (extended,) = h.store.extend([lease], LONG)
    assert extended.job.cancel_requested
    assert h.get(job_id).cancel_requested
    assert h.state(job_id) is State.RUNNING


@case
def jobs_of_one_claim_can_be_cancelled_in_one_call(h: Harness) -> None:
    ids = h.enqueue(4)
    leases = h.claim(4)
    assert h.store.cancel(ids[1:3]) == [REQUESTED] * 2
    assert [h.get(job_id).cancel_requested for job_id in ids] == [False, True, True, False]
    assert [lease.job.cancel_requested for lease in h.store.extend(leases, LONG)] == [False, True, True, False]


@case
def a_holder_with_a_cancel_request_may_stop_or_finish(h: Harness) -> None:
    ids = h.enqueue(2)
    stops, finishes = h.claim(2)
    h.store.cancel(ids)
    assert h.conclude(stops, Withdrawn()) is Settled.APPLIED
    assert h.ack(finishes) is Settled.APPLIED
    h.nothing_left()


@case
def a_cancel_request_is_passed_on_to_the_next_holder(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    h.store.cancel([job_id])
    h.fail(lease)
    assert h.take().job.cancel_requested


@case
def a_redrive_clears_a_cancel_request(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    h.store.cancel([job_id])
    h.dead_letter(lease)
    h.store.redrive([job_id])
    assert not h.take().job.cancel_requested


@case
def a_finished_or_unknown_job_is_gone_for_cancel(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)))
    dead = h.dead()
    done = h.one()
    h.ack(h.take())
    cancelled = h.one()
    h.store.cancel([cancelled])
    with h.unchanged():
        assert h.store.cancel([dead, done, cancelled, cancelled + 1_000]) == [GONE] * 4


@case
def an_id_twice_in_one_cancel_is_cancelled_once(h: Harness) -> None:
    job_id = h.one()
    assert h.store.cancel([job_id, job_id]) == [CANCELLED, GONE]
    assert h.backlog().depth == 0


@case
def a_cancelled_job_stays_readable_where_jobs_are_kept(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta))
    job_id = h.one(payload=1)
    h.store.cancel([job_id])
    job = h.get(job_id)
    assert (job.state, job.payload, job.delivery) == (State.CANCELLED, 1, 0)
    assert job.finished_at is not None
    assert (h.backlog().cancelled, h.backlog().depth) == (1, 0)
    h.advance(h.short + SECOND)
    assert h.state(job_id) is None
    assert h.backlog().cancelled == 0


@case
def a_job_is_cancelled_or_claimed_never_both(h: Harness) -> None:
    for _ in range(20):
        job_id = h.one()
        outcome = answers(
            race(
                4,
                lambda number, job_id=job_id: (  # type: ignore[misc]
                    h.store.cancel([job_id])[0] if number % 2 else h.claim()
                ),
            )
        )
        leases = [lease for answer in outcome if isinstance(answer, list) for lease in answer]
        assert len(leases) + outcome.count(CANCELLED) == 1
        assert h.backlog().running == len(leases)
        for lease in leases:
            h.ack(lease)
    h.nothing_left()


@case_if(Need.DURABLE)
def dead_letters_and_cancel_requests_outlive_a_reopening(h: Harness) -> None:
    dead = h.dead(payload=[1])
    running = h.one()
    lease = h.take()
    h.store.cancel([running])
    before = h.jobs()
    h.reopen()
    assert h.jobs() == before
    assert h.store.redrive([dead]) == [dead]
    (extended,) = h.store.extend([lease], LONG)
    assert extended.job.cancel_requested
    h.reopen()
    assert h.state(dead) is State.READY


@case_if(Need.DURABLE)
def purged_and_cancelled_jobs_stay_gone_after_a_reopening(h: Harness) -> None:
    h.dead()
    h.advance(1)
    h.store.purge(State.DEAD, h.now(), 10)
    h.store.cancel(h.enqueue(2))
    h.reopen()
    assert h.jobs() == []
    h.nothing_left()
