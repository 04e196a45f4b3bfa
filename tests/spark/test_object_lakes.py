"""A lake on an object store, by every command and every reader: the tables and verdicts are those of a file system."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from forebay.cli.serve import verdict_reader
from forebay.core.outcome import DeadLetter, Failure
from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.settings import ServeSettings
from forebay.spark.lake import EVENTS, TABLES, Lake
from forebay.spark.lake_reader import create_views, read_table
from forebay.spark.tables import VIEWS
from forebay.store.clock import SystemClock
from forebay.store.protocol import Want
from tests.command_result import CommandResult, Run
from tests.serve.site import Site
from tests.serve.visitor import visitor
from tests.spark.lakes import plain
from tests.spark.sample_stores import busy_day, opened, worked
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)
EVIDENCE = ("--receipts", "receipts.ndjson", "--effects", "effects.ndjson")


@pytest.fixture(params=["s3", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("gs", "abfss"))])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.getfixturevalue(request.param)}/{tmp_path.name}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """That of the store which the commands find in an empty directory."""
    return f"sqlite:///{tmp_path}/forebay.db"


def die(url: str) -> None:
    with opened(url) as store:
        leases = store.claim([Want("default", 1)], "worker", timedelta(seconds=30))
        store.settle([(lease, DeadLetter(Failure("ValueError", "no such address"))) for lease in leases])


def days_later(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    now = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: now + days * 86_400_000_000)


def refused(*_: object, **__: object) -> None:
    raise AssertionError("Spark was started")


def test_every_command_works_on_an_object_store(
    run: Run, spark: SparkSession, url: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables and audits twice: from nothing, and after ten more jobs and five of before."""
    audit = ("audit", "--lake", uri, *EVIDENCE, "--json")
    worked(url, tmp_path, 30, done=24)
    die(url)
    first = run("pipeline", "run", "--lake", uri, "--json")
    assert (first.code, first.json[0]["tables"]["jobs"]) == (0, 30), first.err
    with monkeypatch.context() as without:
        without.setattr("forebay.cli.spark_commands.spark_of", refused)
        proven = verdict_of(run(*audit))
    assert (proven["answer"], proven["earlier"]) == ("PASS", None)
    worked(url, tmp_path, 10, first=30, done=14)
    die(url)
    again = run("pipeline", "run", "--lake", uri, "--json")
    assert (again.code, again.json[0]["tables"]["jobs"], again.json[0]["written"]["jobs"]) == (0, 40, 40), again.err
    assert same_as_of_a_file_system(run, uri) == {"jobs": 40, "dead_letters": 1}
    (status,) = run("pipeline", "status", "--lake", uri, "--json").json
    assert (status["lake"], status["whole"]) == (uri, "yes")
    assert {name: each["behind"] for name, each in status["tables"].items()} == dict.fromkeys(TABLES, 0)
    by_spark = verdict_of(run(*audit, "--master", "local[2]", "--report", "audited.html"))
    assert (by_spark["answer"], by_spark["facts"]["jobs"], by_spark["facts"]["effects"]) == ("PASS", 40, 38)
    assert by_spark["earlier"]["end"] == first.json[0]["records"]
    assert by_spark["earlier"]["new_events"] == again.json[0]["events"] == 10 + 2 * 14 + 2
    whole = verdict_of(run(*audit, "--whole"))
    assert (whole["earlier"], whole["facts"]) == (None, by_spark["facts"])
    assert run("report", "--lake", uri, "--out", "page.html").code == 0
    for page, said in (("audited.html", "No promise was broken"), ("page.html", "not audited")):
        text = Path(page).read_text()
        assert said in text
        assert text.count("<svg") >= 6


def verdict_of(answer: CommandResult) -> dict[str, Any]:
    assert answer.out, answer.err
    (verdict,) = answer.json
    assert isinstance(verdict, dict)
    return verdict


def same_as_of_a_file_system(run: Run, uri: str) -> dict[str, int]:
    """Rows of the tables of jobs; all tables are those of a lake of the same store that one run has made."""
    assert run("pipeline", "run", "--lake", "local").code == 0
    for name in TABLES:
        assert plain(Lake.at(uri), name) == plain(Lake.at("local"), name), name
    return {name: len(plain(Lake.at(uri), name)) for name in ("jobs", "dead_letters")}


def test_a_verdict_stays_in_the_lake_and_is_on_the_dashboard(run: Run, url: str, uri: str, tmp_path: Path) -> None:
    worked(url, tmp_path, 5)
    with open("receipts.ndjson", "a") as file:
        file.write(json.dumps({"seq": 5, "job_id": 999_999, "answer": "accepted"}))
    assert run("audit", "--lake", uri, "--store", url, *EVIDENCE).code == 1
    verdict = json.loads(Lake.at(uri).read("verdict.json") or b"{}")
    assert (verdict["answer"], verdict["reasons"][0].partition(":")[0]) == ("FAIL", "lost")
    settings = ServeSettings(port=0, maintain=False)
    with opened(url) as store:
        site = Site(store, settings, create_app(store, settings, read_verdict=verdict_reader(uri))).start()
        try:
            with visitor(site, Role.VIEWER) as viewer:
                eventually(lambda: "FAIL" in viewer.get("/ui/").text)
        finally:
            site.stop()


@pytest.mark.nightly
def test_old_days_are_dropped_and_the_lake_goes_on(
    run: Run, spark: SparkSession, url: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (0, 5):
        worked(url, tmp_path, 5, first=first)
        assert run("audit", "--lake", uri, "--store", url, *EVIDENCE, "--drained").code == 0
    joined = run("pipeline", "maintain", "--lake", uri, "--grace", "0", "--json").json[0]
    assert (joined["joined"], joined["rows_dropped"], joined["files_removed"] > 0) == (6, 0, True)
    (before,) = run("pipeline", "status", "--lake", uri, "--json").json
    assert (before["events"], before["tables"]["jobs"]["rows"], before["files"]) == (30, 10, 1)
    with monkeypatch.context() as later:
        days_later(later, 3)
        dropped = run("pipeline", "maintain", "--lake", uri, "--keep", "2d", "--grace", "0", "--json").json[0]
    evidence = 2 * 10
    assert dropped["rows_dropped"] == 30 + sum(each["rows"] for each in before["tables"].values()) + evidence
    (status,) = run("pipeline", "status", "--lake", uri, "--json").json
    assert (status["events"], status["whole"], {each["rows"] for each in status["tables"].values()}) == (0, "yes", {0})
    worked(url, tmp_path, 5, first=10)
    assert run("pipeline", "run", "--lake", uri).code == 0
    assert [read_table(spark, uri, name).count() for name in (EVENTS, "jobs")] == [15, 5]


def by_duckdb(table: str) -> int:
    rows = DeltaTable(table).to_pyarrow_dataset()
    return int(duckdb.from_arrow(rows).aggregate("count(*)").fetchall()[0][0])


def test_every_reader_reads_it(run: Run, spark: SparkSession, url: str, uri: str) -> None:
    """DuckDB through the wheel of deltalake: its own extensions for Delta and S3 come from the network."""
    busy_day(url)
    assert run("pipeline", "run", "--lake", uri).code == 0
    table = f"{uri}/jobs"
    found = {"pandas": len(DeltaTable(table).to_pandas()), "polars": polars.read_delta(table).height}
    found |= {"duckdb": by_duckdb(table), "read_table": read_table(spark, uri, "jobs").count()}
    found["format"] = spark.read.format("forebay").option("lake", uri).option("table", "jobs").load().count()
    names = create_views(spark, uri, "stored_")
    assert sorted(names) == sorted(f"stored_{name}" for name in (EVENTS, *TABLES, *VIEWS))
    found["views"] = spark.sql("SELECT count(DISTINCT job_id) FROM stored_events").collect()[0][0]
    assert found == dict.fromkeys(found, 44)
    assert spark.sql("SELECT * FROM stored_retry_spread").collect() == read_table(spark, uri, "retry_spread").collect()
