"""The reference model on its own: it must say no to what a store could plausibly get wrong."""

from itertools import count

import pytest
from msgspec.structs import replace

from forebay.core.errors import KeyConflict, OffsetGone, QueueFull
from forebay.core.event import LogEntry
from forebay.core.instant import micros, seconds
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import AtMost, Bounded, InOrder, LatestWins, Rate, Retained, Until
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.protocol import CancelAnswer, Hold, Promotion, Want
from forebay.testing.model import Model

SPAN = micros(seconds(5))
BOOM = Failure("Boom")


def show(model: Model, **changes: object) -> dict[int, Job | None]:
    """All jobs as a store would show them, but for the changes."""
    return {
        job_id: None if (item := model.items.get(job_id)) is None else replace(item.job, **changes)
        for job_id in model.accepted
    }


def lease_of(model: Model, job_id: int, now: int, until: int | None = None) -> Lease:
    """What a store hands out if it hands out this job."""
    job, end = model.items[job_id].job, until or now + SPAN
    held = {"owner": "w", "claimed_at": now, "lease_until": end, "state": State.RUNNING}
    return Lease(replace(job, attempt=job.attempt + 1, delivery=job.delivery + 1, **held), "w", end)


def claim(model: Model, job_id: int, now: int, until: int | None = None) -> Lease:
    lease, wants = lease_of(model, job_id, now, until), [Want(model.items[job_id].job.queue, 1)]
    model.claimed(now, wants, "w", SPAN, [lease])
    model.observe(now, show(model))
    model.claimed_in_order(now, wants, [lease])
    return lease


def test_keys_last_their_window_and_conflict_within_it() -> None:
    model, window = Model(), 300_000_000
    first = model.enqueue(0, [Draft("k", 1, key="x")])[0]
    assert model.enqueue(window - 1, [Draft("k", 1, key="x")])[0] == replace(first, duplicate=True)
    with pytest.raises(KeyConflict):
        model.enqueue(window - 1, [Draft("k", 2, key="y"), Draft("k", 2, key="x")])
    assert model.accepted == [first.id]
    assert model.enqueue(window, [Draft("k", 2, key="x")])[0].id > first.id


def test_a_full_queue_takes_nothing_of_a_batch() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", capacity=Bounded(2)))
    model.enqueue(0, [Draft("k", queue="q")] * 2)
    with pytest.raises(QueueFull, match="2 of 2"):
        model.enqueue(0, [Draft("k"), Draft("k", queue="q")])
    assert model.accepted == [1, 2]


def test_newer_work_merges_until_the_job_was_claimed() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", merge=LatestWins()))
    for payload in range(2):
        receipt = model.enqueue(0, [Draft("k", payload, queue="q", subject="s")])[0]
        assert (receipt.id, receipt.merged) == (1, payload == 1)
    lease = claim(model, 1, 0)
    assert lease.job.payload == 1
    model.settle(0, [(lease, Retry(0, BOOM))])
    assert model.enqueue(0, [Draft("k", 2, queue="q", subject="s")])[0].id == 2


def test_the_fence_decides_and_a_repeated_settle_is_applied() -> None:
    model = Model()
    model.enqueue(0, [Draft("k")])
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
    assert model.items == {}


def test_a_redrive_gives_lives_back_and_keeps_the_fence() -> None:
    model = Model()
    model.enqueue(0, [Draft("k", max_attempts=1)])
    model.settle(3, [(claim(model, 1, 0), DeadLetter(BOOM))])
    assert model.redrive(4, [1, 1, 9]) == [1]
    job = model.items[1].job
    assert (job.state, job.attempt, job.delivery, job.due_at, job.finished_at) == (State.WAITING, 0, 1, 4, None)
    assert job.errors == (replace(BOOM, attempt=1, at=3),)


@pytest.mark.parametrize(
    ("draft", "now", "until", "complaint"),
    [
        (Draft("k", delay=5), 4, None, "before it was due"),
        (Draft("k", expires_at=4), 4, None, "after it had expired"),
        (Draft("k"), 4, 4 + SPAN - 1, "as long as asked"),
        (Draft("k"), 4, 4 + SPAN + SPAN // 50, "as long as asked"),
    ],
)
def test_a_claim_that_may_not_be_is_refused(draft: Draft, now: int, until: int | None, complaint: str) -> None:
    model = Model()
    model.enqueue(0, [draft])
    with pytest.raises(AssertionError, match=complaint):
        claim(model, 1, now, until)


def test_claims_follow_the_rank_and_leave_nothing_behind() -> None:
    model = Model()
    model.enqueue(0, [Draft("k"), Draft("k")])
    with pytest.raises(AssertionError, match="passed over"):
        claim(model, 2, 0)
    with pytest.raises(AssertionError, match="fewer came"):
        model.claimed_in_order(0, [Want("default", 1)], [])
    model.pause("default", 5)
    model.claimed_in_order(4, [Want("default", 1)], [])
    with pytest.raises(AssertionError, match="paused"):
        claim(model, 1, 4)


@pytest.mark.parametrize(
    ("eligibility", "ids", "complaint"),
    [(InOrder(), [2], "before; 1"), (AtMost(1, "subject"), [1, 2], "slots and holders; 1; 2")],
)
def test_a_gate_that_lets_too_many_in_is_noticed(eligibility: InOrder | AtMost, ids: list[int], complaint: str) -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", eligibility=eligibility))
    model.enqueue(0, [Draft("k", queue="q", subject="s")] * 2)
    ready = show(model, state=State.READY)
    with pytest.raises(AssertionError, match=complaint):
        model.observe(0, {**show(model), **{job_id: ready[job_id] for job_id in ids}})


def test_a_start_that_its_rate_does_not_allow_is_noticed() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", eligibility=Rate(1, seconds(1), burst=1)))
    model.enqueue(0, [Draft("k", queue="q")] * 3)
    with pytest.raises(AssertionError, match="nobody claims"):
        model.observe(0, {**show(model), 1: replace(model.items[1].job, state=State.READY)})
    claim(model, 1, 0)
    with pytest.raises(AssertionError, match="before it opened"):
        model.claimed(999_999, [Want("q", 1)], "w", SPAN, [lease_of(model, 2, 999_999)])
    with pytest.raises(AssertionError, match="fewer came"):
        model.claimed_in_order(1_000_000, [Want("q", 1)], [])
    with pytest.raises(AssertionError, match="in time"):
        model.next_due(999_999, None)
    claim(model, 2, 1_000_000)


def test_who_passes_one_that_waits_for_room_is_noticed() -> None:
    model = _at_a_cap()
    model.held_by(0, _HELD)
    with pytest.raises(AssertionError, match=r"let job 3 pass; \[2\]"):
        model.observe(0, {**show(model), 3: replace(model.items[3].job, state=State.READY)})


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (None, "is due, and held"),
        (Hold("cap/q", 3, 1, 2, 1), "slots of cap/q"),
        (Hold("cap/q", 2, 2, 2, 1), "what holds job 3"),
        (Hold("cap/q", 2, 1, 1, 1), "what holds job 3"),
        (Hold("cap/q", 2, 1, 2, 0), "what holds job 3"),
        (Hold("cap/q", 2, 1, 2, 1, head=2), "what holds job 3"),
        (Hold("cap/q", 2, 1, 2, 1, opens_at=5), "is no rate"),
    ],
)
def test_a_lie_about_what_holds_a_job_is_noticed(lie: Hold | None, complaint: str) -> None:
    model = _at_a_cap()
    with pytest.raises(AssertionError, match=complaint):
        model.held_by(0, {**_HELD, 3: lie})


def test_a_release_of_others_than_the_first_is_noticed() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="q", eligibility=Until("go")))
    model.enqueue(0, [Draft("k", queue="q")] * 2)
    model.held_by(0, {job_id: Hold("until/go", 0, 0, 2, job_id - 1) for job_id in (1, 2)})
    with pytest.raises(AssertionError, match="how many passed until/go; 1; 2"):
        model.released(0, "until/go", 1, 2)
    model.released(0, "until/go", 1, 1)
    with pytest.raises(AssertionError, match="slots and holders; 0; 1"):
        model.observe(0, {**show(model), 2: replace(model.items[2].job, state=State.READY)})


_HELD = {2: Hold("cap/q", 2, 1, 2, 0), 3: Hold("cap/q", 2, 1, 2, 1)}


def _at_a_cap() -> Model:
    """One holds a slot of two, one waits for both, and one behind it for one."""
    model = Model()
    model.put_spec(QueueSpec(name="q", eligibility=AtMost(2)))
    model.enqueue(0, [Draft("k", queue="q", cost=cost) for cost in (1, 2, 1)])
    claim(model, 1, 0)
    return model


def test_a_promotion_that_forgets_someone_is_noticed() -> None:
    model = Model()
    model.enqueue(0, [Draft("k"), Draft("k", delay=9)])
    model.observe(1, show(model))
    with pytest.raises(AssertionError, match="left behind"):
        model.promoted(1, 1000, [], Promotion(0, 9))
    ready = model.observe(1, {**show(model), 1: replace(model.items[1].job, state=State.READY)})
    model.promoted(1, 1000, ready, Promotion(1, 9))
    with pytest.raises(AssertionError, match="next due"):
        model.promoted(1, 1000, [], Promotion(0, None))


def test_what_is_gone_without_reason_is_noticed() -> None:
    model = Model()
    model.enqueue(0, [Draft("k")])
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
    assert model.accepted == [1]


def test_logs_are_dense_and_keys_stay_together() -> None:
    model = Model()
    model.put_spec(QueueSpec(name="log", retention=Retained(2)))
    numbers = count()
    for partition, offset in [(0, 0), (1, 0), (0, 1)]:
        entry = LogEntry(partition, offset, next(numbers), b"1", f"p{partition}")
        model.appended(entry.at, "log", [b"1"], [entry.key], [entry])
    with pytest.raises(AssertionError, match="dense"):
        model.appended(3, "log", [b"1"], [None], [LogEntry(0, 3, 3, b"1")])
    with pytest.raises(AssertionError, match="one partition"):
        model.appended(3, "log", [b"1"], ["p1"], [LogEntry(0, 2, 3, b"1", "p1")])
    model.trimmed("log", 2, 9, 2, [(1, 2), (1, 1)])
    with pytest.raises(OffsetGone):
        model.read("log", 0, -1, 9)
    assert [entry.offset for entry in model.read("log", 0, 0, 9)] == [1]
    assert model.commit(5, "log", "g", 0, 1) == model.commit(5, "log", "g", 0, 0) == 1
    assert model.commit(5, "log", "g", 0, 0, rewind=True) == model.position("log", "g", 0) == 0
