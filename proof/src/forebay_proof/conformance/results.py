"""Results: a verdict says how long its finished job stays readable, on every queue."""

from functools import partial

from forebay.core.errors import Invalid
from forebay.core.instant import hours, micros
from forebay.core.job import State
from forebay.core.lease import Settled
from forebay.core.outcome import Ack, Cancel, Verdict
from forebay.core.policy import AtMost, KeepFor
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import SECOND, Harness

APPLIED, STALE = Settled.APPLIED, Settled.STALE


@case
def a_verdict_keeps_its_job_on_a_queue_that_keeps_none(h: Harness) -> None:
    job_id = h.one(payload={"a": 1})
    lease = h.take()
    assert h.settle(lease, Ack(b'{"answer": 42}', 2 * h.short)) is APPLIED
    job = h.get(job_id)
    assert (job.state, job.result, job.payload) == (State.DONE, {"answer": 42}, {"a": 1})
    assert (h.backlog().done, h.backlog().depth) == (1, 0)
    with h.unchanged():
        assert h.settle(lease, Ack(b'{"answer": 42}', 2 * h.short)) is APPLIED
        assert h.settle(lease, Cancel()) is STALE
    h.advance(2 * h.short + SECOND)
    assert h.state(job_id) is None
    assert h.backlog().done == 0
    h.nothing_left()


@case
def a_verdict_keeps_its_job_without_a_result(h: Harness) -> None:
    job_id = h.one()
    h.settle(h.take(), Ack(None, micros(hours(1))))
    job = h.get(job_id)
    assert (job.state, job.result_body) == (State.DONE, None)


@case
def a_job_that_was_stopped_is_kept_for_as_long_as_its_verdict_says(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    h.store.cancel([job_id])
    assert h.settle(lease, Cancel(2 * h.short)) is APPLIED
    assert h.get(job_id).state is State.CANCELLED
    h.advance(2 * h.short + SECOND)
    assert h.state(job_id) is None


@case
def of_the_verdict_and_the_queue_the_longer_one_counts(h: Harness) -> None:
    h.spec(retention=KeepFor(h.short_delta))
    first, second = h.enqueue(2)
    h.settle(h.take(), Ack(b"1", 20 * h.short))
    h.spec(retention=KeepFor(20 * h.short_delta))
    h.settle(h.take(), Ack(b"2", h.short))
    h.advance(h.short + SECOND)
    assert [h.state(first), h.state(second)] == [State.DONE, State.DONE]
    assert [h.get(first).result, h.get(second).result] == [1, 2]


@case
def verdicts_of_one_call_keep_each_its_own_job(h: Harness) -> None:
    ids = h.enqueue(4)
    leases = h.claim(4)
    verdicts: list[Verdict] = [Ack(), Ack(b'"kept"', micros(hours(1))), Cancel(micros(hours(1))), Ack()]
    assert h.store.settle(list(zip(leases, verdicts, strict=True))) == [APPLIED] * 4
    jobs = h.store.get(ids)
    assert [None if job is None else (job.state, job.result) for job in jobs] == [
        None,
        (State.DONE, "kept"),
        (State.CANCELLED, None),
        None,
    ]


@case
def all_jobs_of_a_call_may_be_kept(h: Harness) -> None:
    ids = h.enqueue(3)
    h.store.settle([(lease, Ack(b"%d" % lease.job.id, micros(hours(1)))) for lease in h.claim(3)])
    assert [h.get(job_id).result for job_id in ids] == ids
    assert h.store.purge(State.DONE, h.now() + SECOND, 10) == 3
    h.nothing_left()


@case
def a_kept_job_frees_its_slot(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    first, second = h.enqueue(2)
    h.settle(h.take(), Ack(b"1", micros(hours(1))))
    assert h.take().job.id == second
    assert h.get(first).state is State.DONE


@case
def an_invalid_length_is_refused(_: Harness) -> None:
    for keep_for in (-1, 1.5, True, micros(hours(24)) * 10_000):
        for verdict in (partial(Ack, None), Cancel):
            refused(Invalid, partial(verdict, keep_for))  # type: ignore[arg-type]
