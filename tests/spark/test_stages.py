"""What Spark works on has a name of ours in its UI and its event log, so that the bill of an audit can be read."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.spark import evidence, refresh
from forebay.spark.audit import AuditOptions, audit
from forebay.spark.session import stage
from tests.command_result import Run
from tests.spark.sample_stores import worked
from tests.spark.story import START, Life, Story


def described(spark: SparkSession, after: int = -1) -> dict[int, str | None]:
    """The names of jobs of Spark, by their number."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    found = context.statusStore().jobsList(None)
    jobs = [found.apply(number) for number in range(found.size())]
    names = {job.jobId(): job.description() for job in jobs if job.jobId() > after}
    return {job: name.get() if name.isDefined() else None for job, name in sorted(names.items())}


def test_every_job_of_a_pipeline_and_an_audit_has_a_name(
    spark: SparkSession, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    worked(url, tmp_path, 30)
    monkeypatch.setattr(evidence, "MAX_DRIVER_BYTES", 0)
    monkeypatch.setattr(refresh, "_MAX_FEW", 0)
    before = max(described(spark), default=-1)
    assert run("pipeline", "run", "--store", url, "--lake", "lake").code == 0
    given = ("--receipts", "receipts.ndjson", "--effects", "effects.ndjson", "--master", "local[2]")
    done = run("audit", "--lake", "lake", *given)
    assert done.code == 0, done.err
    tables = ("jobs", "attempts", "service_levels", "redeliveries", "dead_letters")
    audit = ("evidence", "survey", "seqs", "profile", "proof")
    names = {*(f"pipeline: {name}" for name in tables), *(f"audit: {name}" for name in audit)}
    assert set(described(spark, before).values()) == names


def test_a_quick_audit_that_has_to_be_full_sums_no_jobs(spark: SparkSession) -> None:
    """A lawful redelivery is seen in the sums by seq: those by job would be for nothing."""
    story = Story()
    Life(story, START).accept().claim().effect(1).after(1).retry().claim().ack()
    before = max(described(spark), default=-1)
    verdict = audit(*story.frames(spark), options=AuditOptions(quick=True))
    assert (verdict.answer, verdict.skipped, verdict.result("redelivered").count) == ("PASS", [], 1)
    names = described(spark, before).values()
    assert "audit: profile" in names
    assert "audit: sums" not in names


def test_a_name_of_the_caller_comes_back(spark: SparkSession) -> None:
    before = max(described(spark), default=-1)
    with stage(spark, "outer"):
        with pytest.raises(PySparkException, match="no way"), stage(spark, "inner"):
            spark.range(1).selectExpr("raise_error('no way')").collect()
        spark.range(2).collect()
    spark.range(3).collect()
    assert list(described(spark, before).values()) == ["inner", "outer", None]
