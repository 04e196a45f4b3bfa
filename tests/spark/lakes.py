"""What the tests of lakes share: the rows of a lake as its files hold them, read without Spark."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.spark.lake import Lake

Rows = list[dict[str, Any]]


def plain(lake: Lake, name: str) -> list[str]:
    """Rows to compare, but for sketches and their percentiles: merged in other steps they are near, not equal."""
    return sorted(str(sorted(row.items())) for row in _rows(lake, name))


def places(lake: Lake) -> list[tuple[int, int]]:
    """Each event's place in the ledger."""
    return [(row["offset"], row["place"]) for row in _rows(lake, "events")]


def _rows(lake: Lake, name: str) -> Iterator[dict[str, Any]]:
    contents = lake.contents()
    if name == "events":
        folders = [lake.place(name, part.version) for part in contents.events]
    else:
        days = contents.tables[name].days
        folders = [lake.place(name, piece.version) / f"day={day}" for day, piece in days.items()]
    for file in (file for folder in folders for file in folder.rglob("*.parquet")):
        where = dict(unquote(part).split("=", 1) for part in file.relative_to(lake.home(name)).parts[1:-1])
        table = pq.ParquetFile(file).read()
        names = [each for each in table.column_names if not re.search(r"_(sketch|p\d\d)$", each)]
        for row in pa.table({each: _alike(table[each]) for each in names}).to_pylist():
            yield where | row


def _alike(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as one type: files of Spark's and files of ours name it differently."""
    return column.cast(pa.timestamp("us"), safe=False) if pa.types.is_timestamp(column.type) else column
