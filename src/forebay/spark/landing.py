"""Events on their way into a lake: each task writes its share as Parquet, and the driver hears the names of the files.

A record becomes columns and then a file in one process, without passing row by row through the JVM: a fraction of the
CPU. A file counts once the driver has been told of it and the contents of the lake name it. So a task that is tried
again, or that runs twice, leaves files behind that nobody knows and that the lake sweeps away.

Files have the layout that Spark gives them: `day=…/queue=…`, other columns inside.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.core.errors import ForebayError
from forebay.spark.arrow import arrow_schema
from forebay.spark.lake import Lake
from forebay.spark.lake import Part as Version
from forebay.spark.options import Reading
from forebay.spark.reading import Part, read_part
from forebay.spark.schemas import EVENTS, schema_of

LANDED: Final = schema_of("file string!")
"""A file, relative to the lake's landing."""

_ROWS_MOST: Final = 500_000
"""In memory, and so in a file."""

_NO_QUEUE: Final = "__HIVE_DEFAULT_PARTITION__"
_DENSE: Final = dict.fromkeys(("offset", "place", "job_id"), "DELTA_BINARY_PACKED")
"""Columns that mostly count up: a tenth of the space of any dictionary."""

_WRITING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "store_schema": False,
    "column_encoding": _DENSE,
    "use_dictionary": [name for name in EVENTS.names if name not in _DENSE],
}


def land(reading: Reading, part: Part) -> Iterator[pa.RecordBatch]:
    """What a task does. What the lake holds already is passed over."""
    lake = Lake(Path(reading.lake))
    share = Part(part.partition, max(part.start, lake.contents().end), part.end)
    if share.start < share.end:
        files = list(_files(reading, share, lake.landing / uuid4().hex))
        names = [str(file.relative_to(lake.landing)) for file in files]
        yield pa.RecordBatch.from_arrays([pa.array(names, pa.string())], schema=arrow_schema(LANDED))


def _files(reading: Reading, part: Part, folder: Path) -> Iterator[Path]:
    ready: list[pa.RecordBatch] = []
    number = rows = 0
    for batch in read_part(reading, part, EVENTS):
        ready.append(batch)
        rows += len(batch)
        if rows >= _ROWS_MOST:
            yield from _written(ready, folder, f"{part.start}-{number}")
            ready, rows, number = [], 0, number + 1
    if ready:
        yield from _written(ready, folder, f"{part.start}-{number}")


def _written(batches: list[pa.RecordBatch], folder: Path, name: str) -> Iterator[Path]:
    for day, queue, rows in _by_place(pa.Table.from_batches(batches)):
        file = folder / f"day={day}" / f"queue={quote(queue, safe='') if queue else _NO_QUEUE}" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.drop_columns(["day", "queue"]), file, **_WRITING)
        yield file


def _by_place(table: pa.Table) -> Iterator[tuple[Any, str | None, pa.Table]]:
    """The rows of each day and queue, in their order."""
    queues = table["queue"].combine_chunks().dictionary_encode(null_encoding="encode")
    days = table["day"].cast(pa.int32()).to_numpy()
    keys = days * np.int64(len(queues.dictionary)) + queues.indices.to_numpy()
    if keys.min() != keys.max():
        order = np.argsort(keys, kind="stable")
        table, keys = table.take(pa.array(order)), keys[order]
    bounds = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    for begin, end in pairwise(bounds):
        rows = table.slice(begin, end - begin)
        yield rows["day"][0], rows["queue"][0].as_py(), rows


def counted(place: Path, version: int) -> Version:
    """What these files hold, read back from them: offsets from the first to the last, every record whole."""
    told = pa.concat_tables([pq.ParquetFile(file).read(["offset", "places"]) for file in place.rglob("*.parquet")])
    offsets, firsts, counts = np.unique(told["offset"].to_numpy(), return_index=True, return_counts=True)
    first, last, reason = int(offsets[0]), int(offsets[-1]), ""
    if last - first + 1 != len(offsets):
        reason = f"offsets {first} … {last} should be {last - first + 1} records, {len(offsets)} are there"
    sizes = told["places"].fill_null(0).to_numpy()[firsts]
    torn = np.flatnonzero((sizes != 0) & (sizes != counts))
    if len(torn):
        reason = f"offset {offsets[torn[0]]} should be {sizes[torn[0]]} events, {counts[torn[0]]} are there"
    if reason:
        raise ForebayError(f"{place}: {reason}; nothing was added: is the ledger whole?")
    return Version(version, first, last + 1, len(told))
