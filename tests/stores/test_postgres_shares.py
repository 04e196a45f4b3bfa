"""Claims of classes on Postgres: one round trip however many they are, and nothing comes short where there is more."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from forebay import Draft, QueueSpec, Want
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, Fair
from forebay.store.postgres.store import PostgresStore

TIME = timedelta(seconds=30)
TENANTS = [f"t{number}" for number in range(50)]


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url)
    store.put_spec(QueueSpec(name="fair", share=Fair()))
    yield store
    store.close()


@pytest.fixture
def trips(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of this process, but those that another thread sends when it likes."""
    made: list[str] = []
    query = store.backend.session.server.query

    def counted(*requested: Any, **how: Any) -> Any:
        if "pg_notify" not in requested[0]:
            made.append(requested[0])
        return query(*requested, **how)

    monkeypatch.setattr(store.backend.session.server, "query", counted)
    return made


def tenants(leases: list[Lease]) -> list[str | None]:
    return [lease.job.tenant for lease in leases]


def begin(store: PostgresStore, trips: list[str]) -> None:
    """What only the first claim of a process does is not counted."""
    assert store.claim([Want("fair", 1)], "me", TIME) == []
    trips.clear()


def test_a_claim_of_many_classes_takes_one_round_trip(store: PostgresStore, trips: list[str]) -> None:
    begin(store, trips)
    store.enqueue([Draft("k", queue="fair", tenant=tenant) for tenant in TENANTS * 3])
    trips.clear()
    leases = store.claim([Want("fair", 60)], "me", TIME)
    assert len(trips) == 1
    assert Counter(tenants(leases[:50])) == Counter(TENANTS)
    assert len(leases) == 60


def test_several_queues_are_claimed_in_the_same_one(store: PostgresStore, trips: list[str]) -> None:
    store.put_spec(QueueSpec(name="other", share=Fair(weights={"t1": 2})))
    begin(store, trips)
    for queue in ("fair", "other", "plain"):
        store.enqueue([Draft("k", queue=queue, tenant=tenant) for tenant in TENANTS[:2] * 6])
    wants = [Want("plain", 2), Want("fair", 4), Want("other", 6), Want("fair", 1, "t1")]
    store.claim([Want("other", 1), Want("plain", 1)], "me", TIME)
    trips.clear()
    leases = store.claim(wants, "me", TIME)
    assert len(trips) == 1
    assert [lease.job.queue for lease in leases] == ["plain"] * 2 + ["fair"] * 4 + ["other"] * 6 + ["fair"]
    assert Counter(tenants(leases[2:6])) == Counter(t0=2, t1=2)
    assert Counter(tenants(leases[6:12])) == Counter(t0=2, t1=4)
    assert tenants(leases[12:]) == ["t1"]


def test_verdicts_ride_on_the_claim_of_the_classes(store: PostgresStore, trips: list[str]) -> None:
    store.enqueue([Draft("k", queue="fair", tenant=tenant) for tenant in TENANTS * 3])
    leases = store.claim([Want("fair", 50)], "me", TIME)
    trips.clear()
    answers, following = store.settle_and_claim([(lease, Ack()) for lease in leases], [Want("fair", 50)], "me", TIME)
    assert len(trips) == 1
    assert set(answers) == {Settled.APPLIED}
    assert Counter(tenants(following)) == Counter(TENANTS)


def test_a_slot_that_a_verdict_frees_is_for_the_class_that_waits(store: PostgresStore) -> None:
    store.put_spec(QueueSpec(name="fair", share=Fair(), eligibility=AtMost(1, per="tenant")))
    store.enqueue([Draft("k", queue="fair", tenant=tenant) for tenant in "aaabbc"])
    leases = store.claim([Want("fair", 1, tenant) for tenant in "ab"], "me", TIME)
    for expected in (["a", "b", "c"], ["a"], []):
        answers, leases = store.settle_and_claim([(lease, Ack()) for lease in leases], [Want("fair", 10)], "me", TIME)
        assert set(answers) == {Settled.APPLIED}
        assert sorted(map(str, tenants(leases))) == expected


def test_what_a_class_does_not_have_comes_from_the_others(store: PostgresStore) -> None:
    for tenant, count in (("few", 3), ("many", 40)):
        for number in range(count):
            store.enqueue([Draft("k", number, queue="fair", tenant=tenant)])
    assert Counter(tenants(store.claim([Want("fair", 20)], "me", TIME))) == Counter(few=3, many=17)


def test_jobs_of_classes_that_the_spec_does_not_share_by_any_more_go_by_rank(store: PostgresStore) -> None:
    for tenant in "aaabbb":
        store.enqueue([Draft("k", queue="fair", tenant=tenant)])
    store.put_spec(QueueSpec(name="fair"))
    store.enqueue([Draft("k", queue="fair", tenant="a")])
    assert tenants(store.claim([Want("fair", 4)], "me", TIME)) == ["a", "a", "a", "b"]
    assert tenants(store.claim([Want("fair", 10)], "me", TIME)) == ["b", "b", "a"]
