"""Generated jobs: the same from the same seed however they are made, in the right mix; a store is seeded once."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.core.spec import QueueSpec
from forebay.spark.generate import Seeded, jobs, seed_store
from tests.spark.sample_stores import every_job, opened


def test_the_same_jobs_on_one_partition_or_many(spark: SparkSession) -> None:
    one = jobs(spark, 3_000, 7).coalesce(1).collect()
    assert one == sorted(jobs(spark, 3_000, 7).repartition(13).collect())
    assert one[2_000:] == jobs(spark, 1_000, 7, start=2_000).collect()
    assert one != jobs(spark, 3_000, 8).coalesce(1).collect()


def test_the_mix_of_a_busy_day(spark: SparkSession) -> None:
    made = jobs(spark, 20_000, 7).collect()
    assert [row.seq for row in made] == list(range(20_000))
    payloads = [msgspec.json.decode(row.payload) for row in made]
    assert all(payload["seq"] == row.seq for payload, row in zip(payloads, made, strict=True))
    shares = {kind: sum(row.kind == kind for row in made) / 20_000 for kind in ("fast", "slow", "flapping", "poison")}
    assert shares == pytest.approx({"fast": 0.70, "slow": 0.20, "flapping": 0.05, "poison": 0.05}, abs=0.01)
    lengths = {kind: {p["ms"] for p, row in zip(payloads, made, strict=True) if row.kind == kind} for kind in shares}
    assert lengths["fast"] == {1, 2, 3, 4, 5}
    assert 200 <= min(lengths["slow"]) < 210
    assert 1_990 < max(lengths["slow"]) <= 2_000
    assert {p.get("fails") for p in payloads} == {None, 1, 2, 3}
    assert {(row.kind == "poison", row.max_attempts) for row in made} == {(True, 3), (False, None)}


def test_a_store_is_seeded_once(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    reports: list[Seeded] = []
    made = jobs(spark, 5_000, 7).repartition(2, "seq").sortWithinPartitions("seq")
    for _ in range(2):
        assert seed_store(made, url, write_id="seed-7", progress=reports.append).jobs == 5_000
    with opened(url) as store:
        found = every_job(store)
    assert sorted(job.payload["seq"] for job in found) == list(range(5_000))
    assert {(job.payload["seq"], job.kind) for job in found} == {(row.seq, row.kind) for row in made.collect()}
    assert {job.max_attempts for job in found if job.kind == "poison"} == {3}
    assert {job.max_attempts for job in found if job.kind != "poison"} == {
        QueueSpec(name="default").routing.max_attempts
    }
    assert all(0 <= seeded.jobs <= 5_000 for seeded in reports)


def test_an_invalid_count_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Invalid, match="count: -1 is not an integer in 0"):
        jobs(spark, -1, 7)
