"""Leases: one holder at a time, for at least as long as requested. Time is liveness; the fence is safety."""

from msgspec.structs import replace

from forebay.core.instant import hours, micros
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import ABANDONED, Ack, Cancel, DeadLetter, Failure, Release, Retry, Unaccounted, Verdict
from forebay.store.protocol import Want
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, LONG, Harness


def _lost(h: Harness) -> tuple[Lease, Lease]:
    """A lease that ran out, and the one that another worker got after it."""
    h.one()
    old = h.take(owner="old", lease_for=h.short_delta)
    h.lapse(old)
    h.reap()
    return old, h.take(owner="new")


def _is_held_by(h: Harness, lease: Lease) -> bool:
    job = h.get(lease.job.id)
    return (job.state, job.owner, job.delivery) == (State.RUNNING, lease.owner, lease.job.delivery)


@case
def a_claimed_job_is_not_handed_out_again(h: Harness) -> None:
    h.one()
    h.take()
    assert h.claim() == []
    assert h.store.claim([Want("q", 1), Want("q", 1)], "another", LONG) == []


@case
def wants_of_one_claim_do_not_share_a_job(h: Harness) -> None:
    ids = h.enqueue(3)
    leases = h.store.claim([Want("q", 2), Want("q", 2)], "worker", LONG)
    assert [lease.job.id for lease in leases] == ids


@case
def a_lease_shows_its_job_as_it_is_now(h: Harness) -> None:
    job_id = h.one(payload={"a": 1}, meta={"m": "1"})
    start = h.now()
    lease = h.take(owner="host 7 / pid 9")
    job = lease.job
    assert (job.id, job.state, job.attempt, job.delivery) == (job_id, State.RUNNING, 1, 1)
    assert (job.owner, lease.owner, job.lease_until) == ("host 7 / pid 9", "host 7 / pid 9", lease.until)
    assert job.claimed_at is not None
    assert start <= job.claimed_at <= h.now()
    assert job == h.get(job_id)
    assert lease.fence == (job_id, 1)


@case
def a_lease_lasts_at_least_as_long_as_asked_and_hardly_longer(h: Harness) -> None:
    grain = h.store.capabilities.lease_grain
    for requested in (h.short_delta, hours(1), hours(24 * 7)):
        h.one()
        before = h.now()
        lease = h.take(lease_for=requested)
        assert lease.until >= before + micros(requested)
        assert lease.until <= h.now() + int(micros(requested) * (1 + grain))


@case
def a_lease_is_overdue_after_its_time_and_not_before(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    assert h.store.overdue(10) == []
    h.lapse(lease)
    (overdue,) = h.store.overdue(10)
    assert (overdue.fence, overdue.owner, overdue.until) == (lease.fence, "worker", lease.until)


@case
def overdue_leases_come_oldest_first_and_bounded(h: Harness) -> None:
    h.enqueue(3)
    slow = h.take(lease_for=h.short_delta * 3)
    quick = h.take(lease_for=h.short_delta)
    middle = h.take(lease_for=h.short_delta * 2)
    h.lapse(slow)
    expected = [quick.fence, middle.fence, slow.fence]
    assert [lease.fence for lease in h.store.overdue(10)] == expected
    assert [lease.fence for lease in h.store.overdue(2)] == expected[:2]


@case
def settled_jobs_take_no_place_among_overdue_leases(h: Harness) -> None:
    """Of a claim whose other jobs are settled: a reaper rests after a page that is not full."""
    h.enqueue(6)
    first, second = (h.claim(3, lease_for=h.short_delta) for _ in range(2))
    h.store.settle([(lease, Ack()) for lease in first[:2]])
    h.lapse(*first[2:], *second)
    assert len(h.store.overdue(3)) == 3


@case
def reading_overdue_leases_changes_nothing(h: Harness) -> None:
    h.one()
    h.lapse(h.take(lease_for=h.short_delta))
    with h.unchanged():
        assert h.store.overdue(10) == h.store.overdue(10) != []


@case
def an_overdue_job_is_not_handed_out_before_it_is_settled(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    assert h.claim() == []
    h.reap()
    assert h.take().job.id == lease.job.id


@case
def a_settled_job_is_not_overdue(h: Harness) -> None:
    h.enqueue(4)
    leases = h.claim(4, lease_for=h.short_delta)
    verdicts: list[Verdict] = [Ack(), DeadLetter(ERROR), Release(), Retry(0, ERROR)]
    h.store.settle(list(zip(leases, verdicts, strict=True)))
    h.lapse(*leases)
    assert h.store.overdue(10) == []


@case
def a_late_acknowledgement_counts_while_no_other_worker_has_the_job(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    assert h.ack(lease) is Settled.APPLIED
    assert h.store.overdue(10) == []
    h.nothing_left()


@case
def a_late_extension_revives_a_lease_while_no_other_worker_has_the_job(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    (extended,) = h.store.extend([lease], LONG)
    assert extended.fence == lease.fence
    assert h.store.overdue(10) == []
    assert h.ack(lease) is Settled.APPLIED


@case
def an_extended_lease_is_not_overdue_at_its_old_time(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    (extended,) = h.store.extend([lease], h.short_delta * 4)
    assert extended.until >= h.now() + 3 * h.short
    assert h.get(lease.job.id).lease_until == extended.until
    h.lapse(lease)
    assert h.store.overdue(10) == []
    h.lapse(extended)
    assert [overdue.fence for overdue in h.store.overdue(10)] == [lease.fence]


@case
def an_extension_charges_nothing_and_keeps_the_fence(h: Harness) -> None:
    h.one()
    lease = h.take()
    h.store.extend([lease], LONG)
    (extended,) = h.store.extend([lease], LONG)
    assert extended.fence == lease.fence
    assert (extended.job.attempt, extended.owner, extended.job.claimed_at) == (1, "worker", lease.job.claimed_at)
    assert h.ack(extended) is Settled.APPLIED


@case
def an_extension_returns_the_survivors_only(h: Harness) -> None:
    h.enqueue(3)
    acked, kept, released = h.claim(3)
    h.ack(acked)
    h.release(released)
    assert [lease.fence for lease in h.store.extend([acked, kept, released], LONG)] == [kept.fence]
    assert h.store.extend([], LONG) == []


@case
def the_fence_grows_over_retries(h: Harness) -> None:
    job_id = h.one()
    fences = []
    for _ in range(4):
        lease = h.take()
        fences.append(lease.fence)
        h.fail(lease)
    assert fences == [(job_id, 1), (job_id, 2), (job_id, 3), (job_id, 4)]


@case
def the_fence_grows_over_releases(h: Harness) -> None:
    h.one()
    deliveries = []
    for _ in range(3):
        lease = h.take()
        deliveries.append((lease.job.delivery, lease.job.attempt))
        h.release(lease)
    assert deliveries == [(1, 1), (2, 1), (3, 1)]


@case
def the_fence_grows_over_a_redrive(h: Harness) -> None:
    h.one()
    old = h.take()
    h.dead_letter(old)
    h.store.redrive([old.job.id])
    new = h.take()
    assert (new.job.attempt, new.job.delivery) == (1, 2)
    assert h.ack(old) is Settled.STALE
    assert _is_held_by(h, new)


@case
def an_attempt_is_not_a_fence(h: Harness) -> None:
    """After a release the attempt is the same again; the old holder is stale all the same."""
    h.one()
    old = h.take(owner="same")
    h.release(old)
    new = h.take(owner="same")
    assert old.job.attempt == new.job.attempt
    assert h.ack(old) is Settled.STALE
    assert h.fail(old) is Settled.STALE
    assert _is_held_by(h, new)
    assert h.ack(new) is Settled.APPLIED


@case
def a_reaper_that_read_before_a_renewal_takes_nothing(h: Harness) -> None:
    """The fence is the holder's own: the difference is that the lease was renewed since."""
    h.one()
    held = h.take(lease_for=h.short_delta)
    h.lapse(held)
    (late,) = h.store.overdue(10)
    (renewed,) = h.store.extend([held], LONG)
    lost = Failure(ABANDONED)
    verdicts: list[Verdict] = [Retry(0, lost, expired=True), DeadLetter(lost, expired=True), Release(expired=True)]
    for verdict in verdicts:
        assert h.store.settle([(late, verdict)]) == [Settled.STALE]
    assert _is_held_by(h, renewed)
    assert h.store.settle([(held, Retry(0, lost))]) == [Settled.APPLIED], "what the holder says of itself counts"


@case
def a_stale_lease_cannot_ack(h: Harness) -> None:
    old, new = _lost(h)
    assert h.ack(old) is Settled.STALE
    assert _is_held_by(h, new)
    assert h.ack(new) is Settled.APPLIED


@case
def a_stale_lease_cannot_dead_letter_release_or_cancel(h: Harness) -> None:
    old, new = _lost(h)
    for verdict in (DeadLetter(ERROR), Release(), Cancel()):
        assert h.settle(old, verdict) is Settled.STALE, verdict
        assert _is_held_by(h, new)


@case
def a_stale_failure_changes_nothing_for_the_new_holder(h: Harness) -> None:
    """Its retry equals the reaper's, which counted; so the answer is free, but nothing may move."""
    old, new = _lost(h)
    h.fail(old, after=h.short)
    assert _is_held_by(h, new)
    assert len(h.get(new.job.id).errors) == 1


@case
def a_stale_lease_cannot_be_extended(h: Harness) -> None:
    old, new = _lost(h)
    until = h.get(new.job.id).lease_until
    assert h.store.extend([old], hours(2)) == []
    assert h.get(new.job.id).lease_until == until


@case
def a_lease_of_an_earlier_delivery_cannot_be_extended_in_the_same_attempt(h: Harness) -> None:
    h.one()
    old = h.take(owner="old")
    h.settle(old, Release())
    new = h.take(owner="new")
    assert new.job.attempt == old.job.attempt
    assert h.store.extend([old], LONG) == []
    assert _is_held_by(h, new)


@case
def a_reaped_job_is_lost_to_its_holder_before_the_next_claim(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    h.reap()
    assert h.ack(lease) is Settled.STALE
    assert h.store.extend([lease], LONG) == []
    assert h.backlog().ready == 1


@case
def a_fence_from_the_future_is_stale(h: Harness) -> None:
    h.one()
    lease = h.take()
    forged = replace(lease, job=replace(lease.job, delivery=lease.job.delivery + 1))
    assert h.ack(forged) is Settled.STALE
    assert h.store.extend([forged], LONG) == []
    assert _is_held_by(h, lease)


@case
def a_lease_of_an_unknown_job_is_stale(h: Harness) -> None:
    h.one()
    lease = h.take()
    forged = replace(lease, job=replace(lease.job, id=lease.job.id + 1_000))
    assert h.ack(forged) is Settled.STALE
    assert h.store.extend([forged], LONG) == []


@case
def two_racing_reapers_charge_one_attempt(h: Harness) -> None:
    job_id = h.one()
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    (seen,) = h.store.overdue(10)
    (seen_too,) = h.store.overdue(10)
    assert h.fail(seen) is Settled.APPLIED
    h.fail(seen_too)
    job = h.get(job_id)
    assert (job.attempt, len(job.errors)) == (1, 1)
    assert h.backlog().depth == 1


@case
def an_abandoned_job_is_charged_and_suspect(h: Harness) -> None:
    job_id = h.one()
    h.lapse(h.take(owner="victim", lease_for=h.short_delta))
    h.reap()
    job = h.get(job_id)
    assert (job.attempt, job.suspect, job.owner, job.lease_until) == (1, True, None, None)
    assert "victim" not in job.errors[0].message, "a tenant learns nothing of the workers"


@case
def a_release_may_leave_an_error_without_a_charge(h: Harness) -> None:
    """It is unknown whether it had begun: the attempt is given back, and the job is a suspect from then on."""
    job_id = h.one(max_attempts=3)
    h.lapse(h.take(lease_for=h.short_delta))
    (late,) = h.store.overdue(10)
    assert h.conclude(late, Unaccounted("its lease ran out")) is Settled.APPLIED
    job = h.get(job_id)
    assert (job.attempt, job.suspect, job.owner, job.lease_until) == (0, True, None, None)
    assert [(error.kind, error.message, error.attempt) for error in job.errors] == [(ABANDONED, "its lease ran out", 1)]
    again = h.take()
    assert (again.job.attempt, again.job.delivery, again.job.needs_quarantine) == (1, 2, True)
    assert h.conclude(again, Unaccounted("its lease ran out")) is Settled.APPLIED, "that was in quarantine: charged"
    job = h.get(job_id)
    assert (job.attempt, [error.attempt for error in job.errors]) == (1, [1, 1])
    assert job.errors[-1].message == "its lease ran out (2 times)"


@case
def a_job_that_kills_its_worker_unseen_ends_after_one_delivery_more_than_its_attempts(h: Harness) -> None:
    job_id = h.one(max_attempts=3)
    deliveries = 0
    while h.get(job_id).state is not State.DEAD:
        h.conclude(h.take(), Unaccounted())
        deliveries += 1
        assert deliveries <= 4
    assert (deliveries, h.get(job_id).attempt) == (4, 3)


@case_if(Need.DURABLE)
def a_lease_outlives_a_reopening(h: Harness) -> None:
    h.one()
    lease = h.take()
    h.reopen()
    assert h.claim() == []
    assert _is_held_by(h, lease)
    assert len(h.store.extend([lease], LONG)) == 1
    assert h.ack(lease) is Settled.APPLIED
    h.nothing_left()


@case_if(Need.DURABLE)
def a_lease_runs_out_over_a_reopening(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=h.short_delta)
    h.reopen()
    h.lapse(lease)
    assert [overdue.fence for overdue in h.store.overdue(10)] == [lease.fence]


@case_if(Need.DURABLE)
def the_fence_grows_over_a_reopening(h: Harness) -> None:
    h.one()
    old = h.take()
    h.fail(old)
    h.reopen()
    new = h.take()
    assert (new.job.delivery, new.job.attempt) == (2, 2)
    assert h.ack(old) is Settled.STALE
    assert h.ack(new) is Settled.APPLIED
