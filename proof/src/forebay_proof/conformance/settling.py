"""Settling: the commit point. Every verdict does what it says, once; a call whose reply was lost may be repeated."""

from collections.abc import Callable

from forebay.core.instant import micros
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import (
    Abandoned,
    Ack,
    Cancel,
    DeadLetter,
    Dropped,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Retry,
    Snoozed,
    Succeeded,
    Unhandled,
    Verdict,
)
from forebay.core.policy import KeepFor
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, SECOND, Harness

APPLIED, STALE = Settled.APPLIED, Settled.STALE


def _held(h: Harness, **fields: object) -> Lease:
    h.one(**fields)
    return h.take()


def _repeated(h: Harness, verdict: Verdict) -> Lease:
    """Settled, and settled again because the reply was lost; the second time changes nothing."""
    lease = _held(h)
    assert h.settle(lease, verdict) is APPLIED
    with h.unchanged():
        assert h.settle(lease, verdict) is APPLIED
    return lease


def _attempts(h: Harness, outcome: Callable[[Lease], Outcome], most: int = 20) -> int:
    """How often a job is handed out when every run ends like this."""
    for count in range(most):
        leases = h.claim()
        if not leases:
            return count
        assert h.conclude(leases[0], outcome(leases[0])) is APPLIED
    raise AssertionError(f"more than {most} deliveries")


@case
def an_acknowledged_job_is_gone(h: Harness) -> None:
    lease = _held(h)
    assert h.ack(lease) is APPLIED
    assert h.store.get([lease.job.id]) == [None]
    assert h.jobs() == []
    h.nothing_left()


@case
def a_kept_job_stays_readable_with_its_result_and_then_goes(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta * 2))
    lease = _held(h, payload={"a": 1})
    assert h.ack(lease, b'{"answer": 42}') is APPLIED
    job = h.get(lease.job.id)
    assert (job.state, job.result, job.payload) == (State.DONE, {"answer": 42}, {"a": 1})
    assert job.finished_at is not None
    assert (job.owner, job.lease_until) == (None, None)
    assert (h.backlog().done, h.backlog().depth) == (1, 0)
    h.advance(micros(h.short_delta * 2) + SECOND)
    assert h.state(lease.job.id) is None
    assert h.backlog().done == 0


@case
def a_kept_job_without_a_result_has_none(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta))
    lease = _held(h)
    h.ack(lease)
    assert h.get(lease.job.id).result_body is None


@case
def a_dead_job_stays_with_its_error(h: Harness) -> None:
    lease = _held(h, payload=1)
    start = h.now()
    assert h.settle(lease, DeadLetter(Failure("ValueError", "no such user", "trace"))) is APPLIED
    job = h.get(lease.job.id)
    assert (job.state, job.payload, job.attempt, job.delivery) == (State.DEAD, 1, 1, 1)
    (error,) = job.errors
    assert (error.kind, error.message, error.trace, error.attempt) == ("ValueError", "no such user", "trace", 1)
    assert start <= error.at <= h.now()
    assert job.finished_at is not None
    assert (job.owner, job.claimed_at, job.lease_until) == (None, None, None)
    h.nothing_left()


@case
def a_retried_job_waits_with_its_error(h: Harness) -> None:
    lease = _held(h)
    assert h.fail(lease, after=h.short) is APPLIED
    job = h.get(lease.job.id)
    assert (job.state, job.attempt, job.delivery, len(job.errors)) == (State.WAITING, 1, 1, 1)
    assert (job.owner, job.claimed_at, job.lease_until, job.finished_at) == (None, None, None, None)
    assert lease.job.claimed_at is not None
    assert job.due_at >= lease.job.claimed_at + h.short


@case
def a_retry_without_a_delay_comes_at_once(h: Harness) -> None:
    lease = _held(h)
    h.fail(lease)
    assert h.take().job.attempt == 2


@case
def a_released_job_gets_its_attempt_back(h: Harness) -> None:
    lease = _held(h)
    assert h.release(lease) is APPLIED
    job = h.get(lease.job.id)
    assert (job.attempt, job.delivery, job.errors, job.owner) == (0, 1, (), None)
    assert h.take().job.attempt == 1


@case
def a_job_cancelled_by_its_holder_is_gone(h: Harness) -> None:
    lease = _held(h)
    assert h.settle(lease, Cancel()) is APPLIED
    assert h.state(lease.job.id) is None
    h.nothing_left()


@case
def a_job_cancelled_by_its_holder_is_kept_where_jobs_are_kept(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta))
    lease = _held(h)
    h.settle(lease, Cancel())
    assert h.state(lease.job.id) is State.CANCELLED
    h.advance(h.short + SECOND)
    assert h.state(lease.job.id) is None


@case
def a_repeated_ack_is_applied_again(h: Harness) -> None:
    _repeated(h, Ack())
    h.nothing_left()


@case
def a_repeated_ack_of_a_kept_job_is_applied_again(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta))
    _repeated(h, Ack(b"1"))


@case
def a_repeated_retry_is_applied_again_and_happens_once(h: Harness) -> None:
    lease = _repeated(h, Retry(h.short, ERROR))
    h.advance(h.short // 2)
    due_at = h.get(lease.job.id).due_at
    assert h.fail(lease, after=h.short) is APPLIED
    assert h.get(lease.job.id).due_at == due_at


@case
def a_repeated_dead_letter_is_applied_again(h: Harness) -> None:
    _repeated(h, DeadLetter(ERROR))
    assert h.backlog().dead == 1


@case
def a_repeated_release_is_applied_again_and_gives_one_attempt_back(h: Harness) -> None:
    lease = _repeated(h, Release(h.short))
    assert h.get(lease.job.id).attempt == 0


@case
def a_repeated_cancel_is_applied_again(h: Harness) -> None:
    _repeated(h, Cancel())


@case
def a_repeated_retry_does_not_touch_the_next_holder(h: Harness) -> None:
    first = _held(h)
    h.fail(first)
    second = h.take()
    with h.unchanged():
        assert h.fail(first) is APPLIED
    assert h.ack(second) is APPLIED


@case
def a_repeated_dead_letter_does_not_kill_a_redriven_job(h: Harness) -> None:
    lease = _held(h)
    h.dead_letter(lease)
    h.store.redrive([lease.job.id])
    with h.unchanged():
        h.dead_letter(lease)
    assert h.drain() == [lease.job.id]


@case
def another_verdict_than_the_one_that_counted_is_stale(h: Harness) -> None:
    verdicts: list[Verdict] = [Ack(), Retry(h.short, ERROR), DeadLetter(ERROR), Release(h.short), Cancel()]
    for won in verdicts:
        lease = _held(h)
        h.settle(lease, won)
        for lost in verdicts:
            if lost is not won:
                with h.unchanged():
                    assert h.settle(lease, lost) is STALE, (won, lost)


@case
def a_lease_twice_in_one_call_is_settled_once(h: Harness) -> None:
    lease = _held(h)
    assert h.store.settle([(lease, Ack()), (lease, Ack())]) == [APPLIED, APPLIED]
    h.nothing_left()


@case
def the_first_of_two_verdicts_in_one_call_counts(h: Harness) -> None:
    lease = _held(h)
    assert h.store.settle([(lease, Retry(0, ERROR)), (lease, Ack())]) == [APPLIED, STALE]
    job = h.get(lease.job.id)
    assert (job.attempt, len(job.errors)) == (1, 1)


@case
def each_settlement_of_a_batch_is_answered_on_its_own(h: Harness) -> None:
    h.enqueue(4)
    leases = h.claim(4)
    h.release(leases[1])
    new = h.take()
    answers = h.store.settle([(lease, Ack()) for lease in (*leases, new)])
    assert answers == [APPLIED, STALE, APPLIED, APPLIED, APPLIED]
    h.nothing_left()


@case
def settling_nothing_is_answered_with_nothing(h: Harness) -> None:
    assert h.store.settle([]) == []


@case
def a_lost_reply_is_remembered_over_a_thousand_other_settles(h: Harness) -> None:
    first = _held(h)
    h.ack(first)
    h.enqueue(1_000)
    h.drain(batch=500)
    assert h.ack(first) is APPLIED


@case
def a_lost_reply_is_remembered_when_the_job_was_cancelled_or_purged_since(h: Harness) -> None:
    retried, dead = _held(h), _held(h)
    h.fail(retried, after=h.short)
    h.dead_letter(dead)
    h.store.cancel([retried.job.id])
    h.advance(1)
    h.store.purge(State.DEAD, h.now(), 10)
    assert h.jobs() == []
    assert h.fail(retried, after=h.short) is APPLIED
    assert h.dead_letter(dead) is APPLIED
    assert h.jobs() == []


@case
def a_job_that_always_fails_is_run_exactly_max_attempts_times(h: Harness) -> None:
    job_id = h.one(max_attempts=4)
    assert _attempts(h, lambda _: Failed(ERROR)) == 4
    job = h.get(job_id)
    assert (job.state, job.attempt) == (State.DEAD, 4)
    assert [error.attempt for error in job.errors] == [1, 2, 3, 4]
    h.nothing_left()


@case
def a_job_with_one_attempt_dies_of_its_first_failure(h: Harness) -> None:
    job_id = h.one(max_attempts=1)
    assert _attempts(h, lambda _: Failed(ERROR)) == 1
    assert h.state(job_id) is State.DEAD


@case
def a_job_whose_workers_all_die_is_run_exactly_max_attempts_times(h: Harness) -> None:
    job_id = h.one(max_attempts=3)
    assert _attempts(h, lambda _: Abandoned()) == 3
    assert h.state(job_id) is State.DEAD
    assert h.get(job_id).suspect


@case
def interruptions_and_snoozes_use_up_no_attempts(h: Harness) -> None:
    job_id = h.one(max_attempts=2)
    for number in range(10):
        h.conclude(h.take(), Interrupted() if number % 2 else Snoozed(0))
    assert _attempts(h, lambda _: Failed(ERROR)) == 2
    assert h.get(job_id).delivery == 12


@case
def a_kind_that_a_worker_cannot_run_goes_back_uncharged_and_later_each_time(h: Harness) -> None:
    job_id = h.one(max_attempts=1)
    waits = []
    for _ in range(2):
        lease, before = h.take(), h.now()
        assert lease.job.attempt == 1
        assert h.conclude(lease, Unhandled()) is Settled.APPLIED
        job = h.get(job_id)
        assert (job.state, job.attempt, job.errors) == (State.WAITING, 0, ())
        assert h.claim(1) == []
        waits.append(job.due_at - before)
        h.advance(job.due_at - h.now())
    assert 1_000_000 <= waits[0] < 2_000_000 <= waits[1]
    assert h.take().job.delivery == 3


@case
def a_dropped_job_dies_at_once(h: Harness) -> None:
    job_id = h.one(max_attempts=9)
    assert _attempts(h, lambda _: Dropped(ERROR)) == 1
    assert h.state(job_id) is State.DEAD


@case
def a_success_on_the_last_attempt_counts(h: Harness) -> None:
    job_id = h.one(max_attempts=2)
    h.conclude(h.take(), Failed(ERROR))
    assert h.conclude(h.take(), Succeeded()) is APPLIED
    assert h.state(job_id) is None
    h.nothing_left()


@case
def the_last_few_errors_are_kept_in_order(h: Harness) -> None:
    h.one()
    for number in range(ERRORS_KEPT + 3):
        h.settle(h.take(), Retry(0, Failure("Boom", str(number))))
    errors = h.jobs()[0].errors
    assert [error.message for error in errors] == [str(number) for number in range(3, ERRORS_KEPT + 3)]


@case
def an_error_with_nul_or_a_lone_surrogate_is_kept_clean(h: Harness) -> None:
    lease = _held(h)
    h.settle(lease, DeadLetter(Failure("Boom\0", "a\0b\ud800c" + "x" * 5_000, "\udfff")))
    (error,) = h.get(lease.job.id).errors
    text = error.kind + error.message + error.trace
    assert "\0" not in text
    assert text.encode()
    assert len(error.message) <= 1_000


@case
def a_finished_job_never_runs_again(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta * 100))
    h.enqueue(3)
    done, cancelled, dead = h.claim(3, lease_for=h.short_delta)
    h.ack(done)
    h.settle(cancelled, Cancel())
    h.dead_letter(dead)
    h.lapse(done, cancelled, dead)
    h.reap()
    assert h.claim(3) == []
    assert h.store.redrive([done.job.id, cancelled.job.id]) == []
    assert h.claim(3) == []


@case_if(Need.DURABLE)
def settles_outlive_a_reopening_and_may_be_repeated(h: Harness) -> None:
    h.enqueue(5)
    verdicts: list[Verdict] = [Ack(), Retry(h.short, ERROR), DeadLetter(ERROR), Release(h.short), Cancel()]
    settlements = list(zip(h.claim(5), verdicts, strict=True))
    h.store.settle(settlements)
    before = h.jobs()
    h.reopen()
    assert h.jobs() == before
    assert h.store.settle(settlements) == [APPLIED] * 5
    assert h.jobs() == before


@case_if(Need.DURABLE)
def results_outlive_a_reopening(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta * 100))
    lease = _held(h)
    h.ack(lease, b"[1,2]")
    h.reopen()
    assert h.get(lease.job.id).result == [1, 2]
