"""Events as files: what the records say, by day and queue; what the driver heard of counts, if it is whole."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import ForebayError, Invalid
from forebay.core.job import Draft
from forebay.spark.arrow import flatten
from forebay.spark.frames import read_events
from forebay.spark.lake import Lake, Part
from forebay.spark.landing import counted, land
from forebay.spark.options import Reading
from forebay.spark.reading import Part as Offsets
from forebay.spark.schemas import EVENTS
from tests.spark.ground import busy_day, opened


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


def told(url: str) -> list[dict[str, Any]]:
    with opened(url) as store:
        return list(flatten(store.ledger(-1, 1_000), EVENTS).to_pylist())


def landed(url: str, lake: Lake, start: int, end: int) -> list[str]:
    """What one task does."""
    reading = Reading.of({"url": url, "table": "events", "lake": str(lake.path)})
    return [file for batch in land(reading, Offsets(0, start, end)) for file in batch.column("file").to_pylist()]


def test_files_say_what_the_records_say(spark: SparkSession, url: str, lake: Lake) -> None:
    rows = told(url)
    end = rows[-1]["offset"] + 1
    files = landed(url, lake, 0, 3) + landed(url, lake, 3, end)
    places = {str(Path(*Path(file).parts[1:3])) for file in files}
    assert {place.partition("/")[2] for place in places} == {
        *("queue=default", "queue=late", "queue=a%3Ab", "queue=__HIVE_DEFAULT_PARTITION__"),
    }
    draft = lake.landed(files)
    part = counted(draft, 0)
    assert part == Part(0, 0, end, len(rows))
    lake.put(draft, "events", 0)
    lake.replace(msgspec.structs.replace(lake.contents(), events=[part], versions=1))
    found = read_events(spark, lake).orderBy("offset", "place").toArrow().to_pylist()
    assert found == rows


def test_a_task_that_was_tried_twice_counts_once(url: str, lake: Lake) -> None:
    end = told(url)[-1]["offset"] + 1
    lost, heard = landed(url, lake, 0, end), landed(url, lake, 0, end)
    assert not set(lost) & set(heard)
    part = counted(lake.landed(heard), 0)
    assert part.events == len(told(url))
    assert all((lake.landing / file).exists() for file in lost), "nobody touches them before the sweep"
    lake.sweep()
    assert not lake.landing.exists()


def test_what_the_lake_holds_is_passed_over(url: str, lake: Lake) -> None:
    end = told(url)[-1]["offset"] + 1
    lake.replace(msgspec.structs.replace(lake.contents(), events=[Part(0, 0, 2, 9)], versions=1))
    assert counted(lake.landed(landed(url, lake, 0, end)), 1).first == 2
    assert landed(url, lake, 0, 2) == []


@pytest.mark.parametrize(
    ("lost", "complaint"),
    [
        (lambda row: row["offset"] == 1, r"offsets 0 … \d+ should be \d+ records, \d+ are there; nothing was added"),
        (
            lambda row: row["offset"] == 0 and row["place"] >= 39,
            "offset 0 should be 40 events, 39 are there; nothing was",
        ),
    ],
)
def test_files_that_lost_something_are_refused(url: str, lake: Lake, lost: Any, complaint: str) -> None:
    draft = lake.landed(landed(url, lake, 0, told(url)[-1]["offset"] + 1))
    for file in draft.rglob("*.parquet"):
        table = pq.ParquetFile(file).read()
        pq.write_table(pa.Table.from_pylist([row for row in table.to_pylist() if not lost(row)], table.schema), file)
    with pytest.raises(ForebayError, match=complaint):
        counted(draft, 0)


def test_a_lake_is_for_events(url: str) -> None:
    with pytest.raises(Invalid, match="option lake: a lake holds events, not jobs"):
        Reading.of({"url": url, "lake": "somewhere"})
