"""Rows become Parquet files of a lake in the task that has them; the driver commits what they wrote.

Events go from the ledger's records to columns to a file in one process, without passing row by row through the JVM: a
fraction of the CPU. Tables come from Spark as Arrow batches. Either way a file has a unique name and is visible once a
commit adds it, so a task that is retried, or runs twice, adds nothing twice.

Files are partitioned by day: `day=2030-01-31/NAME.parquet`. Statistics let readers skip files. Every
column has them: readers by pyarrow, such as DuckDB, take a column without statistics for an empty one.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from forebay.core.errors import ForebayError
from forebay.spark.lake import MAX_TABLE_ROWS, DataFile, Lake
from forebay.spark.options import Reading
from forebay.spark.reading import ReadRange, read_range
from forebay.spark.schemas import EVENTS

MAX_ROWS: Final = 500_000
"""Events held in memory, and so in one file."""

_MAX_TEXT: Final = 32
_AFTER_ALL: Final = "\U0010ffff"
_DENSE: Final = ("offset", "place", "job_id", "seq")
"""Columns that mostly increase: delta encoding takes a tenth of the space of a dictionary."""


def land(lake: Lake, reading: Reading, part: ReadRange) -> list[DataFile]:
    """Write all events of a range of offsets as files; an error if some are missing."""
    files: list[DataFile] = []
    ready: list[pa.RecordBatch] = []
    following = part.start
    for batch in read_range(reading, part, EVENTS):
        following = _next_offset(batch, following)
        ready.append(_shifted(batch, part.shift))
        if sum(map(len, ready)) >= MAX_ROWS:
            files += write_files(lake, "events", pa.Table.from_batches(ready))
            ready = []
    if following != part.end:
        raise ForebayError(f"offsets {part.start} … {part.end - 1}: {following} is missing; is the ledger whole?")
    return files + (write_files(lake, "events", pa.Table.from_batches(ready)) if ready else [])


def _shifted(batch: pa.RecordBatch, shift: int) -> pa.RecordBatch:
    """With offsets of the lake."""
    return batch if not shift else batch.set_column(0, batch.schema.field("offset"), pc.add(batch["offset"], shift))


def _next_offset(batch: pa.RecordBatch, following: int) -> int:
    """The offset after this batch; an error unless its records are whole and consecutive."""
    offsets, firsts, counts = np.unique(batch["offset"].to_numpy(), return_index=True, return_counts=True)
    wrong = np.flatnonzero(offsets != following + np.arange(len(offsets)))
    if len(wrong):
        missing = following + int(wrong[0])
        raise ForebayError(f"offset {missing} is missing; nothing was added: is the ledger whole?")
    sizes = batch["places"].fill_null(0).to_numpy()[firsts]
    torn = np.flatnonzero((sizes != 0) & (sizes != counts))
    if len(torn):
        reason = f"offset {offsets[torn[0]]} should be {sizes[torn[0]]} events, {counts[torn[0]]} are there"
        raise ForebayError(f"{reason}; nothing was added: is the ledger whole?")
    return following + len(offsets)


def write_table(lake: Lake, name: str, rows: DataFrame, max_rows: int = MAX_TABLE_ROWS) -> list[DataFile]:
    """Write a DataFrame as files of a table; each task keeps the order of its rows."""
    return _written(rows, partial(write_files, lake, name), max_rows)


def write_rows(lake: Lake, name: str, rows: DataFrame, folder: str, partition: dict[str, str]) -> list[DataFile]:
    """Write a DataFrame as files of one partition of a table that is not partitioned by day."""
    return _written(rows, partial(_write_one, lake, name, folder, partition), MAX_ROWS)


def _write_one(lake: Lake, name: str, folder: str, partition: dict[str, str], table: pa.Table) -> list[DataFile]:
    return [write_file(lake.files(name), f"{folder}/{uuid4().hex}.parquet", table, partition)]


def _written(rows: DataFrame, write: Callable[[pa.Table], list[DataFile]], max_rows: int) -> list[DataFile]:
    described = rows.mapInArrow(partial(_write_batches, write, max_rows), "file string").collect()
    return [msgspec.json.decode(row.file, type=DataFile) for row in described]


def _write_batches(
    write: Callable[[pa.Table], list[DataFile]], max_rows: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    def described(table: pa.Table) -> pa.RecordBatch:
        files = write(table)
        return pa.RecordBatch.from_pydict({"file": [msgspec.json.encode(file).decode() for file in files]})

    ready: list[pa.RecordBatch] = []
    for batch in batches:
        ready.append(batch)
        while sum(map(len, ready)) > max_rows:
            table = pa.Table.from_batches(ready)
            yield described(table.slice(0, max_rows))
            ready = table.slice(max_rows).to_batches()
    if any(map(len, ready)):
        yield described(pa.Table.from_batches(ready))


def write_files(lake: Lake, name: str, table: pa.Table) -> list[DataFile]:
    """A file for each day."""
    place, unique = lake.files(name), uuid4().hex
    return [
        write_file(place, f"day={day}/{unique}.parquet", rows.drop_columns(["day"]), {"day": str(day)})
        for day, rows in _by_day(table)
    ]


def write_file(place: Any, path: str, rows: pa.Table, partition: dict[str, str]) -> DataFile:
    dense = [column for column in _DENSE if column in rows.column_names]
    place.create_dir(path.rpartition("/")[0])
    with place.open_output_stream(path) as out:
        pq.write_table(
            rows,
            out,
            compression="zstd",
            store_schema=False,
            column_encoding=dict.fromkeys(dense, "DELTA_BINARY_PACKED"),
            use_dictionary=[column for column in rows.column_names if column not in dense],
        )
    min_values, max_values, null_counts = {}, {}, {}
    for column in rows.schema:
        null_counts[column.name] = rows[column.name].null_count
        if not (pa.types.is_nested(column.type) or pa.types.is_binary(column.type)):
            ends = pc.min_max(rows[column.name]).as_py()
            if ends["min"] is not None:
                min_values[column.name] = _bound(ends["min"], "")
                max_values[column.name] = _bound(ends["max"], _AFTER_ALL)
    return DataFile(path, place.get_file_info(path).size, len(rows), partition, min_values, max_values, null_counts)


def _bound(value: Any, rest: str) -> Any:
    """As Delta writes a statistic. Long texts are cut."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + rest
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}"
    return value.isoformat() if isinstance(value, date) else value


def _by_day(table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
    """The rows of each day, in their order."""
    days = table["day"].cast(pa.int32()).to_numpy()
    if days.min() != days.max():
        order = np.argsort(days, kind="stable")
        table, days = table.take(pa.array(order)), days[order]
    bounds = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for begin, end in pairwise(bounds):
        yield table["day"][begin], table.slice(begin, end - begin)
