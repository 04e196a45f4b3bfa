"""Acceptance: one receipt a draft, all or nothing, and what was accepted reads back as it was sent."""

from collections.abc import Callable
from functools import partial

from forebay.core.errors import BatchTooLarge, Closed, KeyConflict, QueueFull, WrongQueueKind
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_BATCH, PAYLOAD_BYTES
from forebay.core.outcome import Ack
from forebay.core.policy import Bounded, Retained, Routing
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Query, Want
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import LONG, SECOND, Harness


@case
def every_draft_gets_its_own_receipt_in_order(h: Harness) -> None:
    receipts = h.send(*[h.draft(payload=number) for number in range(5)])
    ids = [receipt.id for receipt in receipts]
    assert ids == sorted(set(ids))
    assert not any(receipt.duplicate or receipt.merged for receipt in receipts)
    assert [h.get(job_id).payload for job_id in ids] == [0, 1, 2, 3, 4]


@case
def a_receipt_says_whether_the_job_outlives_a_crash(h: Harness) -> None:
    (fresh,) = h.send(h.draft(key="k"))
    (again,) = h.send(h.draft(key="k"))
    assert fresh.durable is again.durable is h.store.capabilities.durable


@case
def an_accepted_job_reads_back_as_it_was_sent(h: Harness) -> None:
    start = h.now()
    draft = Draft(
        kind="mail.send",
        payload={"to": "ada"},
        queue=h.draft().queue,
        priority=-7,
        run_at=start + 3_600 * SECOND,
        deadline=start + 7_200 * SECOND,
        expires_at=start + 9_000 * SECOND,
        key="k 1/ä",
        tenant="t-1",
        subject="s 1/ä",
        max_attempts=3,
        meta={"trace": "abc", "empty": ""},
    )
    (receipt,) = h.send(draft)
    job = h.get(receipt.id)
    for field in "kind queue body priority deadline expires_at key tenant subject max_attempts meta".split():
        assert getattr(job, field) == getattr(draft, field), field
    assert job.due_at == draft.run_at
    assert start <= job.enqueued_at <= h.now()
    assert (job.state, job.attempt, job.delivery, job.errors) == (State.WAITING, 0, 0, ())
    assert (job.owner, job.claimed_at, job.lease_until, job.finished_at) == (None, None, None, None)
    assert (job.cancel_requested, job.result_body) == (False, None)


@case
def every_kind_of_json_comes_back_equal(h: Harness) -> None:
    payloads = [
        None,
        True,
        0,
        -(2**63),
        2**64 - 1,
        1.5,
        -0.0,
        1e308,
        "",
        "ä\U0001f600\u2028\x01\x7f",
        [],
        {},
        [[[]], {"": [None]}],
        {"a": {"b": [1, "2", 3.0, False]}, "ключ": "значение"},
    ]
    ids = [receipt.id for receipt in h.send(*[h.draft(payload=payload) for payload in payloads])]
    assert [h.get(job_id).payload for job_id in ids] == payloads
    assert [lease.job.payload for lease in h.claim(len(ids))] == payloads


@case
def the_largest_payload_is_kept(h: Harness) -> None:
    text = "x" * (PAYLOAD_BYTES - 2)
    job_id = h.one(payload=text)
    assert h.take().job.payload == text
    assert h.get(job_id).payload == text


@case
def a_payload_may_be_sent_as_json_bytes(h: Harness) -> None:
    job_id = h.one(body=b'{ "a" : [1, 2] }')
    assert h.get(job_id).payload == {"a": [1, 2]}


@case
def changing_a_payload_after_it_was_sent_changes_nothing(h: Harness) -> None:
    payload = {"n": 1}
    job_id = h.one(payload=payload)
    payload["n"] = 2
    assert h.get(job_id).payload == {"n": 1}


@case
def changing_meta_after_it_was_sent_changes_nothing(h: Harness) -> None:
    meta = {"trace": "sent"}
    job_id = h.one(meta=meta)
    meta["trace"] = "changed"
    assert h.get(job_id).meta == {"trace": "sent"}


@case
def ids_grow_from_batch_to_batch(h: Harness) -> None:
    ids = h.enqueue(3) + h.enqueue(1) + h.enqueue(1, queue="other") + h.enqueue(2)
    assert ids == sorted(set(ids))


@case
def an_id_is_never_used_again(h: Harness) -> None:
    first = h.enqueue(3)
    h.drain()
    later = h.enqueue(3)
    assert min(later) > max(first)


@case_if(Need.DURABLE)
def an_id_is_never_used_again_after_a_reopening(h: Harness) -> None:
    first = h.enqueue(3)
    h.drain()
    h.reopen()
    assert h.one() > max(first)


@case
def an_empty_batch_is_accepted_and_changes_nothing(h: Harness) -> None:
    with h.unchanged():
        assert h.send() == []


@case
def the_largest_batch_is_accepted_whole(h: Harness) -> None:
    ids = h.enqueue(MAX_BATCH)
    assert len(set(ids)) == MAX_BATCH
    assert h.backlog().depth == MAX_BATCH


@case
def a_batch_over_the_limit_is_refused_whole(h: Harness) -> None:
    with h.unchanged():
        error = refused(BatchTooLarge, lambda: h.enqueue(MAX_BATCH + 1))
    assert (error.verb, error.size, error.limit) == ("enqueue", MAX_BATCH + 1, MAX_BATCH)


@case
def a_batch_that_meets_a_full_queue_enqueues_nothing_anywhere(h: Harness) -> None:
    h.spec("small", capacity=Bounded(1))
    with h.unchanged():
        refused(QueueFull, lambda: h.send(h.draft(), h.draft(queue="small"), h.draft(queue="small"), h.draft()))
    h.nothing_left("q", "small")


@case
def a_batch_with_a_conflicting_key_enqueues_nothing(h: Harness) -> None:
    h.one(key="k", payload=1)
    with h.unchanged():
        refused(KeyConflict, lambda: h.send(h.draft(key="new"), h.draft(key="k", payload=2)))
    assert not h.send(h.draft(key="new", payload="other"))[0].duplicate


@case
def a_batch_with_a_log_in_it_enqueues_nothing(h: Harness) -> None:
    h.spec("log", retention=Retained())
    with h.unchanged():
        refused(WrongQueueKind, lambda: h.send(h.draft(), h.draft(queue="log")))


@case
def a_refused_batch_creates_no_queue(h: Harness) -> None:
    h.spec("small", capacity=Bounded(1))
    refused(QueueFull, lambda: h.send(h.draft(queue="typo"), *[h.draft(queue="small")] * 2))
    assert "typo" not in [backlog.queue for backlog in h.store.backlog()]


@case
def a_queue_needs_no_configuration(h: Harness) -> None:
    job_id = h.one(queue="never-configured")
    lease = h.take("never-configured")
    assert (lease.job.id, lease.job.max_attempts) == (job_id, Routing().max_attempts)


@case
def a_job_is_claimed_from_its_own_queue_only(h: Harness) -> None:
    here, there = h.one(), h.one(queue="other")
    assert h.drain() == [here]
    assert h.drain("other") == [there]
    h.nothing_left("q", "other")


@case
def max_attempts_come_from_the_draft_or_else_from_the_queue(h: Harness) -> None:
    h.spec(routing=Routing(max_attempts=4))
    plain, special = h.send(h.draft(), h.draft(max_attempts=9))
    assert (h.get(plain.id).max_attempts, h.get(special.id).max_attempts) == (4, 9)


@case
def an_accepted_job_keeps_its_max_attempts_when_the_spec_changes(h: Harness) -> None:
    h.spec(routing=Routing(max_attempts=4))
    job_id = h.one()
    h.spec(routing=Routing(max_attempts=2))
    assert h.get(job_id).max_attempts == 4
    assert h.get(h.one()).max_attempts == 2


@case
def a_closed_store_refuses_every_verb(h: Harness) -> None:
    lease = (h.enqueue(1), h.take())[1]
    h.spec("log", retention=Retained())
    h.store.close()
    spec = QueueSpec(name="later")
    verbs: list[Callable[[], object]] = [
        partial(h.store.enqueue, [h.draft()]),
        partial(h.store.promote, 1),
        partial(h.store.claim, [Want("q", 1)], "worker", LONG),
        partial(h.store.extend, [lease], LONG),
        partial(h.store.settle, [(lease, Ack())]),
        partial(h.store.overdue, 1),
        partial(h.store.cancel, [lease.job.id]),
        partial(h.store.redrive, [lease.job.id]),
        partial(h.store.purge, State.DEAD, 0, 1),
        partial(h.store.get, [lease.job.id]),
        partial(h.store.browse, Query(), 0, 1),
        partial(h.store.backlog),
        partial(h.store.put_spec, spec),
        partial(h.store.specs),
        partial(h.store.pause, "q"),
        partial(h.store.set_gate, "until/x", 1),
        partial(h.store.schedules),
        partial(h.store.append, "log", [b"1"]),
        partial(h.store.read, "log", 0, -1, 1),
        partial(h.store.wait, ["q"], LONG),
    ]
    for verb in verbs:
        refused(Closed, verb)


@case
def closing_twice_is_harmless(h: Harness) -> None:
    h.store.close()
    h.store.close()


@case_if(Need.DURABLE)
def accepted_jobs_outlive_a_reopening(h: Harness) -> None:
    h.enqueue(3, payload={"a": 1}, priority=2, tenant="t", subject="s", meta={"m": "1"}, max_attempts=2)
    h.enqueue(1, delay=3_600 * SECOND)
    before = h.jobs()
    h.reopen()
    assert h.jobs() == before
    assert [lease.job.id for lease in h.claim(10)] == [job.id for job in before[:3]]
