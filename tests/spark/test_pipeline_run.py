"""The pipeline on Spark: events and tables of a lake, whatever happened to it between two runs."""

import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from forebay.core.errors import ForebayError, Invalid
from forebay.core.job import State
from forebay.core.ledger import LedgerRule
from forebay.spark import pipeline as module
from forebay.spark.frames import read_events, read_table
from forebay.spark.lake import Contents, Lake, Part, holes
from forebay.spark.pipeline import Done, Pipeline, check_ledger
from forebay.spark.tables import TABLES
from forebay.store.protocol import Query
from tests.spark.ground import busy_day, opened
from tests.spark.lakes import places, plain


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy_day(url)
    return url


class Begun(Struct):
    """A store, and a lake after two runs. Tests go on with a copy of the lake; the store only grows."""

    url: str
    lake: Path
    first: Done
    again: Done

    def copied(self, place: Path) -> Lake:
        shutil.copytree(self.lake, place)
        return Lake.of(place, self.url)


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    ground = tmp_path_factory.mktemp("begun")
    url = f"sqlite:///{ground}/jobs.db"
    busy_day(url)
    pipeline = Pipeline(spark, Lake.of(ground / "lake", url), url)
    return Begun(url, ground / "lake", pipeline.run(), pipeline.run())


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
    Pipeline(spark, steps, url).run()
    once = Lake.of(tmp_path / "once", url)
    done = Pipeline(spark, once, url).run()
    head = extent(url)[1]
    assert (steps.contents().end, once.contents().end, done.records) == (head, head, head)
    assert len(steps.contents().events) == 2
    for name in ("events", *TABLES):
        assert plain(steps, name) == plain(once, name), name
    assert {name: len(plain(steps, name)) for name in TABLES} == done.tables
    assert read_events(spark, steps).count() == len(plain(steps, "events")) == done.events
    assert read_table(spark, steps, "jobs").count() == done.tables["jobs"] > 100


def test_a_lost_checkpoint_costs_no_event_and_brings_none_twice(
    spark: SparkSession, begun: Begun, tmp_path: Path
) -> None:
    url, lake = begun.url, begun.copied(tmp_path / "lake")
    shutil.rmtree(lake.checkpoint)
    busy_day(url, 20)
    Pipeline(spark, lake, url).run(tables=False)
    found = places(lake)
    assert len(found) == len(set(found)) > begun.first.events
    assert {offset for offset, _ in found} == set(range(extent(url)[1]))
    assert holes(lake.contents()) == []


def test_a_crash_between_the_write_and_its_name_is_made_good(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.of(tmp_path / "lake", url)

    def crash(self: Lake, contents: Contents) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(Lake, "replace", crash)
        with pytest.raises(OSError, match="no space left"):
            Pipeline(spark, lake, url).run(tables=False)
    assert lake.contents().events == []
    assert list(lake.home("events").iterdir()) != []
    done = Pipeline(spark, lake, url).run(tables=False)
    assert len(places(lake)) == done.events == lake.contents().event_count


@pytest.mark.nightly
def test_many_small_parts_become_one(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FAN", 2)
    lake = Lake.of(tmp_path / "lake", url)
    for count in (21, 22, 23):
        Pipeline(spark, lake, url).run(tables=False)
        busy_day(url, count)
    Pipeline(spark, lake, url).run(tables=False)
    (part,) = lake.contents().events
    assert (part.first, part.end, part.level) == (0, extent(url)[1], 2)
    assert len(set(places(lake))) == part.events


@pytest.mark.nightly
def test_a_batch_with_a_hole_is_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", url)
    Pipeline(spark, lake, url).run(tables=False)
    busy_day(url, 20)
    contents = lake.contents()
    kept = msgspec.structs.replace(contents.events[0], end=contents.end - 1)
    lake.replace(msgspec.structs.replace(contents, events=[kept], tables={}))
    with pytest.raises(ForebayError, match=r"the batch begins at offset \d+, the lake ends at \d+; nothing was added"):
        Pipeline(spark, lake, url).run(tables=False)
    assert lake.contents().events == [kept]


def test_a_ledger_that_was_trimmed_or_is_another_is_refused(url: str, tmp_path: Path) -> None:
    first, following = extent(url)
    seen = Contents(1, "x", 1, [Part(0, first, following, 9)])
    assert check_ledger(url, seen) == (first, following)
    with pytest.raises(Invalid, match="is not the store it was; begin another lake"):
        check_ledger(url, msgspec.structs.replace(seen, events=[Part(0, 0, following + 1, 9)]))
    with opened(url) as store:
        store.put_ledger_rule(LedgerRule(keep_bytes=1))
        store.trim_ledger(100)
    with pytest.raises(Invalid, match=r"offsets 1 … \d+ were trimmed before the pipeline had read them; begin another"):
        check_ledger(url, msgspec.structs.replace(seen, events=[Part(0, 0, 1, 9)]))
