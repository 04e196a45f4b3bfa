"""What is claimed together is one row, and each of its jobs has its own fence all the same."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forebay import Draft, Want
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.store.postgres.settling import Settling, grouped
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
    """The same lease as a caller that has only its fence has it."""
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


def test_a_pack_that_is_settled_whole_is_recorded_and_remembered_job_by_job(store: PostgresStore) -> None:
    """Of runs and of single jobs some fail: the server records plain acknowledgements, the call the others."""
    store.enqueue([Draft("k", number) for number in range(4)])
    leases = store.claim([Want("default", 4)], "me", TIME) + taken(store, 3, "me")
    verdicts: list[Verdict] = [Ack() for _ in leases]
    verdicts[1] = verdicts[5] = Retry(10**9, Failure("Again"))
    settlements = list(zip(leases, verdicts, strict=True))
    assert store.settle(settlements) == [Settled.APPLIED] * 7
    ranges = [
        job_range
        for entry in store.ledger(-1, 100)
        for job_range in entry.record.ranges
        if entry.record.verb == "settle"
    ]
    recorded = sorted((job_range.first + at, job_range.change) for job_range in ranges for at in range(job_range.n))
    assert recorded == [(lease.job.id, "retried" if at in (1, 5) else "acked") for at, lease in enumerate(leases)]
    assert store.settle(settlements) == [Settled.APPLIED] * 7
    assert store.settle([(lease, Cancel()) for lease in leases]) == [Settled.STALE] * 7
    shown = store.get([lease.job.id for lease in leases])
    assert [(job.body, job.tenant, job.attempt) for job in shown if job] == [(b"1", None, 1), (b"1", "t1", 1)]


def test_what_is_presumed_lost_is_not_taken_from_a_holder_that_renewed_it(
    store: PostgresStore, tables: "Tables", clock: ManualClock
) -> None:
    leases = taken(store, 3)
    clock.advance(40_000_000)
    overdue = store.overdue(10)
    store.beat(leases, TIME)
    lost = Retry(0, Failure("WorkerDied"), expired=True)
    assert store.settle([(lease, lost) for lease in overdue]) == [Settled.STALE] * 3
    assert packs(tables) == 1


def test_jobs_that_fail_alike_send_their_error_once(store: PostgresStore) -> None:
    leases = taken(store, 4)
    verdicts = [Retry(0, Failure("Boom", "the same", "trace")) for _ in leases[1:]]
    groups, _ = grouped([*zip(leases[1:], verdicts, strict=True), (leases[0], Retry(0, Failure("Boom", "another")))])
    *_, outs, _ = Settling(store.backend.session, store.backend.claims).call_of(groups)
    assert outs.count("the same") == 1
    assert (
        store.settle([(lease, verdict) for group in groups for _, lease, verdict, _ in group]) == [Settled.APPLIED] * 4
    )
    messages = [[error.message for error in job.errors] for job in store.get([lease.job.id for lease in leases]) if job]
    assert messages == [["another"], ["the same"], ["the same"], ["the same"]]


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
    requested = [job is not None and job.cancel_requested for job in store.get(ids)]
    assert requested == [False, True, False]
    assert [job.id for job in store.browse(Query(state=State.RUNNING), ids[0], 10).jobs] == ids[1:]
    assert [job.id for job in store.browse(Query(), 0, 10).jobs] == ids
