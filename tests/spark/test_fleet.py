"""Workers as tasks of Spark: they drain a queue, one is killed with -9 among its jobs, and the audit passes."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.spark.audit import AuditOptions, audit
from forebay.spark.evidence import read_effects, read_receipts
from forebay.spark.fleet import drain
from forebay.spark.lake import Lake
from forebay.work.options import Options
from tests.spark.fleets import an_app
from tests.spark.sample_stores import enqueue_with_receipts, opened

pytestmark = pytest.mark.timeout(1_200)
KILLED = """
    if seq == 60 and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
JOBS = 120


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app that Spark's Python processes find as well: they are started with the path of this one."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return an_app(tmp_path, KILLED)


def test_a_killed_task_is_retried_and_no_job_is_lost(spark: SparkSession, app: str, tmp_path: Path) -> None:
    spark.sparkContext.addPyFile(str(tmp_path / f"{app.partition(':')[0]}.py"))
    url = f"sqlite:///{tmp_path}/jobs.db"
    with opened(url) as store:
        enqueue_with_receipts(store, [Draft("work", {"seq": seq}, "burst") for seq in range(JOBS)], tmp_path)
    options = Options(queues=("burst",), lease_for=timedelta(seconds=5), concurrency=4, claim_batch=10)
    shifts = drain(spark, app, url, options, tasks=2, limit=600)
    assert (tmp_path / "killed").exists()
    assert sorted(shift.task for shift in shifts) == [0, 1]
    assert max(shift.attempt for shift in shifts) >= 1
    assert all(shift.empty for shift in shifts)
    events = spark.read.format("forebay").option("url", url).option("table", "events").load().cache()
    lake = Lake.of(tmp_path / "lake", url)
    effects = read_effects(lambda: spark, [str(tmp_path / "effects")], lake)
    verdict = audit(
        events,
        read_receipts(lambda: spark, [str(tmp_path / "receipts.ndjson")], lake).rows(spark),
        effects.rows(spark),
        options=AuditOptions(drained=True, min_jobs=JOBS),
    )
    assert verdict.answer == "PASS", verdict.text()
    assert effects.rows(spark).select("seq").distinct().count() == JOBS


def test_a_fleet_ends_after_its_time_limit(spark: SparkSession, app: str, tmp_path: Path) -> None:
    spark.sparkContext.addPyFile(str(tmp_path / f"{app.partition(':')[0]}.py"))
    url = f"sqlite:///{tmp_path}/jobs.db"
    with opened(url) as store:
        store.enqueue([Draft("work", {"seq": 1}, "burst", delay=59_000_000)])
    (shift,) = drain(spark, app, url, Options(queues=("burst",)), tasks=1, limit=1)
    assert not shift.empty
    with opened(url) as store:
        assert store.backlog(["burst"])[0].depth == 1


def test_a_store_of_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Invalid, match="a memory store belongs to one process"):
        drain(spark, "app:fb", "memory:///srv/jobs", Options())
