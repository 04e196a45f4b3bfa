"""Events as files: what the records say, by day; what a commit names counts, if it is whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import ForebayError
from forebay.core.job import Draft
from forebay.spark import landing
from forebay.spark.arrow import flatten
from forebay.spark.lake import Lake
from forebay.spark.lake_reader import read_events, read_rows
from forebay.spark.schemas import EVENTS
from tests.spark.lakes import brought, landed, places
from tests.spark.sample_stores import busy_day, opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy_day(url)
    with opened(url) as store:
        store.enqueue([Draft("k", queue="a:b") for _ in range(3)])
        store.pause("default")
    return url


@pytest.fixture
def lake(url: str, tmp_path: Path) -> Lake:
    return Lake.of(tmp_path / "lake", url)


def ledger_rows(url: str) -> list[dict[str, Any]]:
    with opened(url) as store:
        return list(flatten(store.ledger(-1, 1_000), EVENTS).to_pylist())


def test_files_agree_with_the_records(spark: SparkSession, url: str, lake: Lake) -> None:
    rows = ledger_rows(url)
    end = rows[-1]["offset"] + 1
    files = landed(lake, url, 0, 3) + landed(lake, url, 3, end)
    lake.table("events").commit(files, end)
    assert {file.day for file in files} == {str(row["day"]) for row in rows}
    assert (files[0].min_values["offset"], files[-1].max_values["offset"]) == (0, end - 1)
    assert read_events(spark, lake).orderBy("offset", "place").toArrow().to_pylist() == rows
    source = spark.read.format("forebay").option("lake", lake.uri).option("table", "events")
    assert source.load().orderBy("offset", "place").toArrow().to_pylist() == rows


def test_a_file_without_the_wanted_jobs_is_read_no_further_than_their_column(url: str, lake: Lake) -> None:
    brought(lake, url, 1)
    (file,) = lake.table("events").files
    path = Path(lake.uri, "events", file.path)
    content, (group,) = bytearray(path.read_bytes()), [pq.read_metadata(path).row_group(0)]
    columns = [group.column(number) for number in range(group.num_columns)]
    (kind,) = [column for column in columns if column.path_in_schema == "kind"]
    start = kind.dictionary_page_offset
    content[start : start + kind.total_compressed_size] = bytes(kind.total_compressed_size)
    path.write_bytes(content)
    last = file.max_values["job_id"]
    assert len(read_rows(lake, "events", [file], EVENTS, {"job_id": np.array([last + 1])})) == 0
    with pytest.raises(ForebayError, match=rf"lake file events/{file.path}: "):
        read_rows(lake, "events", [file], EVENTS, {"job_id": np.array([last])})


def test_a_task_that_ran_twice_counts_once(url: str, lake: Lake) -> None:
    end = ledger_rows(url)[-1]["offset"] + 1
    lost = landed(lake, url, 0, end)
    brought(lake, url, end)
    assert not {file.path for file in lost} & {file.path for file in lake.table("events").files}
    assert len(places(lake)) == lake.table("events").rows == len(ledger_rows(url))
    lake.discard("events", lost)
    assert not any(Path(lake.uri, "events", file.path).exists() for file in lost)


@pytest.mark.parametrize(
    ("lost", "complaint"),
    [
        (lambda row: row["offset"] == 1, "offset 1 is missing; nothing was added: is the ledger whole"),
        (lambda row: row["offset"] > 2, r"offsets 0 … \d+: 3 is missing"),
        (
            lambda row: row["offset"] == 0 and row["place"] >= 39,
            "offset 0 should be 40 events, 39 are there; nothing was",
        ),
    ],
)
def test_events_that_lost_something_are_refused(
    url: str, lake: Lake, lost: Any, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in ledger_rows(url) if not lost(row)]
    batch = pa.RecordBatch.from_pylist(rows, flatten([], EVENTS).schema)
    end = ledger_rows(url)[-1]["offset"] + 1
    monkeypatch.setattr(landing, "read_range", lambda *_: iter([batch]))
    with pytest.raises(ForebayError, match=complaint):
        landed(lake, url, 0, end)
