"""What the tests of lakes share: its rows as its files hold them, and events of a store, both without Spark."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.spark.lake import REVISION, DataFile, Lake
from forebay.spark.landing import land
from forebay.spark.options import Reading
from forebay.spark.reading import ReadRange


def plain(lake: Lake, name: str) -> list[str]:
    """Rows to compare, but for sketches and their percentiles: merged in other steps they are near, not equal."""
    return sorted(str(sorted(row.items())) for row in _rows(lake, name))


def places(lake: Lake) -> list[tuple[int, int]]:
    """Each event's place in the ledger."""
    return [(row["offset"], row["place"]) for row in _rows(lake, "events")]


def landed(lake: Lake, url: str, start: int, end: int) -> list[DataFile]:
    """What one task does with these offsets."""
    return land(lake, Reading.of({"url": url, "table": "events"}), ReadRange(0, start, end))


def brought(lake: Lake, url: str, end: int) -> None:
    """All events below this offset, by one commit."""
    table = lake.table("events")
    table.commit(landed(lake, url, table.end, end), end)


def _rows(lake: Lake, name: str) -> Iterator[dict[str, Any]]:
    table = lake.table(name, 1 if name == "events" else REVISION)
    for file in table.files:
        with lake.files(name).open_input_file(file.path) as opened:
            rows = pq.ParquetFile(opened).read()
        names = [each for each in rows.column_names if not re.search(r"_(sketch|p\d\d)$", each)]
        for row in pa.table({each: rows[each] for each in names}).to_pylist():
            yield file.partition | row
