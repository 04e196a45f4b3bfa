"""`JobQueue` on a clock that the tests turn: keys, timeouts, deliveries, delays, dead letters, numbers, shutdown.

Threads are real where something sleeps; they are waited for on the clock (`until_asleep`), never by sleeping.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar, cast

import pytest

from forebay.core.errors import Closed, ForebayError, Invalid, KeyConflict
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.core.policy import While
from forebay.core.spec import QueueSpec
from forebay.queue import Job, JobQueue
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Want
from forebay.testing.clock import ManualClock
from tests.waiting import PATIENCE

SECOND = 1_000_000

T = TypeVar("T")


class Background(Thread, Generic[T]):
    """A call in a thread of its own, and its answer."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.answer: T | BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.answer = error

    def result(self) -> T | BaseException | None:
        self.join(PATIENCE)
        assert not self.is_alive(), "it still sleeps"
        return self.answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> JobQueue:
    return JobQueue(clock=clock)


def memory(queue: JobQueue) -> MemoryStore:
    return cast(MemoryStore, queue._store)


def taken(queue: JobQueue, visibility_timeout: float | None = None) -> Job:
    job = queue.dequeue(visibility_timeout)
    assert job is not None
    return job


def delivered(job: Job | BaseException | None) -> tuple[int, int]:
    assert isinstance(job, Job), job
    return job.job_id, job.delivery_count


def test_a_job_goes_round_once(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue({"to": ["ada"]})
    assert type(job_id) is int
    job = taken(queue)
    assert job == Job(job_id, {"to": ["ada"]}, 1, clock.now() / SECOND)
    assert queue.dequeue() is None
    assert queue.ack(job_id) is True
    assert queue.ack(job_id) is False
    clock.advance(10**12)
    assert queue.dequeue() is None


def test_jobs_come_in_the_order_they_went_in(queue: JobQueue) -> None:
    ids = [queue.enqueue(number) for number in range(20)]
    assert [taken(queue).job_id for _ in ids] == ids


def test_what_is_not_json_is_refused_and_not_kept(queue: JobQueue) -> None:
    with pytest.raises(Invalid, match=r"\$\.x"):
        queue.enqueue({"x": object()})
    assert queue.stats()["visible"] == 0


# Keys


def test_a_key_is_the_same_job_while_it_is_visible_in_flight_and_done(queue: JobQueue) -> None:
    first = queue.enqueue("x", idempotency_key="k")
    assert queue.enqueue("x", idempotency_key="k") == first
    taken(queue)
    assert queue.enqueue("x", idempotency_key="k") == first
    queue.ack(first)
    assert queue.enqueue("x", idempotency_key="k") == first
    assert queue.dequeue() is None


def test_a_key_is_forgotten_when_its_window_ends_and_not_before(clock: ManualClock) -> None:
    queue = JobQueue(idempotency_ttl=60, clock=clock)
    first = queue.enqueue("x", "k")
    clock.advance(60 * SECOND - 1)
    assert queue.enqueue("x", "k") == first
    clock.advance(1)
    second = queue.enqueue("x", "k")
    assert second != first
    clock.advance(59 * SECOND)
    assert queue.enqueue("x", "k") == second
    assert queue.stats()["visible"] == 2


def test_the_window_counts_from_the_first_time_and_a_duplicate_does_not_stretch_it(clock: ManualClock) -> None:
    queue = JobQueue(idempotency_ttl=60, clock=clock)
    first = queue.enqueue("x", "k")
    clock.advance(40 * SECOND)
    assert queue.enqueue("x", "k") == first
    clock.advance(20 * SECOND)
    assert queue.enqueue("x", "k") != first


def test_a_key_with_another_payload_is_an_error_and_changes_nothing(queue: JobQueue) -> None:
    first = queue.enqueue({"a": 1, "b": 2}, "k")
    assert queue.enqueue({"b": 2, "a": 1}, "k") == first
    with pytest.raises(KeyConflict) as conflict:
        queue.enqueue({"a": 1}, "k")
    assert (conflict.value.key, conflict.value.job_id) == ("k", first)
    assert queue.stats()["visible"] == 1


def test_without_a_key_everything_is_new(queue: JobQueue) -> None:
    assert queue.enqueue("x") != queue.enqueue("x")
    assert queue.stats()["dedup_keys"] == 0


def test_the_memory_of_keys_is_bounded_by_their_window(clock: ManualClock) -> None:
    """A hundred keys a second for ten windows: never more than a window's worth and a second's are kept."""
    queue = JobQueue(idempotency_ttl=10, clock=clock)
    most = 0
    for number in range(10_000):
        queue.enqueue(number, f"key-{number}")
        queue.ack(taken(queue).job_id)
        clock.advance(10_000)
        most = max(most, len(memory(queue).backend.session.facts.keys))
    assert 1_000 <= most <= 1_110
    clock.advance(11 * SECOND)
    queue.enqueue("x")
    queue.stats()
    assert queue.stats()["dedup_keys"] == 0


def test_keys_by_state_are_forgotten_with_their_jobs(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    store.put_spec(QueueSpec(name="q", unique=While()))
    for number in range(1_000):
        store.enqueue([Draft("k", queue="q", key=f"key-{number}")])
        store.settle([(lease, Ack()) for lease in store.claim([Want("q", 1)], "w", seconds(10))])
    assert len(store.backend.session.facts.keys) <= 2


def test_a_key_costs_the_same_whatever_the_number_of_keys() -> None:
    def fastest(keys: int) -> float:
        clock = ManualClock()
        queue = JobQueue(idempotency_ttl=keys / 1_000, clock=clock)
        times = []
        for number in range(keys + 1_000):
            before = time.process_time_ns()
            queue.enqueue(number, f"key-{number}")
            if number >= keys:
                times.append(time.process_time_ns() - before)
            clock.advance(1_000)
        return sorted(times)[len(times) // 2]

    assert fastest(20_000) < 10 * fastest(1_000)


# Timeouts


def test_a_job_is_yours_for_the_timeout_and_then_visible_again(clock: ManualClock) -> None:
    queue = JobQueue(default_visibility_timeout=10, clock=clock)
    job_id = queue.enqueue("x")
    assert delivered(queue.dequeue()) == (job_id, 1)
    clock.advance(10 * SECOND - 1)
    assert queue.dequeue() is None
    clock.advance(SECOND // 10)
    assert delivered(queue.dequeue()) == (job_id, 2)


def test_the_timeout_may_be_chosen_at_each_call(queue: JobQueue, clock: ManualClock) -> None:
    short, long = queue.enqueue("short"), queue.enqueue("long")
    taken(queue, visibility_timeout=1)
    taken(queue, visibility_timeout=100)
    clock.advance(2 * SECOND)
    assert taken(queue).job_id == short
    assert queue.dequeue() is None
    clock.advance(100 * SECOND)
    assert {taken(queue).job_id, taken(queue).job_id} == {short, long}


def test_thirty_seconds_are_the_default(queue: JobQueue, clock: ManualClock) -> None:
    queue.enqueue("x")
    taken(queue)
    clock.advance(30 * SECOND - 1)
    assert queue.stats()["in_flight"] == 1
    clock.advance(SECOND)
    assert queue.stats() == {"visible": 1, "in_flight": 0, "waiting": 0, "dead": 0, "dedup_keys": 0}


def test_deliveries_are_counted_over_timeouts_and_nacks(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue("x")
    for delivery in range(1, 8):
        assert delivered(queue.dequeue()) == (job_id, delivery)
        if delivery % 2:
            assert queue.nack(job_id) is True
        else:
            clock.advance(31 * SECOND)


def test_an_ack_after_the_timeout_counts_until_the_job_is_claimed_again(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue("x")
    taken(queue)
    clock.advance(3_600 * SECOND)
    assert queue.ack(job_id) is True
    assert queue.dequeue() is None


def test_an_ack_after_the_job_went_back_is_refused(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue("x")
    taken(queue)
    clock.advance(31 * SECOND)
    assert queue.stats()["visible"] == 1
    assert queue.ack(job_id) is False
    assert queue.nack(job_id) is False
    assert delivered(queue.dequeue()) == (job_id, 2)


def test_an_ack_by_id_means_the_newest_delivery(queue: JobQueue, clock: ManualClock) -> None:
    """An id does not identify the holder: either ack completes the job, once."""
    job_id = queue.enqueue("x")
    taken(queue)
    clock.advance(31 * SECOND)
    assert delivered(queue.dequeue()) == (job_id, 2)
    assert queue.ack(job_id) is True
    assert queue.ack(job_id) is False
    assert queue.deliveries() == {2: 1}
    assert queue.stats()["in_flight"] == 0


@pytest.mark.parametrize("job_id", [0, -1, 999, 10**30])
def test_a_job_without_a_holder_cannot_be_settled(queue: JobQueue, job_id: int) -> None:
    queue.enqueue("x")
    assert queue.ack(job_id) is False
    assert queue.nack(job_id) is False


# Nacks


def test_a_nack_makes_it_visible_at_once(queue: JobQueue) -> None:
    job_id = queue.enqueue("x")
    taken(queue)
    assert queue.nack(job_id) is True
    assert delivered(queue.dequeue()) == (job_id, 2)


def test_a_delayed_nack_returns_at_once_and_the_job_is_waiting_not_in_flight(
    queue: JobQueue, clock: ManualClock
) -> None:
    job_id = queue.enqueue("x")
    taken(queue)
    before = time.perf_counter()
    assert queue.nack(job_id, requeue_delay=60) is True
    assert time.perf_counter() - before < 5
    assert queue.stats() == {"visible": 0, "in_flight": 0, "waiting": 1, "dead": 0, "dedup_keys": 0}
    assert queue.ack(job_id) is False
    clock.advance(60 * SECOND - 1)
    assert queue.dequeue() is None
    clock.advance(1)
    assert delivered(queue.dequeue()) == (job_id, 2)


def test_a_delayed_job_does_not_hold_up_the_others(queue: JobQueue) -> None:
    first, second = queue.enqueue(1), queue.enqueue(2)
    taken(queue)
    queue.nack(first, requeue_delay=60)
    assert taken(queue).job_id == second


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), 1e12, "5", None])
def test_an_absurd_delay_is_refused_and_the_job_stays_in_hand(queue: JobQueue, delay: Any) -> None:
    job_id = queue.enqueue("x")
    taken(queue)
    with pytest.raises(Invalid):
        queue.nack(job_id, requeue_delay=delay)
    assert queue.stats()["in_flight"] == 1
    assert queue.ack(job_id) is True


# Dead letters


@pytest.mark.parametrize("max_redeliveries", [0, 1, 4])
@pytest.mark.parametrize("way", ["nack", "timeout", "delayed nack"])
def test_a_job_is_delivered_exactly_so_often_and_the_handler_sees_it_once(
    clock: ManualClock, max_redeliveries: int, way: str
) -> None:
    reported: list[Job] = []
    queue = JobQueue(max_redeliveries=max_redeliveries, dlq_handler=reported.append, clock=clock)
    job_id = queue.enqueue("poison")
    deliveries = 0
    while (job := queue.dequeue()) is not None:
        deliveries += 1
        if way != "timeout":
            queue.nack(job.job_id, 5 if way == "delayed nack" else 0)
        clock.advance(31 * SECOND)
    queue.stats()
    assert deliveries == max_redeliveries + 1
    assert reported == [Job(job_id, "poison", deliveries, reported[0].enqueued_at)]
    assert queue.stats()["dead"] == 1
    assert not queue._leases, "what is not in hand is not held on to"
    assert queue.ack(job_id) is False


def test_without_a_limit_a_job_is_delivered_for_ever(queue: JobQueue) -> None:
    job_id = queue.enqueue("x")
    for _ in range(300):
        taken(queue)
        queue.nack(job_id)
    assert delivered(queue.dequeue()) == (job_id, 301)
    assert queue.stats()["dead"] == 0


def test_a_handler_that_fails_is_survived_and_logged(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def handler(job: Job) -> None:
        raise RuntimeError("no disk for dead letters")

    queue = JobQueue(max_redeliveries=0, dlq_handler=handler, clock=clock)
    first, second = queue.enqueue(1), queue.enqueue(2)
    with caplog.at_level(logging.ERROR, "forebay.queue"):
        taken(queue)
        assert queue.nack(first) is True
    assert f"job {first}" in caplog.text
    assert "no disk for dead letters" in caplog.text
    assert queue.stats()["dead"] == 1
    assert taken(queue).job_id == second


def test_a_handler_may_use_the_queue(clock: ManualClock) -> None:
    reporting: JobQueue

    def handler(job: Job) -> None:
        reporting.enqueue({"report": job.job_id})

    reporting = JobQueue(max_redeliveries=0, dlq_handler=handler, clock=clock)
    job_id = reporting.enqueue("x")
    taken(reporting)
    clock.advance(31 * SECOND)
    assert taken(reporting).payload == {"report": job_id}


# Numbers


def test_stats_count_every_job_once(queue: JobQueue) -> None:
    for number in range(6):
        queue.enqueue(number, f"key-{number}" if number < 4 else None)
    for _ in range(4):
        taken(queue)
    queue.ack(1)
    queue.nack(2, 60)
    assert queue.stats() == {"visible": 2, "in_flight": 2, "waiting": 1, "dead": 0, "dedup_keys": 4}


def test_the_distribution_of_deliveries_counts_what_was_acknowledged(queue: JobQueue) -> None:
    for redeliveries in (0, 0, 0, 1, 3):
        queue.enqueue("x")
        for _ in range(redeliveries):
            queue.nack(taken(queue).job_id)
        assert queue.ack(taken(queue).job_id)
    assert queue.deliveries() == {1: 3, 2: 1, 4: 1}
    assert list(queue.deliveries()) == [1, 2, 4]


def test_a_hundred_thousand_in_flight(queue: JobQueue, clock: ManualClock) -> None:
    store = memory(queue)
    for _ in range(100):
        store.enqueue([Draft("job", number, "default") for number in range(1_000)])
    others = [store.claim([Want("default", 1_000)], "other", seconds(30)) for _ in range(99)]
    mine = [taken(queue).job_id for _ in range(1_000)]
    assert queue.stats()["in_flight"] == 100_000
    assert queue.dequeue() is None
    assert all(queue.ack(job_id) for job_id in mine)
    for leases in others[:80]:
        store.settle([(lease, Ack()) for lease in leases])
    clock.advance(31 * SECOND)
    assert queue.stats()["visible"] == 19_000
    assert queue.stats()["in_flight"] == 0
    assert taken(queue).delivery_count == 2


# Waiting


def test_receive_takes_what_is_there_without_sleeping(queue: JobQueue) -> None:
    job_id = queue.enqueue("x")
    assert delivered(queue.receive(timeout=0)) == (job_id, 1)
    assert queue.receive(timeout=0) is None


def test_receive_is_woken_by_an_enqueue(queue: JobQueue, clock: ManualClock) -> None:
    receiver = Background(queue.receive)
    clock.until_asleep(1)
    job_id = queue.enqueue("x")
    assert delivered(receiver.result()) == (job_id, 1)


def test_receive_is_woken_by_a_nack(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue("x")
    taken(queue)
    receiver = Background(queue.receive)
    clock.until_asleep(1)
    queue.nack(job_id)
    assert delivered(receiver.result()) == (job_id, 2)


def test_receive_is_woken_when_a_delayed_nack_is_due(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue("x")
    taken(queue, visibility_timeout=1_000)
    receiver = Background(lambda: queue.receive(timeout=60))
    clock.until_asleep(1)
    queue.nack(job_id, requeue_delay=5)
    clock.until_asleep(1)
    clock.advance(5 * SECOND)
    assert delivered(receiver.result()) == (job_id, 2)


def test_receive_is_woken_by_an_expiry(queue: JobQueue, clock: ManualClock) -> None:
    job_id = queue.enqueue("x")
    taken(queue, visibility_timeout=5)
    receiver = Background(lambda: queue.receive(timeout=60))
    clock.until_asleep(1)
    clock.advance(6 * SECOND)
    assert delivered(receiver.result()) == (job_id, 2)


def test_receive_is_woken_by_the_expiry_of_a_job_taken_while_it_slept(queue: JobQueue, clock: ManualClock) -> None:
    receiver = Background(lambda: queue.receive(timeout=60))
    clock.until_asleep(1)
    store = memory(queue)
    store.pause("default")
    job_id = queue.enqueue("x")
    clock.until_asleep(1)
    store.resume("default")
    lease = store.claim([Want("default", 1)], "other", seconds(5))
    if lease:
        clock.until_asleep(1)
        clock.advance(6 * SECOND)
    assert delivered(receiver.result())[0] == job_id


def test_receive_gives_up_after_its_timeout_and_not_before(queue: JobQueue, clock: ManualClock) -> None:
    receiver = Background(lambda: queue.receive(timeout=5))
    clock.until_asleep(1)
    clock.advance(5 * SECOND - 1)
    clock.until_asleep(1)
    assert receiver.is_alive()
    clock.advance(1)
    assert receiver.result() is None


def test_a_wake_up_without_work_does_not_end_the_wait(queue: JobQueue, clock: ManualClock) -> None:
    """Another receiver was quicker: this one sleeps for the rest of its time."""
    receiver = Background(lambda: queue.receive(timeout=30))
    clock.until_asleep(1)
    store = memory(queue)
    for _ in range(20):
        with store.backend.session.lock:
            store.backend.session.index.queue("default").claimers.wake_all()
        clock.until_asleep(1)
    assert receiver.is_alive()
    job_id = queue.enqueue("x")
    assert delivered(receiver.result()) == (job_id, 1)


def test_one_job_wakes_receivers_until_each_has_one(queue: JobQueue, clock: ManualClock) -> None:
    receivers = [Background(queue.receive) for _ in range(4)]
    clock.until_asleep(4)
    ids = {queue.enqueue(number) for number in range(4)}
    assert {delivered(receiver.result())[0] for receiver in receivers} == ids


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", None])
def test_an_absurd_wait_is_refused(queue: JobQueue, timeout: Any) -> None:
    with pytest.raises(Invalid, match="timeout"):
        queue.receive(timeout=timeout)


def test_a_wait_of_a_week_is_no_mistake(queue: JobQueue, clock: ManualClock) -> None:
    receiver = Background(lambda: queue.receive(timeout=7 * 86_400))
    for _ in range(7):
        clock.until_asleep(1)
        clock.advance(86_400 * SECOND - SECOND)
    clock.until_asleep(1)
    job_id = queue.enqueue("x")
    assert delivered(receiver.result()) == (job_id, 1)


# Settings


def test_a_key_may_be_remembered_for_milliseconds(clock: ManualClock) -> None:
    queue = JobQueue(default_visibility_timeout=0.005, idempotency_ttl=0.2, clock=clock)
    first = queue.enqueue("x", idempotency_key="k")
    clock.advance(199_000)
    assert queue.enqueue("x", idempotency_key="k") == first
    clock.advance(1_000)
    assert queue.enqueue("x", idempotency_key="k") != first


@pytest.mark.parametrize(
    "setting",
    [{"default_visibility_timeout": value} for value in (0, -1, float("nan"), 8 * 86_400, "30", None)]
    + [{"idempotency_ttl": value} for value in (0, -1, 0.0005, float("inf"), "300", None)]
    + [{"max_redeliveries": value} for value in (-1, 1.5, 2**31, "3")]
    + [{"name": value} for value in ("", "a b", 5)]
    + [{"url": value} for value in ("nowhere://", "memory://host/path", "")],
    ids=str,
)
def test_absurd_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ForebayError):
        JobQueue(**setting)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 8 * 86_400, "5"])
def test_an_absurd_visibility_timeout_is_refused_and_takes_nothing(queue: JobQueue, timeout: Any) -> None:
    queue.enqueue("x")
    with pytest.raises(Invalid):
        queue.dequeue(visibility_timeout=timeout)
    assert queue.stats()["visible"] == 1


# Shutdown


def test_a_closed_queue_refuses_everything_in_its_own_words(queue: JobQueue) -> None:
    queue.enqueue("x")
    job = taken(queue)
    queue.close()
    queue.close()
    calls: list[Callable[[], object]] = [lambda: queue.enqueue("y"), queue.dequeue, queue.receive, queue.stats]
    for call in calls:
        with pytest.raises(Closed, match="is closed; open it again"):
            call()
    assert queue.ack(job.job_id) is False
    assert queue.nack(job.job_id) is False


def test_a_receiver_is_woken_by_the_close(queue: JobQueue, clock: ManualClock) -> None:
    receiver = Background(lambda: queue.receive(timeout=3_600))
    clock.until_asleep(1)
    queue.close()
    assert isinstance(receiver.result(), Closed)


def test_leaving_the_with_closes(clock: ManualClock) -> None:
    with JobQueue(clock=clock) as queue:
        queue.enqueue("x")
    with pytest.raises(Closed):
        queue.enqueue("y")


def test_a_close_returns_what_is_in_flight_uncharged(tmp_path: Path, clock: ManualClock) -> None:
    url = f"memory://{tmp_path}/journal"
    reported: list[Job] = []
    with JobQueue(max_redeliveries=1, url=url, clock=clock) as queue:
        ids = [queue.enqueue(number, f"key-{number}") for number in range(5)]
        for _ in range(3):
            taken(queue)
        assert queue.ack(ids[0])
    with JobQueue(max_redeliveries=1, dlq_handler=reported.append, url=url, clock=clock) as queue:
        assert queue.stats() == {"visible": 4, "in_flight": 0, "waiting": 0, "dead": 0, "dedup_keys": 5}
        assert [delivered(queue.dequeue()) for _ in range(4)] == [(ids[1], 2), (ids[2], 2), (ids[3], 1), (ids[4], 1)]
        assert queue.enqueue(0, "key-0") == ids[0]
        assert queue.nack(ids[1])
        assert reported == [], "the delivery that the close cut short did not count"
        assert delivered(queue.dequeue()) == (ids[1], 3)
        assert queue.nack(ids[1])
        assert [job.job_id for job in reported] == [ids[1]]


def test_more_in_flight_than_one_call_takes_are_all_returned(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.queue.MAX_BATCH", 3)
    url = f"memory://{tmp_path}/journal"
    with JobQueue(url=url, clock=clock) as queue:
        ids = [queue.enqueue(number) for number in range(11)]
        for _ in range(10):
            taken(queue)
    with JobQueue(url=url, clock=clock) as queue:
        assert queue.stats()["visible"] == 11
        assert [taken(queue).job_id for _ in ids] == ids


def test_many_that_fall_due_together_are_all_visible(queue: JobQueue, clock: ManualClock) -> None:
    ids = [queue.enqueue(number) for number in range(1_000)]
    for _ in ids:
        queue.nack(taken(queue).job_id, requeue_delay=5)
    clock.advance(5 * SECOND)
    assert queue.stats() == {"visible": 1_000, "in_flight": 0, "waiting": 0, "dead": 0, "dedup_keys": 0}


def test_a_crash_leaves_jobs_in_flight_until_their_time_is_over(tmp_path: Path, clock: ManualClock) -> None:
    """Unlike a close: the worker did not stop."""
    url = f"memory://{tmp_path}/journal"
    crashed = JobQueue(url=url, clock=clock)
    job_id = crashed.enqueue("x", "k")
    taken(crashed)
    memory(crashed).close()
    with JobQueue(url=url, clock=clock) as queue:
        assert queue.dequeue() is None
        assert queue.ack(job_id) is False
        clock.advance(31 * SECOND)
        assert delivered(queue.dequeue()) == (job_id, 2)
        assert queue.enqueue("x", "k") == job_id
