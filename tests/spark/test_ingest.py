"""Exactly once from a source that repeats itself; dead jobs that give way to new ones. SQLite and Postgres alike."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay.core.errors import BatchTooLarge, QueueFull
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_INGEST
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import Bounded, InOrder
from forebay.core.spec import QueueSpec
from forebay.store.open import open_store
from forebay.store.protocol import Checkpoint, Query, Tally, Want
from tests.spark.sample_stores import every_job

ONE, TWO = Checkpoint(0, 3, b"one"), Checkpoint(0, 5, b"two")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    store = open_store(url)
    yield store
    store.close()


def drafts(count: int, **fields: Any) -> list[Draft]:
    return [Draft("k", {"n": number}, **fields) for number in range(count)]


def changes(store: Any) -> list[tuple[str, str, int]]:
    entries = store.ledger(-1, 1_000)
    return [
        (entry.record.verb, job_range.change, job_range.n) for entry in entries for job_range in entry.record.ranges
    ]


def test_a_source_that_repeats_itself_adds_nothing(store: Any) -> None:
    assert store.ingested("a") is None
    assert store.ingest("a", None, ONE, drafts(3)) == Tally(3)
    assert store.ingested("a") == ONE
    assert store.ingest("a", None, ONE, drafts(3)) is None
    assert store.ingest("a", TWO, Checkpoint(1, 1, b""), drafts(1)) is None
    assert store.ingest("a", ONE, TWO, drafts(2)) == Tally(2)
    assert store.ingest("b", None, ONE, drafts(1)) == Tally(1)
    assert len(every_job(store)) == 6
    assert changes(store) == [("enqueue", "accepted", 3), ("enqueue", "accepted", 2), ("enqueue", "accepted", 1)]


def test_a_source_may_move_on_with_nothing(store: Any) -> None:
    assert store.ingest("a", None, ONE, []) == Tally()
    assert store.ingest("a", ONE, TWO, []) == Tally()
    assert store.ingest("a", ONE, TWO, []) is None
    assert store.ingested("a") == TWO
    assert store.ledger(-1, 10) == []


def test_rows_with_keys_gates_and_bounds_are_ingested_alike(store: Any) -> None:
    store.put_spec(QueueSpec(name="few", capacity=Bounded(4)))
    store.put_spec(QueueSpec(name="line", eligibility=InOrder()))
    keyed = [Draft("k", {"n": 1}, key="x"), Draft("k", {"n": 1}, key="x"), Draft("k", 2, queue="few")]
    assert store.ingest("a", None, ONE, keyed) == Tally(3, duplicates=1)
    with pytest.raises(QueueFull):
        store.ingest("a", ONE, TWO, drafts(9, queue="few"))
    assert store.ingested("a") == ONE, "what was refused has not moved the source"
    assert store.ingest("a", ONE, TWO, drafts(1_500, queue="line", subject="s")) == Tally(1_500)
    assert len(every_job(store)) == 1_502
    assert len(store.claim([Want("line", 10)], "w", timedelta(seconds=5))) == 1, "they are in line"


def test_of_two_concurrent_ingests_one_succeeds(store: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: store.ingest("a", None, ONE, drafts(3)), range(8)))
    assert [tally for tally in taken if tally is not None] == [Tally(3)]
    assert len(every_job(store)) == 3


def test_an_ingest_is_bounded(store: Any) -> None:
    with pytest.raises(BatchTooLarge, match=f"the limit is {MAX_INGEST}"):
        store.ingest("a", None, ONE, [Draft("k")] * (MAX_INGEST + 1))
    assert store.ingested("a") is None


def test_a_dead_job_is_replaced_in_one_step(store: Any) -> None:
    ids = [receipt.id for receipt in store.enqueue(drafts(3))]
    leases = store.claim([Want("default", 2)], "w", timedelta(seconds=5))
    store.settle([(lease, DeadLetter(Failure("E"))) for lease in leases])
    new, none, alive = store.replace_dead([(ids[0], Draft("k", "new")), (10**12, Draft("k")), (ids[2], Draft("k"))])
    assert none is None
    assert alive is None, "a job that has not ended is left alone"
    assert store.get([ids[0]]) == [None]
    assert store.get([new.id])[0].payload == "new"
    assert store.replace_dead([(ids[0], Draft("k", "new"))]) == [None]
    assert [job.id for job in every_job(store, Query(state=State.DEAD))] == [ids[1]]
    assert changes(store)[-2:] == [("replace_dead", "purged", 1), ("replace_dead", "accepted", 1)]
    assert store.replace_dead([]) == []


def test_an_invalid_draft_leaves_the_dead_job(store: Any) -> None:
    store.put_spec(QueueSpec(name="few", capacity=Bounded(1)))
    (receipt,) = store.enqueue(drafts(1))
    (lease,) = store.claim([Want("default", 1)], "w", timedelta(seconds=5))
    store.settle([(lease, DeadLetter(Failure("E")))])
    store.enqueue(drafts(1, queue="few"))
    with pytest.raises(QueueFull):
        store.replace_dead([(receipt.id, Draft("k", queue="few"))])
    assert store.get([receipt.id])[0].state is State.DEAD
