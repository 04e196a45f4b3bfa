"""The pipeline on Spark: events and tables of a lake, whatever happened to it between two runs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from forebay.cli.command import Invocation
from forebay.cli.spark_commands import spark_of
from forebay.core.errors import Invalid
from forebay.core.job import Draft, State
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.spark import refresh as module
from forebay.spark.lake import Lake, LakeTable
from forebay.spark.lake_reader import read_events, read_table
from forebay.spark.pipeline import Pipeline, PipelineRun
from forebay.spark.sections import check_ledger
from forebay.spark.tables import TABLES
from forebay.store.protocol import Query, Want
from tests.command_result import Run
from tests.spark.lakes import brought, places, plain
from tests.spark.sample_stores import busy_day, opened, worked


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy_day(url)
    return url


class Begun(Struct):
    """A store, and a lake after two runs. Tests go on with a copy of the lake; the store only grows."""

    url: str
    lake: Path
    first: PipelineRun
    again: PipelineRun

    def copied(self, place: Path) -> Lake:
        shutil.copytree(self.lake, place)
        return Lake.of(place, self.url)


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    directory = tmp_path_factory.mktemp("begun")
    url = f"sqlite:///{directory}/jobs.db"
    busy_day(url)
    pipeline = Pipeline(spark, Lake.of(directory / "lake", url), url)
    return Begun(url, directory / "lake", pipeline.run(), pipeline.run())


def extent(url: str) -> tuple[int, int]:
    with opened(url) as store:
        found: tuple[int, int] = store.ledger_extent()
    return found


def test_runs_in_steps_give_what_one_run_gives(spark: SparkSession, begun: Begun, tmp_path: Path) -> None:
    url, steps, again = begun.url, begun.copied(tmp_path / "steps"), begun.again
    assert (again.records, again.events, again.tables) == (0, 0, begun.first.tables)
    busy_day(url, 60)
    with opened(url) as store:
        dead = [job.id for job in store.browse(Query(state=State.DEAD), 0, 10).jobs]
        store.redrive(dead)
    pipeline = Pipeline(spark, steps, url)
    pipeline.run()
    assert pipeline.last_batch is not None
    assert 0 < pipeline.last_batch.tasks < pipeline.last_batch.total
    once = Lake.of(tmp_path / "once", url)
    done = Pipeline(spark, once, url).run()
    head = extent(url)[1]
    assert (steps.contents().end, once.contents().end, done.records) == (head, head, head)
    assert steps.table("events").version == 2
    for name in ("events", *TABLES):
        assert plain(steps, name) == plain(once, name), name
    assert {name: len(plain(steps, name)) for name in TABLES} == done.tables
    assert read_events(spark, steps).count() == len(plain(steps, "events")) == done.events
    assert read_table(spark, steps, "jobs").count() == done.tables["jobs"] > 100


def test_a_refresh_writes_what_changed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few new events of old jobs: the files that hold these jobs are written anew, and no other."""
    monkeypatch.setattr(module, "MAX_TABLE_ROWS", 8)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with opened(url) as store:
        store.enqueue([Draft("k", {"n": n}) for n in range(400)])
    lake = Lake.of(tmp_path / "lake", url)
    whole = Pipeline(spark, lake, url).run()
    assert whole.written["jobs"] == whole.tables["jobs"] == 400
    with opened(url) as store:
        leases = store.claim([Want("default", 3)], "worker", timedelta(seconds=60))
        bounced = DeadLetter(Failure("Bounced", "no such mailbox"))
        store.settle([(lease, bounced if lease is leases[0] else Ack()) for lease in leases])
    done = Pipeline(spark, lake, url).run()
    assert 3 <= done.written["jobs"] <= 40
    assert (done.tables["jobs"], done.tables["attempts"], done.written["attempts"]) == (400, 3, 3)
    with opened(url) as store:
        assert store.redrive([leases[0].job.id])
    redriven = Pipeline(spark, lake, url).run()
    assert redriven.written["jobs"], "nothing has changed: the test shows nothing"
    assert (redriven.written["attempts"], redriven.written["dead_letters"]) == (0, 0)
    again = Pipeline(spark, lake, url).run()
    assert (again.tables, set(again.written.values())) == (done.tables, {0})
    once = Lake.of(tmp_path / "once", url)
    Pipeline(spark, once, url).run()
    for name in TABLES:
        assert plain(lake, name) == plain(once, name), name


def test_a_table_that_was_left_behind_catches_up(spark: SparkSession, begun: Begun, tmp_path: Path) -> None:
    """As after a crash between the commits of two tables."""
    url, lake = begun.url, begun.copied(tmp_path / "lake")
    behind = begun.copied(tmp_path / "behind")
    busy_day(url, 20)
    Pipeline(spark, lake, url).run()
    for name in ("redeliveries", "service_levels"):
        shutil.rmtree(tmp_path / "lake" / name)
        shutil.copytree(tmp_path / "behind" / name, tmp_path / "lake" / name)
    assert behind.contents().tables["redeliveries"].end < lake.contents().end
    Pipeline(spark, lake, url).run()
    once = Lake.of(tmp_path / "once", url)
    Pipeline(spark, once, url).run()
    for name in TABLES:
        assert plain(lake, name) == plain(once, name), name


def test_a_crash_before_the_commit_is_recovered(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.of(tmp_path / "lake", url)

    def crash(self: LakeTable, *_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(LakeTable, "commit", crash)
        with pytest.raises(OSError, match="no space left"):
            Pipeline(spark, lake, url).run(tables=False)
    assert (lake.contents().event_count, list((tmp_path / "lake" / "events").rglob("*.parquet")) != []) == (0, True)
    done = Pipeline(spark, lake, url).run(tables=False)
    assert len(places(lake)) == done.events == lake.contents().event_count


def test_a_ledger_that_was_trimmed_or_is_another_is_refused(url: str, tmp_path: Path) -> None:
    first, following = extent(url)
    lake = Lake.of(tmp_path / "lake", url)
    assert check_ledger(url, lake.contents()).new == following - first
    brought(lake, url, 1)
    behind = lake.contents()
    brought(lake, url, following)
    assert check_ledger(url, lake.contents()).new == 0
    lake.table("events").commit([], following + 1)
    with pytest.raises(Invalid, match="was replaced or restored; start another lake"):
        check_ledger(url, lake.contents())
    with opened(url) as store:
        store.put_ledger_rule(LedgerRule(keep_bytes=1))
        store.trim_ledger(100)
    with pytest.raises(Invalid, match=r"offsets 1 … \d+ were trimmed before the pipeline had read them; start another"):
        check_ledger(url, behind)


def test_spark_starts_for_new_records_and_few_need_no_optimizing_compiler(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless tables have to be made from all events. Where nothing is new, there is no session."""
    url, short = f"sqlite:///{tmp_path}/jobs.db", list[bool]()

    @contextmanager
    def noted(call: Invocation, **options: bool) -> Iterator[SparkSession]:
        short.append(options["short"])
        with spark_of(call, **options) as spark:
            yield spark

    monkeypatch.setattr("forebay.cli.pipeline.spark_of", noted)
    for first in (0, 3):
        worked(url, tmp_path, 3, first=first)
        assert run("pipeline", "run", "--store", url, "--lake", "lake").code == 0
    monkeypatch.setattr("forebay.cli.pipeline._MAX_SHORT", 2)
    worked(url, tmp_path, 3, first=6)
    assert run("pipeline", "run", "--store", url, "--lake", "lake").code == 0
    again = run("pipeline", "run", "--store", url, "--lake", "lake", "--json")
    assert short == [False, True, False]
    assert (json.loads(again.out)["tables"]["jobs"], set(json.loads(again.out)["written"].values())) == (9, {0})
