"""Capacity: a bounded queue is never over its bound, also under races, and a refused call has no effect."""

from threading import Event

from forebay.core.errors import Closed, QueueFull, QueueMoved
from forebay.core.instant import hours
from forebay.core.lease import Settled
from forebay.core.policy import Block, Bounded, LatestWins, Moved, Routing, Unbounded
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import SECOND, Harness
from forebay_proof.conformance.racing import RacingCall, answers, race

_CLOSED = 1_000_000
"""The version of a map that no process of these cases has, also where the store itself is several cells."""


def _blocking(h: Harness, limit: int = 1) -> None:
    h.spec(capacity=Bounded(limit, when_full=Block(timeout=hours(1))))


@case
def a_full_queue_refuses_with_its_depth_and_its_bound(h: Harness) -> None:
    h.spec(capacity=Bounded(3))
    h.enqueue(2)
    with h.unchanged():
        error = refused(QueueFull, lambda: h.enqueue(2))
    assert (error.queue, error.depth, error.limit, error.requested) == ("q", 2, 3, 2)
    assert error.retry_after > 0
    assert h.one()


@case
def a_queue_may_be_filled_to_the_last_place(h: Harness) -> None:
    h.spec(capacity=Bounded(3))
    h.enqueue(3)
    assert h.backlog().depth == 3
    refused(QueueFull, h.one)


@case
def waiting_ready_and_running_jobs_all_count(h: Harness) -> None:
    h.spec(capacity=Bounded(3))
    h.one()
    h.take()
    h.one()
    h.one(delay=3_600 * SECOND)
    backlog = h.backlog()
    assert (backlog.running, backlog.ready, backlog.waiting) == (1, 1, 1)
    refused(QueueFull, h.one)


@case
def dead_jobs_do_not_count(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    h.dead()
    h.dead()
    assert h.one()


@case
def an_acknowledged_or_cancelled_job_makes_room(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    h.one()
    h.ack(h.take())
    waiting = h.one(delay=3_600 * SECOND)
    refused(QueueFull, h.one)
    h.store.cancel([waiting])
    assert h.one()


@case
def a_retry_is_never_refused(h: Harness) -> None:
    h.spec(capacity=Bounded(2))
    ids = h.enqueue(2)
    for lease in h.claim(2):
        assert h.fail(lease) is Settled.APPLIED
    assert h.drain() == ids
    h.nothing_left()


@case
def a_batch_enters_whole_or_not_at_all(h: Harness) -> None:
    h.spec(capacity=Bounded(5))
    h.enqueue(3)
    with h.unchanged():
        refused(QueueFull, lambda: h.enqueue(3))
    assert len(h.enqueue(2)) == 2


@case
def a_batch_that_can_never_fit_is_refused_at_once(h: Harness) -> None:
    _blocking(h, limit=3)
    with h.unchanged():
        error = refused(QueueFull, lambda: h.enqueue(4))
    assert error.requested > error.limit
    assert "never fit" in str(error)


@case
def each_queue_has_its_own_bound(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    h.spec("other", capacity=Bounded(2))
    h.one()
    h.enqueue(2, queue="other")
    refused(QueueFull, h.one)
    assert refused(QueueFull, lambda: h.one(queue="other")).queue == "other"
    assert len(h.enqueue(5, queue="unbounded")) == 5


@case
def a_duplicate_needs_no_room(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    first = h.one(key="k")
    (again,) = h.send(h.draft(key="k"))
    assert (again.id, again.duplicate) == (first, True)


@case
def a_merged_draft_needs_no_room(h: Harness) -> None:
    h.spec(capacity=Bounded(1), merge=LatestWins())
    first = h.one(subject="s", payload=1)
    (again,) = h.send(h.draft(subject="s", payload=2))
    assert (again.id, again.merged) == (first, True)
    assert h.take().job.payload == 2


@case
def a_redrive_into_a_full_queue_moves_nothing(h: Harness) -> None:
    h.spec(capacity=Bounded(2))
    dead = [h.dead(), h.dead()]
    h.one()
    with h.unchanged():
        error = refused(QueueFull, lambda: h.store.redrive(dead))
    assert (error.requested, error.depth) == (2, 1)
    assert h.store.redrive(dead[:1]) == dead[:1]


@case
def a_larger_bound_holds_at_once(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    h.one()
    h.spec(capacity=Bounded(2))
    h.one()
    refused(QueueFull, h.one)


@case
def a_smaller_bound_keeps_what_was_accepted(h: Harness) -> None:
    h.spec(capacity=Bounded(3))
    ids = h.enqueue(3)
    h.spec(capacity=Bounded(1))
    refused(QueueFull, h.one)
    assert h.drain() == ids
    assert h.one()


@case
def a_queue_that_has_moved_accepts_nothing_and_finishes_what_it_has(h: Harness) -> None:
    dead = h.dead()
    ids = [h.one(key="k"), h.one(), h.one(delay=SECOND)]
    h.spec(capacity=Moved(version=3))
    with h.unchanged():
        error = refused(QueueFull, h.one)
        assert refused(QueueFull, lambda: h.store.redrive([dead])).limit == 0
    assert (error.limit, error.requested) == (0, 1)
    (again,) = h.send(h.draft(key="k"))
    assert (again.id, again.duplicate) == (ids[0], True)
    h.fail(h.take())
    h.advance(SECOND)
    assert sorted(h.drain()) == sorted(ids)
    refused(QueueFull, h.one)


@case
def an_older_map_does_not_open_a_queue_that_has_moved(h: Harness) -> None:
    h.spec()
    h.spec(capacity=Moved(version=_CLOSED))
    with h.unchanged():
        assert refused(QueueMoved, h.spec).version == _CLOSED
        refused(QueueMoved, lambda: h.spec(capacity=Bounded(5)))
        refused(QueueMoved, lambda: h.spec(capacity=Moved(version=_CLOSED - 1)))
        refused(QueueMoved, lambda: h.spec(capacity=Moved(version=_CLOSED - 1, released=True)))
    h.spec(capacity=Moved(version=_CLOSED + 1), routing=Routing(7))
    refused(QueueMoved, lambda: h.spec(capacity=Moved(version=_CLOSED, released=True)))
    h.spec(capacity=Moved(version=_CLOSED + 1, released=True))
    refused(QueueFull, h.one)
    h.spec()
    assert h.one()


@case
def racing_specs_leave_a_queue_closed_that_has_moved(h: Harness) -> None:
    for version in range(_CLOSED, _CLOSED + 8):
        h.spec(capacity=Moved(version=version - 1, released=True))
        h.spec()

        def declare(number: int, version: int = version) -> None:
            h.spec(capacity=Moved(version=version) if number == 3 else Unbounded())

        race(6, declare)
        refused(QueueFull, h.one)
        h.spec(capacity=Moved(version=version, released=True))


@case
def waiting_jobs_of_a_queue_that_has_moved_take_over_newer_work(h: Harness) -> None:
    h.spec(merge=LatestWins())
    first = h.one(subject="s", payload=1)
    h.spec(capacity=Moved(), merge=LatestWins())
    (again,) = h.send(h.draft(subject="s", payload=2))
    assert (again.id, again.merged) == (first, True)
    assert h.take().job.payload == 2
    refused(QueueFull, lambda: h.one(subject="s", payload=3))


@case
def sixty_four_racing_producers_fill_a_queue_exactly(h: Harness) -> None:
    h.spec(capacity=Bounded(40))
    outcome = race(64, lambda _: h.one())
    accepted = [answer for answer in outcome if not isinstance(answer, QueueFull)]
    assert len(accepted) == len(set(map(repr, accepted))) == 40
    assert h.backlog().depth == 40
    assert len(h.drain(batch=10)) == 40
    h.nothing_left()


@case
def racing_batches_never_overfill_a_queue(h: Harness) -> None:
    h.spec(capacity=Bounded(50))
    outcome = race(16, lambda _: h.enqueue(7))
    accepted = [answer for answer in outcome if not isinstance(answer, QueueFull)]
    assert len(accepted) == 7
    assert h.backlog().depth == 49


@case
def racing_redrives_and_producers_never_overfill_a_queue(h: Harness) -> None:
    dead = [h.dead() for _ in range(8)]
    h.spec(capacity=Bounded(8))
    race(16, lambda number: h.store.redrive([dead[number // 2]]) if number % 2 else [h.one()])
    assert h.backlog().depth == 8


@case
def a_blocked_producer_gets_in_when_there_is_room(h: Harness) -> None:
    _blocking(h)
    h.one()
    lease = h.take()
    producer = RacingCall(h.one)
    h.until_asleep(1)
    assert producer.running
    h.ack(lease)
    job_id = producer.result()
    assert h.drain() == [job_id]
    h.nothing_left()


@case
def a_blocked_producer_gives_up_after_its_time(h: Harness) -> None:
    h.spec(capacity=Bounded(1, when_full=Block(timeout=h.short_delta)))
    first = h.one()
    producer = RacingCall(lambda: refused(QueueFull, h.one))
    h.until_asleep(1)
    h.advance(h.short + 1)
    assert producer.result().depth == 1
    assert h.drain() == [first]
    h.nothing_left()


@case
def a_blocked_producer_gets_in_when_a_job_is_cancelled(h: Harness) -> None:
    _blocking(h)
    first = h.one(delay=3_600 * SECOND)
    producer = RacingCall(h.one)
    h.until_asleep(1)
    h.store.cancel([first])
    job_id = producer.result()
    assert h.drain() == [job_id]


@case
def a_blocked_batch_gets_in_when_all_of_it_fits(h: Harness) -> None:
    _blocking(h, limit=3)
    h.enqueue(3)
    producer = RacingCall(lambda: h.enqueue(3))
    h.until_asleep(1)
    for lease in h.claim(3):
        assert h.backlog().depth <= 3
        h.ack(lease)
    ids = producer.result()
    assert h.drain() == ids


@case
def a_larger_bound_lets_a_blocked_producer_in(h: Harness) -> None:
    _blocking(h)
    h.one()
    producer = RacingCall(h.one)
    h.until_asleep(1)
    _blocking(h, limit=2)
    assert producer.result(patience=10)
    assert h.backlog().depth == 2


@case
def a_small_draft_gets_in_beside_a_blocked_large_batch(h: Harness) -> None:
    _blocking(h, limit=5)
    h.enqueue(5)
    lease = h.take()
    large = RacingCall(lambda: h.enqueue(5))
    h.until_asleep(1)
    small = RacingCall(h.one)
    h.until_asleep(2)
    h.ack(lease)
    small.result(patience=10)
    h.drain()
    assert len(large.result(patience=10)) == 5


@case
def many_blocked_producers_all_get_in_one_by_one(h: Harness) -> None:
    _blocking(h, limit=2)
    done = Event()
    total: list[int] = []

    def consume() -> None:
        while not done.is_set() or h.backlog().depth:
            leases = h.claim(2)
            total.extend(lease.job.id for lease in leases)
            for lease in leases:
                h.ack(lease)

    consumer = RacingCall(consume)
    ids = answers(race(12, lambda _: h.one()))
    done.set()
    consumer.result()
    assert sorted(total) == sorted(ids)
    h.nothing_left()


@case
def closing_the_store_wakes_blocked_producers(h: Harness) -> None:
    _blocking(h)
    h.one()
    producer = RacingCall(lambda: refused(Closed, h.one))
    h.until_asleep(1)
    h.store.close()
    producer.result()


@case_if(Need.DURABLE)
def a_bound_outlives_a_reopening(h: Harness) -> None:
    h.spec(capacity=Bounded(2))
    h.enqueue(2)
    h.take()
    h.reopen()
    refused(QueueFull, h.one)
    assert h.backlog().depth == 2
