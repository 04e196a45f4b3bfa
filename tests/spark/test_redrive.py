"""Dead letters go back: the same payload under the same id, another one as a new job, at a rate, or only counted."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.job import Draft, State
from forebay.core.outcome import DeadLetter, Failure
from forebay.spark.redrive import RedriveCommit, redrive
from forebay.store.protocol import Query, Want
from tests.spark.sample_stores import every_job, opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Thirty dead letters, every third of them with a payload that can never work."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with opened(url) as store:
        store.enqueue(
            [Draft("k", {"seq": n, "bad": n % 3 == 0}, priority=n, tenant="t", meta={"a": "b"}) for n in range(30)]
        )
        leases = store.claim([Want("default", 30)], "w", timedelta(seconds=30))
        errors = [Failure("Bad" if lease.job.payload["bad"] else "Down") for lease in leases]
        store.settle([(lease, DeadLetter(error)) for lease, error in zip(leases, errors, strict=True)])
    return url


def letters(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("forebay").options(url=url, table="dead").load()


def patched(dead: DataFrame) -> DataFrame:
    return dead.withColumn("payload", F.regexp_replace("payload", '"bad":true', '"bad":false'))


def test_a_dry_run_counts_and_changes_nothing(spark: SparkSession, url: str) -> None:
    with opened(url) as store:
        before, extent = every_job(store), store.ledger_extent()
    assert redrive(patched(letters(spark, url)), url, dry_run=True) == RedriveCommit(redriven=20, replaced=10)
    with opened(url) as store:
        assert every_job(store) == before
        assert store.ledger_extent() == extent


def test_a_filtered_and_patched_set_is_redriven_once(spark: SparkSession, url: str) -> None:
    chosen = patched(letters(spark, url).filter("id <= 20")).cache()
    assert chosen.count() == 20
    assert redrive(chosen, url) == RedriveCommit(redriven=13, replaced=7)
    assert redrive(chosen, url) == RedriveCommit(gone=20), "jobs that were redriven are skipped"
    chosen.unpersist()
    with opened(url) as store:
        jobs = every_job(store)
    alive = [job for job in jobs if job.state is State.READY]
    assert len(alive) == 20
    assert sorted(job.payload["seq"] for job in alive) == list(range(20))
    new = [job for job in alive if "redriven_from" in (job.meta or {})]
    assert len(new) == 7
    assert all(job.payload["bad"] is False and job.id > 30 and not job.errors for job in new)
    assert {(job.priority, job.tenant, job.meta["a"]) for job in new if job.meta} == {
        (n, "t", "b") for n in range(0, 20, 3)
    }
    assert [int(job.meta["redriven_from"]) for job in new if job.meta] == [job.payload["seq"] + 1 for job in new]
    with opened(url) as store:
        assert len(every_job(store, Query(state=State.DEAD))) == 10


def test_a_rate_is_kept(spark: SparkSession, url: str) -> None:
    dead = letters(spark, url).select("id")
    assert redrive(dead.filter("id <= 10"), url) == RedriveCommit(redriven=10)
    began = time.monotonic()
    assert redrive(dead, url, rate=20) == RedriveCommit(redriven=20)
    assert time.monotonic() - began >= 0.75
    with opened(url) as store:
        at = [entry.record.at for entry in store.ledger(-1, 1_000) if entry.record.verb == "redrive"][1:]
    assert (at[-1] - at[0]) / 1e6 >= 0.75, "twenty at twenty a second, four at a time"


def test_a_payload_that_is_no_json_moves_nothing_of_its_call(spark: SparkSession, url: str) -> None:
    broken = letters(spark, url).select("id", F.lit("{").alias("payload"))
    with pytest.raises(Exception, match=r"payload at .*it is not JSON"):
        redrive(broken, url)
    with opened(url) as store:
        assert len(every_job(store, Query(state=State.DEAD))) == 30


def test_wrong_columns_and_partitions_are_named(spark: SparkSession, url: str) -> None:
    dead = letters(spark, url)
    with pytest.raises(AnalysisException, match="columns to redrive: there is no id"):
        redrive(dead.select("payload"), url)
    with pytest.raises(AnalysisException, match="columns to redrive: kind cannot be read"):
        dead.select("id", "kind").write.format("forebay").options(url=url, action="redrive").mode("append").save()
    ids = spark.range(10).repartition(3)
    with pytest.raises(Exception, match=r"option rate: the rows come in several partitions; write df\.coalesce"):
        ids.write.format("forebay").options(url=url, action="redrive", rate="5").mode("append").save()
