"""Postgres: whole runs are taken apart into the jobs that the store shows one by one; it is seeded and redriven."""

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from forebay.core.job import Draft, State
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import KeepFor
from forebay.core.spec import QueueSpec
from forebay.spark.export import exported
from forebay.spark.generate import jobs, seed_store
from forebay.spark.jobs import JOBS, id_extent, job_batch
from forebay.spark.redrive import RedriveCommit, redrive
from forebay.store.open import open_store
from forebay.store.protocol import Exporting, Query, Want
from tests.spark.sample_stores import busy_day, every_job, opened, rows


def lively(url: str, seed: int) -> None:
    """Runs that were split, settled in part, requested to stop, retried, kept."""
    draw = Random(seed)
    verdicts = [
        Ack(b'{"ok":1}'),
        Ack(),
        DeadLetter(Failure("E", "x")),
        Retry(10**9, Failure("F")),
        Release(0),
        Release(10**10),
    ]
    busy_day(url, 300)
    with opened(url) as store:
        store.put_spec(QueueSpec(name="kept", retention=KeepFor(timedelta(hours=1))))
        for _ in range(12):
            queue = draw.choice(["default", "kept"])
            store.enqueue([Draft(draw.choice("abc"), {"n": n}, queue=queue) for n in range(draw.randrange(1, 80))])
            leases = store.claim([Want(queue, draw.randrange(1, 60))], f"w{seed}", timedelta(seconds=60))
            some = [lease for lease in leases if draw.random() < 0.5]
            store.settle([(lease, draw.choice(verdicts)) for lease in some])
            store.cancel([lease.job.id for lease in leases if draw.random() < 0.1])


@pytest.mark.parametrize("seed", range(4))
def test_an_export_is_what_the_store_shows(postgres_url: str, seed: int) -> None:
    lively(postgres_url, seed)
    store = open_store(postgres_url)
    assert isinstance(store, Exporting)
    expected = job_batch(every_job(store), JOBS).to_pylist()
    states = Counter(row["state"] for row in expected)
    assert set(states) == {"waiting", "ready", "running", "done", "dead", "cancelled"}
    first, last = id_extent(store)
    assert first <= expected[0]["id"] <= expected[-1]["id"] <= last
    draw = Random(seed)
    bounds = sorted({first, *(draw.randrange(first, last) for _ in range(6)), last + 1})
    found = [
        row
        for low, high in pairwise(bounds)
        for batch in exported(store, Query(), low, high - 1, JOBS)
        for row in batch.to_pylist()
    ]
    assert sorted(found, key=lambda row: row["id"]) == expected
    for query in (
        Query(state=State.DEAD),
        Query(state=State.WAITING),
        Query(queue="kept"),
        Query(kind="odd"),
        Query(tenant="t1", state=State.READY),
        Query(subject="s"),
    ):
        narrow = [row["id"] for batch in exported(store, query, first, last, JOBS) for row in batch.to_pylist()]
        assert sorted(narrow) == [job.id for job in every_job(store, query)]
    store.close()


def test_jobs_are_read_in_parts_with_filters(spark: SparkSession, postgres_url: str) -> None:
    lively(postgres_url, 9)
    with opened(postgres_url) as store:
        expected = job_batch(every_job(store), JOBS).to_pylist()
    df = spark.read.format("forebay").options(url=postgres_url, partitions="4").load()
    assert df.rdd.getNumPartitions() == 4
    assert rows(df) == expected
    assert df.filter("state = 'dead'").count() == sum(row["state"] == "dead" for row in expected)


def test_seeded_streamed_and_redriven(spark: SparkSession, postgres_url: str, tmp_path: Path) -> None:
    seed_store(jobs(spark, 3_000, 7), postgres_url)
    with opened(postgres_url) as store:
        leases = store.claim([Want("default", 100)], "w", timedelta(seconds=60))
        store.settle([(lease, DeadLetter(Failure("E"))) for lease in leases])
    events = spark.readStream.format("forebay").options(url=postgres_url, table="events", max_events="2000").load()
    query = (
        events.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    table = spark.read.parquet(str(tmp_path / "table"))
    assert {row["change"]: row["count"] for row in table.groupBy("change").count().collect()} == {
        "accepted": 3_000,
        "claimed": 100,
        "died": 100,
    }
    dead = spark.read.format("forebay").options(url=postgres_url, table="dead").load()
    fast = sum(lease.job.kind == "fast" for lease in leases)
    assert redrive(dead.filter("kind = 'fast'"), postgres_url) == RedriveCommit(redriven=fast)
    others = dead.selectExpr("id", "'{\"seq\":-1}' as payload")
    assert redrive(others, postgres_url) == RedriveCommit(replaced=100 - fast)
    with opened(postgres_url) as store:
        found = Counter(job.state for job in every_job(store))
    assert found == {State.READY: 3_000}
