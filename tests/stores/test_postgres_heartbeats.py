"""One heartbeat renews all leases of a worker; one query finds all that it held when it died."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from forebay import Draft, Want
from forebay.core.lease import Fence, Heartbeat, Lease
from forebay.core.outcome import Ack, Release
from forebay.store.postgres.store import PostgresStore
from forebay.testing.clock import ManualClock
from forebay.work.heartbeat import Renewer
from forebay.work.options import Options

LEASE = timedelta(seconds=30)
SECOND = 1_000_000


class Pool:
    """What is held, and what was said of it."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = list(leases)
        self.lost: list[Fence] = []
        self.requested: list[Fence] = []

    def held(self) -> list[Lease]:
        return self.leases

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None: ...

    def mark_lost(self, fences: Sequence[Fence]) -> None:
        self.lost += fences

    def request_cancel(self, fences: Sequence[Fence]) -> None:
        self.requested += fences


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(cleared_url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url, clock=clock)
    yield store
    store.close()


def claimed(store: PostgresStore, count: int, *, owner: str = "me", alike: int = 100) -> list[Lease]:
    for _ in range(count // alike):
        store.enqueue([Draft("k")] * alike)
    return [lease for _ in range(0, count, 500) for lease in store.claim([Want("default", 500)], owner, LEASE)]


def rows(store: PostgresStore) -> int:
    with psycopg.connect(store.backend.session.server.url) as connection:
        found = connection.execute("SELECT count(*) FROM forebay.run").fetchone()
    assert found is not None
    return int(found[0])


def test_a_busy_worker_renews_more_than_a_batch_in_one_step_and_takes_no_run_apart(
    store: PostgresStore, clock: ManualClock
) -> None:
    leases = claimed(store, 1_500)
    before = rows(store)
    some = leases[::3]
    pool = Pool([lease for lease in leases if lease not in some])
    renewer = Renewer(store, pool, Options(lease_for=LEASE))
    for _ in range(4):
        clock.advance(20 * SECOND)
        renewer.step()
        assert store.overdue(10) == []
    assert (rows(store), renewer.renewed, renewer.lost) == (before, 4_000, 0)
    assert {str(answer) for answer in store.settle([(lease, Ack()) for lease in some])} == {"applied"}
    assert {str(answer) for answer in store.settle([(lease, Ack()) for lease in pool.leases])} == {"applied"}


def test_what_others_took_is_lost_and_what_should_end_is_reported(
    store: PostgresStore, cleared_url: str, clock: ManualClock
) -> None:
    leases = claimed(store, 10, alike=10)
    pool = Pool(leases)
    other = PostgresStore(cleared_url, clock=clock)
    assert other.settle([(leases[0], Release())]) == ["applied"]
    other.cancel([leases[1].job.id])
    other.close()
    renewer = Renewer(store, pool, Options(lease_for=LEASE))
    renewer.step()
    assert (pool.lost, pool.requested) == ([leases[0].fence], [leases[1].fence])
    assert (renewer.renewed, renewer.lost) == (9, 1)


def test_runs_with_a_time_of_their_own_get_theirs(store: PostgresStore, clock: ManualClock) -> None:
    leases = claimed(store, 10, alike=10)
    assert len(store.extend(leases[:4], LEASE)) == 4
    for _ in range(3):
        clock.advance(20 * SECOND)
        assert store.beat(leases, LEASE) == Heartbeat()
        assert store.overdue(10) == []


def test_leases_of_another_process_are_not_known(store: PostgresStore, cleared_url: str, clock: ManualClock) -> None:
    leases = claimed(store, 10, alike=10)
    other = PostgresStore(cleared_url, clock=clock)
    assert other.beat(leases, LEASE).unknown == [lease.fence for lease in leases]
    pool = Pool(leases)
    Renewer(other, pool, Options(lease_for=LEASE)).step()
    assert pool.lost == []
    other.close()


def test_what_a_dead_process_held_is_settled_in_one_look(
    store: PostgresStore, cleared_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor waits for that, and a job at a time takes seconds."""
    held = [Lease(lease.job, lease.owner, lease.until) for lease in claimed(store, 300)]
    other = PostgresStore(cleared_url, clock=clock)
    requested: list[str] = []
    query = other.backend.session.server.query

    def received(text: str, *more: Any, **how: Any) -> Any:
        requested.append(text)
        return query(text, *more, **how)

    monkeypatch.setattr(other.backend.session.server, "query", received)
    assert set(other.settle([(lease, Release()) for lease in held[:299]])) == {"applied"}
    assert len(requested) <= 5
    assert store.settle([(lease, Ack()) for lease in held]) == [*["stale"] * 299, "applied"]
    other.close()
