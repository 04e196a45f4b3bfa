"""Newer work brings its urgency along, and with `quiet` a job is due only when nothing newer came for so long."""

from datetime import timedelta
from typing import Any

from forebay.core.job import State
from forebay.core.outcome import EXPIRED
from forebay.core.policy import Aging, AtMost, Deadline, LatestWins, Priority, Until
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import SECOND, Harness


def _quiet(h: Harness, ranges: int = 2, at_most: int | None = None, **axes: Any) -> None:
    limit = None if at_most is None else at_most * h.short_delta
    h.spec(merge=LatestWins(quiet=ranges * h.short_delta, at_most=limit), **axes)


def _due_in(h: Harness, job_id: int) -> float:
    """In units of `short`, from now on."""
    return (h.get(job_id).due_at - h.now()) / h.short


@case
def newer_work_brings_its_meta_and_its_urgency(h: Harness) -> None:
    h.spec(merge=LatestWins())
    soon, later = h.now() + 3_600 * SECOND, h.now() + 7_200 * SECOND
    h.one(subject="s", tenant="a", key="1", priority=1, deadline=later, meta={"trace": "1"}, max_attempts=3)
    job_id = h.one(subject="s", tenant="b", key="2", priority=5, deadline=soon, meta={"trace": "2"}, max_attempts=9)
    job = h.get(job_id)
    assert (job.priority, job.deadline, job.meta) == (5, soon, {"trace": "2"})
    assert (job.tenant, job.key, job.max_attempts, job.enqueued_at) == ("a", "1", 3, job.enqueued_at)
    h.one(subject="s")
    job = h.get(job_id)
    assert (job.priority, job.deadline, job.meta, job.tenant, job.subject) == (0, None, None, "a", "s")


@case
def more_urgent_work_moves_a_ready_job_ahead(h: Harness) -> None:
    h.spec(merge=LatestWins(), selection=Priority())
    first, second = h.one(subject="a", priority=5), h.one(subject="b", priority=1)
    assert h.backlog().ready == 2
    h.one(subject="b", priority=9)
    assert [lease.job.id for lease in h.claim(2)] == [second, first]


@case
def less_urgent_work_moves_a_ready_job_back(h: Harness) -> None:
    h.spec(merge=LatestWins(), selection=Aging(step=timedelta(minutes=1)))
    first, second = h.one(subject="a", priority=5), h.one(subject="b", priority=1)
    h.one(subject="a", priority=0)
    assert [lease.job.id for lease in h.claim(2)] == [second, first]


@case
def an_earlier_deadline_moves_a_held_job_ahead(h: Harness) -> None:
    h.spec(merge=LatestWins(), selection=Deadline(), eligibility=Until("open"))
    at = h.now() + 3_600 * SECOND
    first, second = h.one(subject="a", deadline=at + 2), h.one(subject="b", deadline=at + 3)
    assert h.backlog().ready == 2
    assert h.claim(2) == []
    h.one(subject="b", deadline=at)
    h.store.set_gate("until/open", 1)
    assert [lease.job.id for lease in h.claim(2)] == [second]
    h.store.set_gate("until/open", 2)
    assert [lease.job.id for lease in h.claim(2)] == [first]


@case
def a_waiting_job_keeps_its_time_and_takes_the_new_rank(h: Harness) -> None:
    h.spec(merge=LatestWins(), selection=Priority())
    waits = h.one(subject="a", priority=1, delay=h.short)
    other = h.one(subject="b", priority=5, delay=h.short)
    due_at = h.get(waits).due_at
    h.one(subject="a", priority=9)
    assert h.get(waits).due_at == due_at
    h.advance(2 * h.short)
    assert [lease.job.id for lease in h.claim(2)] == [waits, other]


@case
def the_newest_draft_decides_when_a_job_expires(h: Harness) -> None:
    h.spec(merge=LatestWins())
    kept = h.one(subject="a", expires_at=h.now() + h.short)
    goes = h.one(subject="b")
    h.one(subject="a")
    h.one(subject="b", expires_at=h.now() + h.short)
    h.advance(2 * h.short + SECOND)
    assert [lease.job.id for lease in h.claim(5)] == [kept]
    dead = h.get(goes)
    assert (dead.state, dead.errors[-1].kind) == (State.DEAD, EXPIRED)


@case
def newer_work_that_comes_too_late_is_never_handed_out(h: Harness) -> None:
    h.spec(merge=LatestWins())
    late, past = h.one(subject="s", payload=1), h.now() - 1
    receipts = h.send(
        *[h.draft(subject="s", payload=number, expires_at=past if number == 2 else None) for number in (2, 3)]
    )
    assert [(receipt.id == late, receipt.merged) for receipt in receipts] == [(True, True), (False, False)]
    assert [lease.job.payload for lease in h.claim(5)] == [3]
    assert h.state(late) is State.DEAD


@case
def a_job_waits_for_the_quiet_period(h: Harness) -> None:
    _quiet(h)
    job_id = h.one(subject="s", payload=1)
    assert h.claim() == []
    for number in (2, 3):
        h.advance(h.short)
        assert h.claim() == []
        (receipt,) = h.send(h.draft(subject="s", payload=number))
        assert (receipt.id, receipt.merged) == (job_id, True)
        assert 1.5 < _due_in(h, job_id) <= 2
    h.advance(2 * h.short)
    lease = h.take()
    assert (lease.job.id, lease.job.payload) == (job_id, 3)
    h.ack(lease)
    h.nothing_left()


@case
def the_wait_for_a_quiet_period_is_bounded(h: Harness) -> None:
    _quiet(h, 2, at_most=3)
    job_id = h.one(subject="s")
    due = []
    for _ in range(2):
        h.advance(h.short)
        h.one(subject="s")
        due.append(_due_in(h, job_id))
    assert 1.5 < due[0] <= 2
    assert due[1] <= 1
    h.advance(h.short)
    assert [lease.job.id for lease in h.claim(2)] == [job_id]


@case
def promote_returns_the_new_due_time(h: Harness) -> None:
    _quiet(h)
    job_id = h.one(subject="s")
    h.advance(h.short)
    h.one(subject="s")
    assert h.store.promote(10).next_due == h.get(job_id).due_at
    h.advance(h.short + h.short // 2)
    assert h.store.promote(10).ready == 0


@case
def a_job_that_is_due_is_not_postponed_again(h: Harness) -> None:
    _quiet(h, 1, eligibility=AtMost(1))
    first, second = h.enqueue(1, subject="a") + h.enqueue(1, subject="b")
    h.advance(h.short)
    assert h.backlog().depth == 2
    due = [h.get(job_id).due_at for job_id in (first, second)]
    h.send(h.draft(subject="a", payload=2), h.draft(subject="b", payload=2))
    assert [h.get(job_id).due_at for job_id in (first, second)] == due
    assert [lease.job.payload for lease in h.claim(2)] == [2]


@case
def work_that_comes_while_its_subject_runs_has_a_quiet_period_of_its_own(h: Harness) -> None:
    _quiet(h, 1)
    h.one(subject="s", payload=1)
    h.advance(h.short)
    running = h.take()
    next_id = h.one(subject="s", payload=2)
    assert next_id != running.job.id
    h.ack(running)
    assert h.claim() == []
    h.advance(h.short)
    assert h.take().job.payload == 2


@case
def a_later_run_time_of_its_own_is_kept(h: Harness) -> None:
    _quiet(h, 1)
    job_id = h.one(subject="s", delay=5 * h.short)
    h.one(subject="s")
    assert 4 < _due_in(h, job_id) <= 5


@case
def work_without_a_subject_has_no_quiet_period(h: Harness) -> None:
    _quiet(h)
    job_id = h.one()
    assert h.take().job.id == job_id


@case
def drafts_of_one_batch_share_a_quiet_period(h: Harness) -> None:
    _quiet(h, 1)
    ids = h.enqueue(3, subject="s")
    assert len(set(ids)) == 1
    assert 0.5 < _due_in(h, ids[0]) <= 1
    h.advance(h.short)
    assert len(h.claim(3)) == 1
