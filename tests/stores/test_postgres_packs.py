"""What is claimed together is one row, and each of its jobs has its own fence all the same."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forebay import Draft, Want
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry, Verdict
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import CancelAnswer, Query
from forebay.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.stores.tables import Tables

TIME = timedelta(seconds=30)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(cleared_url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url, clock=clock)
    yield store
    store.close()


def taken(store: PostgresStore, count: int, owner: str = "me") -> list[Lease]:
    """Unlike jobs, put one by one and claimed together."""
    for number in range(count):
        store.enqueue([Draft("k", number, max_attempts=3 + number % 2, tenant=f"t{number}")])
    leases = store.claim([Want("default", count)], owner, TIME)
    assert len(leases) == count
    return leases


def bare(lease: Lease) -> Lease:
    """The same lease as one who only knows its fence has it."""
    return Lease(lease.job, lease.owner, lease.until)


def packs(tables: "Tables") -> int:
    return int(tables.value("SELECT count(*) FROM forebay.pack"))


def test_a_claim_is_one_row_until_the_last_of_its_jobs_is_settled(store: PostgresStore, tables: "Tables") -> None:
    leases = taken(store, 5)
    assert (packs(tables), tables.value("SELECT count(*) FROM forebay.run")) == (1, 0)
    assert [lease.job.tenant for lease in leases] == [f"t{number}" for number in range(5)]
    for some in (leases[1:3], leases[:1], leases[3:]):
        assert packs(tables) == 1
        assert set(store.settle([(lease, Ack()) for lease in some])) == {Settled.APPLIED}
    assert packs(tables) == 0


def test_a_job_that_left_its_pack_is_not_settled_with_the_rest(store: PostgresStore) -> None:
    first, second = taken(store, 2)
    assert store.settle([(bare(first), Retry(0, Failure("Boom")))]) == [Settled.APPLIED]
    assert store.settle([(first, Ack()), (second, Ack())]) == [Settled.STALE, Settled.APPLIED]
    (again,) = store.claim([Want("default", 5)], "other", TIME)
    assert (again.job.id, again.job.delivery, again.job.attempt) == (first.job.id, 2, 2)


def test_no_job_is_settled_twice_as_a_part_of_its_pack(store: PostgresStore) -> None:
    first, second, third = taken(store, 3)
    assert store.settle([(bare(first), Release())]) == [Settled.APPLIED]
    assert store.settle([(first, Ack()), (second, Ack())]) == [Settled.STALE, Settled.APPLIED]
    assert store.settle([(second, Ack()), (third, Ack())]) == [Settled.APPLIED] * 2


def test_every_verdict_finds_its_job_in_the_pack(store: PostgresStore) -> None:
    verdicts: list[Verdict] = [
        Ack(),
        Retry(0, Failure("Again")),
        Release(),
        DeadLetter(Failure("Dead")),
        Ack(b'"kept"', 10**9),
    ]
    leases = taken(store, 5)
    assert store.settle(list(zip(leases, verdicts, strict=True))) == [Settled.APPLIED] * 5
    jobs = store.get([lease.job.id for lease in leases])
    assert [job and (job.state, job.body, job.tenant, job.attempt, job.max_attempts) for job in jobs] == [
        None,
        (State.READY, b"1", "t1", 1, 4),
        (State.READY, b"2", "t2", 0, 3),
        (State.DEAD, b"3", "t3", 1, 4),
        (State.DONE, b"4", "t4", 1, 3),
    ]


def test_extending_some_leaves_the_others_their_time_in_a_pack_of_their_own(
    store: PostgresStore, tables: "Tables", clock: ManualClock
) -> None:
    leases = taken(store, 5)
    clock.advance(10_000_000)
    assert len(store.extend(leases[1:3], TIME)) == 2
    assert packs(tables) == 2
    clock.advance(25_000_000)
    overdue = store.overdue(10)
    assert sorted(lease.job.id for lease in overdue) == sorted(leases[place].job.id for place in (0, 3, 4))
    assert store.settle([(lease, Ack()) for lease in leases]) == [Settled.APPLIED] * 5
    assert packs(tables) == 0


def test_what_a_dead_process_held_is_one_row_that_is_taken_back_whole(
    store: PostgresStore, tables: "Tables", clock: ManualClock
) -> None:
    leases = taken(store, 5, "dead")
    clock.advance(40_000_000)
    overdue = store.overdue(100)
    assert [lease.job.body for lease in overdue] == [lease.job.body for lease in leases]
    gone = Retry(0, Failure("WorkerDied"), keep_rank=True)
    assert store.settle([(lease, gone) for lease in overdue]) == [Settled.APPLIED] * 5
    assert packs(tables) == 0
    again = store.claim([Want("default", 5)], "other", TIME)
    assert [(lease.job.id, lease.job.delivery) for lease in again] == [(lease.job.id, 2) for lease in leases]


def test_one_of_a_pack_is_asked_to_end_and_shown_where_it_is(store: PostgresStore) -> None:
    leases = taken(store, 3)
    ids = [lease.job.id for lease in leases]
    assert store.cancel([ids[1]]) == [CancelAnswer.REQUESTED]
    asked = [job is not None and job.cancel_requested for job in store.get(ids)]
    assert asked == [False, True, False]
    assert [job.id for job in store.browse(Query(state=State.RUNNING), ids[0], 10).jobs] == ids[1:]
    assert [job.id for job in store.browse(Query(), 0, 10).jobs] == ids
