"""Verdicts that ride on the next claim: as a settle and then a claim, in one step, whatever is among them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from forebay import Draft, QueueSpec, Store, Want
from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.core.lease import Lease, Settled
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Ack, Failure, Release, Retry
from forebay.core.policy import AtMost, Priority
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Pipelining
from forebay.work.options import Options
from forebay.work.settler import PipelinedClaimer, Settler
from forebay.work.worker import Worker

TIME = timedelta(seconds=30)
WANT = [Want("default", 10)]


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url)
    yield store
    store.close()


def acked(leases: list[Lease]) -> list[tuple[Lease, Ack]]:
    return [(lease, Ack()) for lease in leases]


def running(store: Store) -> int:
    return store.backlog(["default"])[0].running


def test_what_was_done_is_settled_and_the_next_jobs_come(store: PostgresStore) -> None:
    ids = [receipt.id for _ in range(2) for receipt in store.enqueue([Draft("k")] * 10)]
    answers, first = store.settle_and_claim([], WANT, "me", TIME)
    assert answers == []
    answers, second = store.settle_and_claim(acked(first), WANT, "me", TIME)
    assert set(answers) == {Settled.APPLIED}
    assert [lease.job.id for lease in (*first, *second)] == ids
    assert running(store) == 10


def test_a_job_that_is_tried_again_at_once_may_come_with_the_same_step(store: PostgresStore) -> None:
    store.enqueue([Draft("k")])
    _, (lease,) = store.settle_and_claim([], WANT, "me", TIME)
    answers, (again,) = store.settle_and_claim([(lease, Retry(0, Failure("Boom")))], WANT, "me", TIME)
    assert answers == [Settled.APPLIED]
    assert (again.job.id, again.job.attempt, again.job.delivery) == (lease.job.id, 2, 2)
    assert store.settle_and_claim([(lease, Ack())], WANT, "me", TIME) == ([Settled.STALE], [])


def test_a_repeated_exchange_settles_nothing_twice(store: PostgresStore) -> None:
    store.enqueue([Draft("k")] * 3)
    _, leases = store.settle_and_claim([], WANT, "me", TIME)
    for _ in range(2):
        assert store.settle_and_claim(acked(leases), WANT, "me", TIME) == ([Settled.APPLIED] * 3, [])


def test_a_gate_that_a_verdict_opens_lets_the_next_one_through(store: PostgresStore) -> None:
    store.put_spec(QueueSpec(name="default", eligibility=AtMost(1)))
    store.enqueue([Draft("k")] * 2)
    _, (lease,) = store.settle_and_claim([], WANT, "me", TIME)
    answers, (following,) = store.settle_and_claim([(lease, Ack())], WANT, "me", TIME)
    assert answers == [Settled.APPLIED]
    assert following.job.id != lease.job.id


@pytest.mark.parametrize("verdict", [Ack(), Retry(0, Failure("Boom")), Release()], ids=["ack", "retry", "release"])
def test_slots_change_hands_in_the_one_round_trip_of_their_verdicts(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, verdict: Ack | Retry | Release
) -> None:
    store.put_spec(QueueSpec(name="default", eligibility=AtMost(2) & AtMost(1, per="subject")))
    store.enqueue([Draft("k", subject=subject) for subject in "aabbcc"])
    _, leases = store.settle_and_claim([], WANT, "me", TIME)
    assert [lease.job.subject for lease in leases] == ["a", "b"]
    trips: list[str] = []
    query = store.backend.session.server.query

    def counted(*requested: Any, **how: Any) -> Any:
        if "pg_notify" not in requested[0]:  # which another thread sends, when it likes
            trips.append(requested[0])
        return query(*requested, **how)

    monkeypatch.setattr(store.backend.session.server, "query", counted)
    monkeypatch.setattr(store.backend.session.server, "transact", None)
    answers, following = store.settle_and_claim([(lease, verdict) for lease in leases], WANT, "me", TIME)
    assert answers == [Settled.APPLIED] * 2
    assert len(following) == 2
    assert len(trips) == 1


def bytes_sent(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, count: int) -> int:
    """What one call for so many unlike jobs for as many others sends and receives, as text."""
    for _ in range(2 * count):
        store.enqueue([Draft("k")])
    want = [Want("default", count)]
    leases = store.claim(want, "me", TIME)
    query = store.backend.session.server.query
    sent = 0

    def counted(text: str, values: Any = (), **how: Any) -> Any:
        nonlocal sent
        rows = query(text, values, **how)
        sent += len(repr(values)) + len(repr(rows))
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(store.backend.session.server, "query", counted)
        answers, following = store.settle_and_claim(acked(leases), want, "me", TIME)
    assert (answers, len(following)) == ([Settled.APPLIED] * count, count)
    store.settle(acked(following))
    return sent


def test_the_bytes_of_settle_and_claim_grow_with_its_jobs_and_not_faster(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bytes_sent(store, monkeypatch, 1_000) <= 12 * bytes_sent(store, monkeypatch, 100)


def test_a_spec_that_changed_elsewhere_is_followed(store: PostgresStore, cleared_url: str) -> None:
    store.enqueue([Draft("k")])
    _, leases = store.settle_and_claim([], WANT, "me", TIME)
    other = PostgresStore(cleared_url)
    other.put_spec(QueueSpec(name="default", selection=Priority()))
    other.enqueue([Draft("k", priority=1), Draft("k", priority=2)])
    other.close()
    answers, (first, second) = store.settle_and_claim(acked(leases), WANT, "me", TIME)
    assert answers == [Settled.APPLIED]
    assert (first.job.priority, second.job.priority) == (2, 1)


def test_too_many_verdicts_are_refused_and_nothing_is_claimed(store: PostgresStore) -> None:
    store.enqueue([Draft("k")] * 2)
    _, leases = store.settle_and_claim([], [Want("default", 1)], "me", TIME)
    with pytest.raises(Invalid):
        store.settle_and_claim([(leases[0], Release())] * (MAX_BATCH + 1), WANT, "me", TIME)
    assert running(store) == 1


def test_a_failed_step_brings_the_verdicts_back_to_the_settler(store: PostgresStore) -> None:
    store.enqueue([Draft("k")])
    (lease,) = store.claim(WANT, "me", TIME)
    settler = Settler(store)
    settler.put([(lease, Ack())])
    with pytest.raises(Invalid):
        PipelinedClaimer(store, settler).claim([Want("default", 0)], "me", TIME)
    assert settler.applied == 0
    settler.step()
    assert settler.empty
    assert settler.applied == 1
    assert running(store) == 0


def test_a_worker_carries_its_verdicts_with_its_claims(cleared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    carried = 0
    settle_and_claim = PostgresStore.settle_and_claim

    def counting(self: PostgresStore, *arguments: object) -> object:
        nonlocal carried
        answer = settle_and_claim(self, *arguments)  # type: ignore[arg-type]
        carried += len(answer[0])
        return answer

    monkeypatch.setattr(PostgresStore, "settle_and_claim", counting)
    fb = Forebay(cleared_url)
    assert isinstance(fb.store, Pipelining)

    @fb.job
    async def nothing() -> None: ...

    fb.enqueue_many([Draft("nothing")] * 2_000)
    worker = Worker(fb, Options(concurrency=50, claim_batch=100))
    worker.start()
    while worker.settler.applied < 2_000:
        assert worker.healthy
        worker.pool.wait_until_idle(0.01)
    worker.drain(10)
    assert carried > 0
    assert fb.store.backlog(["default"])[0].depth == 0
    fb.close()
