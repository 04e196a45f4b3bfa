"""Two writers of one lake, and one that is killed: on a file system and on object stores every event is there, once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from forebay.spark.arrow import arrow_schema
from forebay.spark.lake import Conflict, DataFile, Lake, LakeTable, missing_events
from forebay.spark.lake_reader import read_events, read_table
from forebay.spark.maintenance import Maintenance, maintain
from forebay.spark.pipeline import Pipeline
from forebay.spark.refresh import _Refresh
from forebay.spark.tables import TABLES
from tests.spark.lakes import landed, places, plain
from tests.spark.sample_stores import busy_day, opened

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from forebay.spark.lake import Lake
from tests.spark.lakes import landed
lake, url, end = Lake.at(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print(len(landed(lake, url, 0, end)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy_day(url)
    return url


@pytest.fixture(params=["file", "s3", "gs", pytest.param("abfss", marks=pytest.mark.nightly)])
def lake(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Lake:
    if request.param == "file":
        return Lake.of(tmp_path / "lake", url)
    return Lake.of(f"{request.getfixturevalue(request.param)}/{tmp_path.name}", url)


def head(url: str) -> int:
    with opened(url) as store:
        found: int = store.ledger_extent()[1]
    return found


def files_of(lake: Lake, name: str) -> set[str]:
    """All Parquet files that are there, whether a commit names them or not."""
    from pyarrow.fs import FileSelector

    found = lake.files(name).get_file_info(FileSelector("", recursive=True))
    return {each.path for each in found if each.path.endswith(".parquet")}


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commits of two writers: both have written their files before either commits."""
    barrier, commit = Barrier(2, timeout=100), LakeTable.commit

    def together(
        self: LakeTable,
        added: list[DataFile],
        end: int,
        removed: Sequence[DataFile] = (),
        apps: Mapping[str, int] | None = None,
    ) -> None:
        if not self.end:
            barrier.wait()
        commit(self, added, end, removed, apps)

    monkeypatch.setattr(LakeTable, "commit", together)


def _add(lake: Lake, files: list[DataFile], end: int) -> None:
    with suppress(Conflict):
        lake.table("events").commit(files, end)


def both(work: Callable[[], T]) -> list[T]:
    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(work), pool.submit(work)]]


@pytest.mark.usefixtures("meeting")
def test_two_pipelines_that_race_add_every_event_once(spark: SparkSession, url: str, lake: Lake) -> None:
    done = both(lambda: Pipeline(spark, lake, url).run(tables=False))
    assert sorted(each.records for each in done) == [0, head(url)]
    found = places(lake)
    assert len(found) == len(set(found)) == sum(each.events for each in done) == read_events(spark, lake).count()
    assert {offset for offset, _ in found} == set(range(head(url)))
    assert (lake.table("events").version, missing_events(lake.contents())) == (1, [])
    assert len(files_of(lake, "events")) == len(lake.table("events").files), "the second one has removed its files"


@pytest.mark.usefixtures("meeting")
def test_two_refreshes_that_race_change_a_table_once(spark: SparkSession, url: str, lake: Lake) -> None:
    files = landed(lake, url, 0, head(url))
    both(lambda: _add(lake, files, head(url)))
    lake.create("jobs", arrow_schema(TABLES["jobs"].schema), ["day"])
    done = both(lambda: _Refresh(spark, lake).refresh(TABLES["jobs"]))
    assert sorted(each.written for each in done) == [0, done[0].rows]
    assert {each.rows for each in done} == {len(plain(lake, "jobs"))} == {read_table(spark, lake.uri, "jobs").count()}
    assert lake.table("jobs").version == 1


def test_a_writer_killed_before_its_commit_leaves_nothing_that_counts(
    spark: SparkSession, url: str, lake: Lake
) -> None:
    words = [sys.executable, "-c", KILLED, lake.uri, url, str(head(url))]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    killed = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    orphans = files_of(lake, "events")
    assert len(orphans) == int(killed.stdout) > 0
    assert (lake.contents().end, lake.contents().event_count, read_events(spark, lake).count()) == (0, 0, 0)
    done = Pipeline(spark, lake, url).run(tables=False)
    assert len(places(lake)) == len(set(places(lake))) == done.events
    assert {offset for offset, _ in places(lake)} == set(range(head(url)))
    maintain(lake, Maintenance(grace=timedelta(0)))
    assert not orphans & files_of(lake, "events")
    assert len(places(lake)) == done.events
