"""The cursor of expired leases, as under an old snapshot: no expired lease is missed."""

from collections.abc import Iterator

import pytest

from forebay import Draft, Want
from forebay.core.instant import seconds
from forebay.core.lease import Lease
from forebay.core.outcome import Ack, Failure, Retry
from forebay.store.postgres import claims
from forebay.store.postgres.store import PostgresStore
from forebay.testing.clock import ManualClock

SECOND = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000 * SECOND)


@pytest.fixture
def store(cleared_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    monkeypatch.setattr(claims, "_SLOW_LEASE_SCAN", -1.0)
    store = PostgresStore(cleared_url, clock=clock)
    yield store
    store.close()


def claimed(store: PostgresStore, owner: str) -> Lease:
    (lease,) = store.claim([Want("default", 1)], owner, seconds(10))
    return lease


def overdue(store: PostgresStore) -> list[int]:
    return [lease.job.id for lease in store.overdue(10)]


def test_a_heart_that_stops_after_the_check_is_noticed(store: PostgresStore, clock: ManualClock) -> None:
    """Its lease ended long before, by itself: only the beats made it last."""
    store.enqueue([Draft("k")] * 2)
    steady, other = claimed(store, "steady"), claimed(store, "other")
    clock.advance(8 * SECOND)
    assert store.extend([steady], seconds(10))
    clock.advance(3 * SECOND)
    (gone,) = store.overdue(10)
    assert gone.fence == other.fence
    store.settle([(gone, Retry(0, Failure("x")))])
    assert overdue(store) == []
    assert store.backend.claims.lease_cursor.floors()[1], "what was read was kept"
    clock.advance(20 * SECOND)
    assert overdue(store) == [steady.job.id]


def test_leases_that_come_after_the_check_run_out_too(store: PostgresStore, clock: ManualClock) -> None:
    store.enqueue([Draft("k")] * 3)
    store.settle([(claimed(store, "ada"), Ack())])
    clock.advance(20 * SECOND)
    assert overdue(store) == []
    beating = claimed(store, "ada")
    alone = claimed(store, "bob")
    assert store.extend([alone, beating], seconds(12)), "each lasts for itself now"
    assert overdue(store) == []
    clock.advance(30 * SECOND)
    assert sorted(overdue(store)) == sorted([beating.job.id, alone.job.id])
