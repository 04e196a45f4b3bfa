"""The ledger: one record for every call that changed something, in its transaction, and none for any other call.

Maintenance (what fell due) may be in the record of the call that did it, or in one of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

from forebay.core.errors import Invalid, KeyConflict, QueueFull
from forebay.core.gate import condition_gate
from forebay.core.instant import Instant, hours
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record, Trait
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.policy import Bounded, InOrder, KeepFor, LatestWins, Retained
from forebay.core.schedule import Schedule
from forebay_proof.checkers.ledger import kind_of
from forebay_proof.conformance.case import Need, case_if, refused
from forebay_proof.conformance.harness import ERROR, LONG, SECOND, Harness

HOUR = 3_600 * SECOND


class JobEntry(NamedTuple):
    """What a range says of one of its jobs."""

    id: int
    change: str
    kind: str
    job_range: JobRange
    trait: Trait


def entries(h: Harness, after: int = -1) -> list[LedgerEntry]:
    """Everything behind an offset, page by page."""
    found: list[LedgerEntry] = []
    while page := h.store.ledger(found[-1].offset if found else after, 1_000):
        found += page
    return found


def job_changes(record: Record) -> list[JobEntry]:
    jobs = []
    for job_range in record.ranges:
        for place in range(job_range.n):
            trait = None if job_range.traits is None else job_range.traits[place]
            jobs.append(
                JobEntry(
                    job_range.first + place, job_range.change, kind_of(job_range, place), job_range, trait or Trait()
                )
            )
    return jobs


def written(h: Harness, action: Callable[[], object]) -> list[Record]:
    """The records that an action leaves."""
    before = h.store.ledger_extent()[1]
    action()
    return [entry.record for entry in entries(h, before - 1)]


def record(h: Harness, verb: str, action: Callable[[], object]) -> Record:
    """The one record that a call leaves besides what fell due."""
    own = [record for record in written(h, action) if record.verb != "maintain"]
    assert [record.verb for record in own] == [verb], f"one record of {verb} was due: {own}"
    return own[0]


def is_heartbeat(record: Record) -> bool:
    """A store may extend all that an owner holds at once: no job is named, `tick` is the new end of the leases."""
    return record.verb == "extend" and record.owner is not None and record.tick is not None and not record.ranges


def only(h: Harness, verb: str, action: Callable[[], object]) -> JobEntry:
    (one,) = job_changes(record(h, verb, action))
    return one


def matches(change: JobEntry, lease: Lease) -> bool:
    """Whether it is what the lease said."""
    job, job_range = lease.job, change.job_range
    return (
        job_range.queue,
        change.kind,
        job_range.delivery,
        job_range.attempt,
        job_range.enqueued_at,
        job_range.due_at,
        job_range.claimed_at,
    ) == (*(job.queue, job.kind, job.delivery, job.attempt, job.enqueued_at, job.due_at, job.claimed_at),)


@case_if(Need.DURABLE)
def a_batch_of_drafts_is_one_record(h: Harness) -> None:
    drafts = [h.draft(kind="plain"), h.draft(kind="odd", tenant="t", subject="s", key="k", priority=3)]
    drafts.append(h.draft(kind="later", delay=HOUR, max_attempts=7))
    ids: list[int] = []
    batch = record(h, "enqueue", lambda: ids.extend(receipt.id for receipt in h.send(*drafts)))
    jobs = job_changes(batch)
    assert [job.id for job in jobs] == ids
    assert {job.change for job in jobs} == {Change.ACCEPTED}
    for job in jobs:
        stored = h.get(job.id)
        assert (job.job_range.queue, job.kind) == (stored.queue, stored.kind)
        assert (job.job_range.enqueued_at, job.job_range.due_at) == (stored.enqueued_at, stored.due_at)
        assert job.job_range.max_attempts == stored.max_attempts
        own = (job.trait.tenant, job.trait.subject, job.trait.key, job.trait.priority)
        assert own == (stored.tenant, stored.subject, stored.key, stored.priority)
    assert batch.at == h.get(ids[0]).enqueued_at


@case_if(Need.DURABLE)
def a_hundred_alike_jobs_share_one_range(h: Harness) -> None:
    leases: list[Lease] = []
    for verb, action in (
        ("enqueue", lambda: h.enqueue(100)),
        ("claim", lambda: leases.extend(h.claim(100))),
        ("extend", lambda: h.store.extend(leases, LONG)),
        ("settle", lambda: h.store.settle([(lease, Ack()) for lease in leases])),
    ):
        reported_of = record(h, verb, action)
        assert [job_range.n for job_range in reported_of.ranges] == [100] or is_heartbeat(reported_of), (
            f"{verb}: {reported_of.ranges}"
        )


@case_if(Need.DURABLE)
def neighbours_that_differ_in_kind_alone_share_a_range_and_keep_their_kinds(h: Harness) -> None:
    kinds = ["plain", "odd", "plain", "rare"]
    h.send(*(h.draft(kind=kind) for kind in kinds))
    leases = h.claim(4)
    settled = record(h, "settle", lambda: h.store.settle([(lease, Ack()) for lease in leases]))
    assert [job_range.n for job_range in settled.ranges] == [4], settled.ranges
    assert [job.kind for job in job_changes(settled)] == kinds


@case_if(Need.DURABLE)
def a_claim_records_owner_jobs_and_lease_end(h: Harness) -> None:
    h.enqueue(3)
    h.advance(SECOND)
    leases: list[Lease] = []
    claim = record(h, "claim", lambda: leases.extend(h.claim(2, owner="ada")))
    assert claim.owner == "ada"
    for job, lease in zip(job_changes(claim), leases, strict=True):
        assert (job.change, job.id, job.job_range.until) == (Change.CLAIMED, lease.job.id, lease.until)
        assert matches(job, lease)


@case_if(Need.DURABLE)
def an_extension_records_the_new_end_of_surviving_leases(h: Harness) -> None:
    h.enqueue(2)
    lost, held = h.claim(2)
    h.ack(lost)
    survivors: list[Lease] = []
    job = only(h, "extend", lambda: survivors.extend(h.store.extend([lost, held], LONG)))
    (survivor,) = survivors
    assert (job.change, job.id, job.job_range.until) == (Change.EXTENDED, held.job.id, survivor.until)
    assert matches(job, survivor)


@case_if(Need.DURABLE)
def every_verdict_is_recorded_with_the_delivery_that_it_ends(h: Harness) -> None:
    h.spec("kept", retention=KeepFor(hours(1)))
    verdicts: list[tuple[str, Verdict, Change]] = [
        ("q", Ack(), Change.ACKED),
        ("q", Retry(h.short, ERROR), Change.RETRIED),
        ("q", DeadLetter(ERROR), Change.DIED),
        ("q", Release(h.short), Change.RELEASED),
        ("q", Cancel(), Change.DISCARDED),
        ("kept", Ack(b"1"), Change.ACKED),
        ("kept", Cancel(), Change.DISCARDED),
        ("q", Ack(b"1", HOUR), Change.ACKED),
        ("q", Cancel(HOUR), Change.DISCARDED),
    ]
    for queue, verdict, change in verdicts:
        h.one(queue=queue)
        h.advance(SECOND)
        lease = h.take(queue)
        end: list[Instant] = []

        def settle(lease: Lease = lease, verdict: Verdict = verdict) -> None:
            assert h.settle(lease, verdict) is Settled.APPLIED

        settled = record(h, "settle", settle)
        (job,) = job_changes(settled)
        assert (job.id, job.change) == (lease.job.id, change)
        assert matches(job, lease)
        match verdict:
            case Retry() | Release():
                end = [h.get(job.id).due_at]
            case DeadLetter():
                end = [0]
            case Ack(_, keep_for) | Cancel(keep_for):
                end = [settled.at + HOUR if queue == "kept" or keep_for else 0]
        assert [job.job_range.until] == end
        error = ("Boom", "it broke") if isinstance(verdict, Retry | DeadLetter) else (None, None)
        assert (job.trait.error_kind, job.trait.error) == error


@case_if(Need.DURABLE)
def a_later_attempt_records_its_own_due_time(h: Harness) -> None:
    job_id = h.one()
    h.fail(h.take(), after=h.short)
    h.advance(h.short)
    due_at = h.get(job_id).due_at
    second = h.take()
    job = only(h, "settle", lambda: h.ack(second))
    assert (job.job_range.delivery, job.job_range.attempt, job.job_range.due_at) == (2, 2, due_at)


@case_if(Need.DURABLE)
def a_batch_of_mixed_verdicts_is_one_record(h: Harness) -> None:
    h.enqueue(6)
    leases = h.claim(6)
    verdicts: list[Verdict] = [Ack(), Ack(), Retry(HOUR, ERROR), DeadLetter(ERROR), Release(HOUR), Ack()]
    settled = record(h, "settle", lambda: h.store.settle(list(zip(leases, verdicts, strict=True))))
    changes = {job.id: job.change for job in job_changes(settled)}
    expected = (Change.ACKED, Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.ACKED)
    assert [changes[lease.job.id] for lease in leases] == list(expected)


@case_if(Need.DURABLE)
def a_cancel_records_ended_jobs_and_requests_once(h: Harness) -> None:
    h.spec("kept", retention=KeepFor(hours(1)))
    running = h.one()
    lease = h.take()
    waiting, kept = h.one(delay=HOUR), h.one(queue="kept")
    cancel = record(h, "cancel", lambda: h.store.cancel([waiting, running, kept]))
    jobs = {job.id: job for job in job_changes(cancel)}
    assert {job_id: job.change for job_id, job in jobs.items()} == {
        waiting: Change.CANCELLED,
        kept: Change.CANCELLED,
        running: Change.CANCEL_REQUESTED,
    }
    assert (jobs[waiting].job_range.until, jobs[kept].job_range.until) == (0, cancel.at + HOUR)
    assert matches(jobs[running], lease)
    assert written(h, lambda: h.store.cancel([waiting, running, kept])) == []


@case_if(Need.DURABLE)
def a_redrive_and_a_purge_record_their_jobs(h: Harness) -> None:
    first, second, third = h.dead(), h.dead(), h.dead()
    job = only(h, "purge", lambda: h.store.purge_dead([third, third + 10**12]))
    assert (job.id, job.change, job.job_range.queue, job.kind) == (third, Change.PURGED, "q", "work")
    redrive = record(h, "redrive", lambda: h.store.redrive([first, first + 10**12]))
    assert [(job.id, job.change, job.job_range.until) for job in job_changes(redrive)] == [
        (first, Change.REDRIVEN, redrive.at)
    ]
    h.advance(1)
    job = only(h, "purge", lambda: h.store.purge(State.DEAD, h.now(), 10))
    assert (job.id, job.change, job.job_range.queue, job.kind) == (second, Change.PURGED, "q", "work")


@case_if(Need.DURABLE)
def jobs_that_fell_due_are_recorded_by_the_call_that_finds_them(h: Harness) -> None:
    h.spec("kept", retention=KeepFor(h.short_delta))
    h.one(queue="kept")
    kept = h.take("kept")
    h.ack(kept)
    late = h.one(expires_at=h.now() + h.short)
    h.advance(2 * h.short)
    records = written(h, lambda: [h.claim(), h.store.promote(1_000)])
    assert {record.verb for record in records} == {"maintain"}
    jobs = [job for record in records for job in job_changes(record)]
    assert sorted((job.id, job.change, job.job_range.queue) for job in jobs) == [
        (kept.job.id, Change.PURGED, "kept"),
        (late, Change.EXPIRED, "q"),
    ]


@case_if(Need.DURABLE)
def a_taken_slot_is_recorded_with_its_job(h: Harness) -> None:
    start = h.now()
    h.store.put_schedule(Schedule("nightly", "@daily", start, h.draft()))
    fire = record(h, "fire", lambda: h.store.fire("nightly", start, start + HOUR, h.draft()))
    assert (fire.name, fire.tick) == ("nightly", start)
    (job,) = job_changes(fire)
    assert (job.change, job.id) == (Change.ACCEPTED, h.jobs()[0].id)
    assert written(h, lambda: h.store.fire("nightly", start, start + HOUR, h.draft())) == []
    given_up = record(h, "fire", lambda: h.store.fire("nightly", start + HOUR, start + 2 * HOUR, None))
    assert (given_up.name, given_up.tick, given_up.ranges) == ("nightly", start + HOUR, [])


@case_if(Need.DURABLE)
def configuration_is_recorded_by_name(h: Harness) -> None:
    schedule = Schedule("nightly", "@daily", h.now(), h.draft())
    verbs: list[tuple[str, str, Callable[[], object]]] = [
        ("put_spec", "q", lambda: h.spec(capacity=Bounded(10))),
        ("pause", "q", lambda: h.store.pause("q")),
        ("resume", "q", lambda: h.store.resume("q")),
        ("set_gate", condition_gate("open"), lambda: h.store.set_gate(condition_gate("open"), 1)),
        ("put_schedule", "nightly", lambda: h.store.put_schedule(schedule)),
        ("drop_schedule", "nightly", lambda: h.store.drop_schedule("nightly")),
    ]
    for verb, name, action in verbs:
        reported_of = record(h, verb, action)
        assert (reported_of.name, reported_of.ranges) == (name, [])


@case_if(Need.DURABLE)
def a_call_that_changes_nothing_writes_no_record(h: Harness) -> None:
    h.enqueue(2)
    done, lost = h.claim(2)
    h.ack(done)
    h.release(lost)
    h.take()
    assert h.ack(done) is Settled.APPLIED
    for action in (
        lambda: h.claim(5),
        lambda: h.claim(5, "unknown"),
        lambda: h.store.promote(1_000),
        lambda: h.ack(done),
        lambda: h.release(lost),
        lambda: h.ack(lost),
        lambda: h.dead_letter(done),
        lambda: h.store.extend([done, lost], LONG),
        lambda: h.store.cancel([done.job.id, done.job.id + 10**12]),
        lambda: h.store.redrive([done.job.id, lost.job.id]),
        lambda: h.store.purge(State.DEAD, h.now(), 10),
        lambda: h.store.drop_schedule("unknown"),
        lambda: h.store.fire("unknown", h.now(), h.now() + HOUR, h.draft()),
        lambda: h.store.resume("q"),
        lambda: h.store.enqueue([]),
        lambda: h.store.settle([]),
        h.jobs,
        lambda: h.store.trim_ledger(10),
    ):
        assert written(h, action) == []


@case_if(Need.DURABLE)
def a_duplicate_writes_no_record_and_a_merge_names_its_job(h: Harness) -> None:
    h.spec("merging", merge=LatestWins())
    first = h.one(key="k")
    assert written(h, lambda: h.send(h.draft(key="k"), h.draft(key="k"))) == []
    waiting = h.one(queue="merging", subject="s", delay=HOUR)
    newer = h.draft(kind="newer", queue="merging", subject="s", delay=HOUR)
    batch = record(h, "enqueue", lambda: h.send(h.draft(key="k"), newer, h.draft()))
    jobs = {job.id: job for job in job_changes(batch)}
    assert first not in jobs
    assert sorted((job.change, job.id) for job in jobs.values())[1] == (Change.MERGED, waiting)
    assert (len(jobs), jobs[waiting].job_range.queue, jobs[waiting].kind) == (2, "merging", "newer")


@case_if(Need.DURABLE)
def a_refused_call_writes_no_record(h: Harness) -> None:
    h.spec("small", capacity=Bounded(2))
    h.one(key="k")
    for kind, drafts in (
        (QueueFull, [h.draft(queue="small")] * 3),
        (KeyConflict, [h.draft(), h.draft(key="k", kind="other")]),
        (Invalid, [h.draft(), "no draft"]),
    ):
        assert written(h, lambda kind=kind, drafts=drafts: refused(kind, lambda: h.send(*drafts))) == []  # type: ignore[misc]
    batch = record(h, "enqueue", lambda: h.enqueue(2))
    assert sum(job_range.n for job_range in batch.ranges) == 2


@case_if(Need.DURABLE)
def the_end_of_a_head_is_on_record_before_the_claim_of_the_next(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    head, following = h.one(subject="s", expires_at=h.now() + h.short), h.one(subject="s")
    h.advance(h.short + SECOND)
    records = written(h, h.take)
    changes = [(job.change, job.id) for each in records for job in job_changes(each)]
    assert changes.index((Change.EXPIRED, head)) < changes.index((Change.CLAIMED, following)), changes


@case_if(Need.DURABLE)
def a_log_is_its_own_record(h: Harness) -> None:
    h.spec("log", retention=Retained())

    def use() -> None:
        h.store.append("log", [b"1", b"2"])
        h.store.commit("log", "g", 0, 1)
        h.advance(1)
        h.store.trim("log", h.now(), 1)

    assert written(h, use) == []
