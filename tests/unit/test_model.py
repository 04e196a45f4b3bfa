"""The reference model on its own: it must say no to what a store could plausibly get wrong."""

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from forebay.core.entries import LogEntry
from forebay.core.errors import KeyConflict, OffsetGone, QueueFull
from forebay.core.instant import micros, seconds
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import (
    AtMost,
    Bounded,
    Eligibility,
    Fair,
    Immediate,
    InOrder,
    LatestWins,
    Rate,
    Retained,
    Until,
)
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.protocol import CancelAnswer, GateUse, Hold, Promotion, Want
from forebay_proof.model.model import Model

LEASE_LENGTHS = micros(seconds(5))
BOOM = Failure("Boom")


def show(model: Model, **changes: object) -> dict[int, Job | None]:
    """All jobs as a store would show them, but for the changes."""
    return {
        job_id: None if (item := model.jobs.items.get(job_id)) is None else replace(item.job, **changes)
        for job_id in model.intake.accepted
    }


def lease_of(model: Model, job_id: int, now: int, until: int | None = None) -> Lease:
    """What a store hands out if it hands out this job."""
    job, end = model.jobs.items[job_id].job, until or now + LEASE_LENGTHS
    held = {"owner": "w", "claimed_at": now, "lease_until": end, "state": State.RUNNING}
    return Lease(replace(job, attempt=job.attempt + 1, delivery=job.delivery + 1, **held), "w", end)


def claim(
    model: Model, job_id: int, now: int, until: int | None = None, count: int = 1, cls: str | None = None
) -> Lease:
    lease = lease_of(model, job_id, now, until)
    model.check_claim(now, [Want(model.jobs.items[job_id].job.queue, count, cls)], "w", LEASE_LENGTHS, [lease])
    model.observe(now, show(model))
    return lease


def nothing(model: Model, now: int, queue: str = "q") -> None:
    """A claim that comes back empty."""
    model.check_claim(now, [Want(queue, 1)], "w", LEASE_LENGTHS, [])


def ready(model: Model, *ids: int) -> dict[int, Job | None]:
    """What a store shows if these became ready; all that may, unless they are named."""
    chosen = ids or [item.job.id for item in model.jobs.in_state(State.WAITING) if model.jobs.exposed(item)]
    return {**show(model), **{each: replace(model.jobs.items[each].job, state=State.READY) for each in chosen}}


def filled(eligibility: Eligibility, *drafts: Draft, **axes: Any) -> Model:
    """Jobs of a queue `q`, all of them ready."""
    model = Model()
    model.put_spec(QueueSpec(name="q", eligibility=eligibility, **axes))
    model.intake.enqueue(0, list(drafts))
    model.observe(0, ready(model))
    return model


def test_keys_last_their_window_and_conflict_within_it() -> None:
    model, window = Model(), 300_000_000
    first = model.intake.enqueue(0, [Draft("k", 1, key="x")])[0]
    assert model.intake.enqueue(window - 1, [Draft("k", 1, key="x")])[0] == replace(first, duplicate=True)
    with pytest.raises(KeyConflict):
        model.intake.enqueue(window - 1, [Draft("k", 2, key="y"), Draft("k", 2, key="x")])
    assert model.intake.accepted == [first.id]
    assert model.intake.enqueue(window, [Draft("k", 2, key="x")])[0].id > first.id


def test_a_full_queue_takes_nothing_of_a_batch() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", capacity=Bounded(2)))
    model.intake.enqueue(0, [Draft("k", queue="q")] * 2)
    with pytest.raises(QueueFull, match="2 of 2"):
        model.intake.enqueue(0, [Draft("k"), Draft("k", queue="q")])
    assert model.intake.accepted == [1, 2]


def test_newer_work_merges_until_the_job_was_claimed() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", merge=LatestWins()))
    for payload in range(2):
        receipt = model.intake.enqueue(0, [Draft("k", payload, queue="q", subject="s")])[0]
        assert (receipt.id, receipt.merged) == (1, payload == 1)
    lease = claim(model, 1, 0)
    assert lease.job.payload == 1
    model.settle(0, [(lease, Retry(0, BOOM))])
    assert model.intake.enqueue(0, [Draft("k", 2, queue="q", subject="s")])[0].id == 2


def test_the_fence_decides_and_a_repeated_settle_is_applied() -> None:
    model = Model()
    model.intake.enqueue(0, [Draft("k")])
    first = claim(model, 1, 0)
    again = [(first, Release())]
    assert model.settle(1, again) == model.settle(1, again) == [Settled.APPLIED]
    second = claim(model, 1, 1)
    assert (second.job.attempt, second.job.delivery) == (1, 2)
    assert model.settle(2, [(first, Ack()), (second, Ack()), (second, Ack()), (second, Release())]) == [
        Settled.STALE,
        Settled.APPLIED,
        Settled.APPLIED,
        Settled.STALE,
    ]
    assert model.jobs.items == {}


def test_a_redrive_gives_lives_back_and_keeps_the_fence() -> None:
    model = Model()
    model.intake.enqueue(0, [Draft("k", max_attempts=1)])
    model.settle(3, [(claim(model, 1, 0), DeadLetter(BOOM))])
    assert model.redrive(4, [1, 1, 9]) == [1]
    job = model.jobs.items[1].job
    assert (job.state, job.attempt, job.delivery, job.due_at, job.finished_at) == (State.WAITING, 0, 1, 4, None)
    assert job.errors == (replace(BOOM, attempt=1, at=3),)


@pytest.mark.parametrize(
    ("draft", "now", "until", "complaint"),
    [
        (Draft("k", delay=5), 4, None, "before it was due"),
        (Draft("k", expires_at=4), 4, None, "after it had expired"),
        (Draft("k"), 4, 4 + LEASE_LENGTHS - 1, "as long as asked"),
        (Draft("k"), 4, 4 + LEASE_LENGTHS + LEASE_LENGTHS // 50, "as long as asked"),
    ],
)
def test_a_claim_that_may_not_be_is_refused(draft: Draft, now: int, until: int | None, complaint: str) -> None:
    model = Model()
    model.intake.enqueue(0, [draft])
    model.observe(0, ready(model) if draft.delay == 0 else show(model))
    with pytest.raises(AssertionError, match=complaint):
        claim(model, 1, now, until)


def job(**fields: Any) -> Draft:
    return Draft("k", queue="q", **fields)


def test_claims_follow_the_rank_and_leave_nothing_behind() -> None:
    model = filled(Immediate(), job(), job())
    with pytest.raises(AssertionError, match="job 2 starts before; 1"):
        claim(model, 2, 0)
    with pytest.raises(AssertionError, match="left jobs that had to be handed out"):
        nothing(model, 0)
    with pytest.raises(AssertionError, match="more was handed out"):
        model.check_claim(0, [Want("other", 1)], "w", LEASE_LENGTHS, [lease_of(model, 1, 0)])
    model.pause("q", 5)
    nothing(model, 4)
    with pytest.raises(AssertionError, match="paused"):
        claim(model, 1, 4)


def test_a_job_that_is_due_when_it_comes_is_ready_at_once() -> None:
    model = Model()
    model.intake.enqueue(0, [job(), job(delay=5)])
    with pytest.raises(AssertionError, match="job 1 is due and first in its line, and waits"):
        model.observe(0, show(model))
    model.observe(0, ready(model, 1))
    with pytest.raises(AssertionError, match="job 2 is ready before it is due"):
        model.observe(4, ready(model, 2))
    model.observe(5, show(model))
    model.observe(5, ready(model, 2))


@pytest.mark.parametrize(
    ("eligibility", "drafts"),
    [
        (AtMost(1), [job(), job()]),
        (AtMost(1, "subject"), [job(subject="s"), job(subject="s")]),
        (AtMost(3), [job(cost=2), job(cost=2)]),
        (Rate(1, seconds(1), burst=1), [job(), job()]),
        (Rate(9, seconds(9), "subject", burst=3), [job(subject="s", cost=2), job(subject="s", cost=2)]),
    ],
)
def test_a_start_for_which_there_is_no_room_is_noticed(eligibility: Eligibility, drafts: list[Draft]) -> None:
    model = filled(eligibility, *drafts)
    first = claim(model, 1, 0, count=1)
    with pytest.raises(AssertionError, match="job 2 starts at a closed gate"):
        claim(model, 2, 0)
    nothing(model, 0)
    model.settle(0, [(first, Ack())])
    if isinstance(eligibility, Rate):
        nothing(model, 999_999)
        with pytest.raises(AssertionError, match="left jobs that had to be handed out"):
            nothing(model, 1_000_000)
    else:
        with pytest.raises(AssertionError, match="left jobs that had to be handed out"):
            nothing(model, 0)


def test_the_numbers_of_the_spec_of_now_count_and_so_does_what_runs() -> None:
    model = filled(AtMost(1, "subject"), *[job(subject="s")] * 4)
    claim(model, 1, 0)
    nothing(model, 0)
    model.put_spec(QueueSpec(name="q", eligibility=AtMost(2)))
    claim(model, 2, 0)
    nothing(model, 0)
    model.put_spec(QueueSpec(name="q", eligibility=AtMost(3, "subject")))
    claim(model, 3, 0)
    nothing(model, 0)
    model.gates.set_gate("cap/q/subject/s", 4)
    with pytest.raises(AssertionError, match="left jobs that had to be handed out"):
        nothing(model, 0)


def test_a_small_job_that_passes_a_costly_one_is_noticed() -> None:
    costs = [job(tenant="a", cost=2), job(tenant="b", cost=3), job(tenant="c")]
    for eligibility in (AtMost(4), AtMost(4, "kind") & AtMost(9, "tenant")):
        model = filled(eligibility, *costs)
        claim(model, 1, 0)
        with pytest.raises(AssertionError, match=r"job 3 (starts before; 2|passes one that waits for room; \[2\])"):
            claim(model, 3, 0)
        nothing(model, 0)


def test_a_class_whose_turn_it_is_not_is_noticed() -> None:
    drafts = [job(tenant=tenant) for tenant in "aaaabbbb"]
    model = filled(AtMost(9), *drafts, share=Fair(weights={"a": 2}))
    claim(model, 1, 0)
    with pytest.raises(AssertionError, match="not of the class whose turn it is"):
        claim(model, 2, 0)
    claim(model, 5, 0)
    claim(model, 2, 0)
    with pytest.raises(AssertionError, match="job 4 starts before; 3"):
        claim(model, 4, 0)
    model.reopened()
    claim(model, 6, 0)
    claim(model, 3, 0)


def test_an_idle_class_that_saved_up_is_noticed() -> None:
    model = filled(Immediate(), *[job(tenant="a")] * 5, share=Fair())
    for job_id in (1, 2, 3):
        claim(model, job_id, 0)
    model.intake.enqueue(0, [job(tenant="b")] * 3)
    model.observe(0, ready(model))
    claim(model, 6, 0)
    claim(model, 7, 0)
    with pytest.raises(AssertionError, match="not of the class whose turn it is"):
        claim(model, 8, 0)


def test_only_the_head_of_a_line_is_exposed() -> None:
    model = filled(InOrder(), *[job(subject="s")] * 3)
    with pytest.raises(AssertionError, match="job 2 is ready behind; 1"):
        model.observe(0, ready(model, 2))
    lease = claim(model, 1, 0)
    with pytest.raises(AssertionError, match="claimed job 2 before; 1"):
        claim(model, 2, 0)
    model.settle(0, [(lease, Retry(5, BOOM))])
    model.observe(0, show(model))
    nothing(model, 4)
    model.settle(5, [(claim(model, 1, 5), DeadLetter(BOOM))])
    with pytest.raises(AssertionError, match="job 2 is due and first in its line, and waits"):
        model.observe(5, show(model))
    model.observe(5, ready(model, 2))
    model.redrive(6, [1])
    assert model.jobs.items[2].job.state is State.WAITING
    with pytest.raises(AssertionError, match="job 2 is"):
        model.observe(6, ready(model, 1, 2))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (None, "what holds job 3"),
        (Hold("cap/q", 3, 1, 1), "what holds job 3"),
        (Hold("cap/q", 2, 2, 1), "what holds job 3"),
        (Hold("cap/q", 2, 1, 0), "what holds job 3"),
        (Hold("cap/q", 2, 1, 1, head=2), "what holds job 3"),
        (Hold("cap/q", 2, 1, 1, opens_at=5), "what holds job 3"),
    ],
)
def test_a_wrong_hold_of_a_job_is_found(wrong: Hold | None, complaint: str) -> None:
    model = filled(AtMost(2), *[job(cost=cost) for cost in (1, 2, 1)])
    claim(model, 1, 0)
    truth = {1: None, 2: Hold("cap/q", 2, 1, 0), 3: Hold("cap/q", 2, 1, 1)}
    model.gates.check_holds(0, truth)
    with pytest.raises(AssertionError, match=complaint):
        model.gates.check_holds(0, {**truth, 3: wrong})


def test_a_wrong_hold_of_a_line_or_a_rate_is_found() -> None:
    model = filled(InOrder() & Rate(1, seconds(1), "kind"), *[job(subject="s")] * 3, job())
    claim(model, 1, 0)
    line = {2: Hold("order/q/subject/s", 1, 1, 0, 1), 3: Hold("order/q/subject/s", 1, 1, 1, 1)}
    rate = {4: Hold("rate/q/kind/k", 1, 0, 0, None, 1_000_000)}
    model.gates.check_holds(0, {**line, **rate})
    for wrong in ({3: line[2]}, {4: None}, {4: Hold("rate/q/kind/k", 1, 0, 0)}):
        with pytest.raises(AssertionError, match="what holds job"):
            model.gates.check_holds(0, {**line, **rate, **wrong})
    with pytest.raises(AssertionError, match="ahead of job 4"):
        model.gates.check_ahead(0, {4: 1})


def test_gates_that_are_listed_wrongly_are_noticed() -> None:
    model = filled(AtMost(2) & Rate(1, seconds(1), "kind", burst=3), job(cost=2), job())
    model.gates.check_uses(0, [])
    claim(model, 1, 0)
    truth = [GateUse("cap/q", 2, 2), GateUse("rate/q/kind/k", 3, 0)]
    model.gates.check_uses(0, truth)
    for wrong in ([], truth[:1], [GateUse("cap/q", 2, 1), truth[1]], [GateUse("cap/q", 3, 2), truth[1]]):
        with pytest.raises(AssertionError):
            model.gates.check_uses(0, wrong)
    model.gates.set_gate("until/x", 4)
    with pytest.raises(AssertionError, match="gates"):
        model.gates.check_uses(0, truth)


def test_the_opening_of_a_rate_is_announced_in_time() -> None:
    model = filled(Rate(1, seconds(1), burst=1), job(), job())
    claim(model, 1, 0)
    model.gates.check_next_due(0, 1_000_000)
    with pytest.raises(AssertionError, match="next due"):
        model.gates.check_next_due(0, None)
    with pytest.raises(AssertionError, match="next due"):
        model.gates.check_next_due(0, 1_000_001)
    model.gates.check_next_due(1_000_000, None)


def test_a_release_of_others_than_the_first_is_noticed() -> None:
    model = filled(Until("go"), *[job()] * 2)
    nothing(model, 0)
    with pytest.raises(AssertionError, match="how many passed until/go; 1; 2"):
        model.gates.check_release(0, "until/go", 1, 2)
    model.gates.check_release(0, "until/go", 1, 1)
    with pytest.raises(AssertionError, match="job 2 starts at a closed gate"):
        claim(model, 2, 0)
    claim(model, 1, 0)
    nothing(model, 0)


def test_a_promotion_that_forgets_someone_is_noticed() -> None:
    model = Model()
    model.intake.enqueue(0, [Draft("k", delay=1), Draft("k", delay=9)])
    model.observe(0, show(model))
    model.observe(1, show(model))
    with pytest.raises(AssertionError, match="left behind"):
        model.check_promotion(1, 1000, [], Promotion(0, 9))
    model.check_promotion(1, 1000, model.observe(1, ready(model, 1)), Promotion(1, 9))
    with pytest.raises(AssertionError, match="next due"):
        model.check_promotion(1, 1000, [], Promotion(0, None))


def test_what_is_gone_without_reason_is_noticed() -> None:
    model = Model()
    model.intake.enqueue(0, [Draft("k")])
    with pytest.raises(AssertionError, match="job 1 is"):
        model.observe(0, {1: None})
    assert model.cancel(0, [1, 1]) == [CancelAnswer.CANCELLED, CancelAnswer.GONE]
    model.observe(0, {1: None})


def test_a_tick_fires_once_for_ever() -> None:
    model = Model()
    schedule = Schedule("s", "@hourly", 10, Draft("k"))
    model.put_schedule(schedule)
    assert [model.fire(10, "s", 10, 20, Draft("k")) for _ in range(2)] == [True, False]
    model.drop_schedule("s")
    model.put_schedule(schedule)
    assert model.schedules["s"].last_at == 10
    assert not model.fire(11, "s", 10, 20, Draft("k"))
    assert model.intake.accepted == [1]


def test_logs_are_dense_and_keys_stay_together() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="log", retention=Retained(2)))
    numbers = count()
    for partition, offset in [(0, 0), (1, 0), (0, 1)]:
        entry = LogEntry(partition, offset, next(numbers), b"1", f"p{partition}")
        model.logs.check_append(entry.at, "log", [b"1"], [entry.key], [entry])
    with pytest.raises(AssertionError, match="dense"):
        model.logs.check_append(3, "log", [b"1"], [None], [LogEntry(0, 3, 3, b"1")])
    with pytest.raises(AssertionError, match="one partition"):
        model.logs.check_append(3, "log", [b"1"], ["p1"], [LogEntry(0, 2, 3, b"1", "p1")])
    model.logs.check_trim("log", 2, 9, 2, [(1, 2), (1, 1)])
    with pytest.raises(OffsetGone):
        model.logs.read("log", 0, -1, 9)
    assert [entry.offset for entry in model.logs.read("log", 0, 0, 9)] == [1]
    assert model.logs.commit(5, "log", "g", 0, 1) == model.logs.commit(5, "log", "g", 0, 0) == 1
    assert model.logs.commit(5, "log", "g", 0, 0, rewind=True) == model.logs.position("log", "g", 0) == 0
