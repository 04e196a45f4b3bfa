"""Reading a lake: as DataFrames, as SQL views, as rows in this process, and by the data source `forebay`.

Spark reads the files of a lake on a file system itself. Those of an object store are read by tasks of Python through
delta-rs, one a file, so that no jar is needed. Views are computed from the events when they are read.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forebay.core.errors import ForebayError, Invalid
from forebay.spark.arrow import Numbers, arrow_schema
from forebay.spark.lake import EVENTS as EVENTS_TABLE
from forebay.spark.lake import REVISION, DataFile, Lake, LakeTable
from forebay.spark.options import LakeReading
from forebay.spark.schemas import EVENTS
from forebay.spark.tables import TABLES, VIEWS

_BUCKET_BITS: Final = 16
"""Precision of the numbers that files are searched for."""


def read_events(spark: SparkSession, lake: Lake, since: int = 0, table: LakeTable | None = None) -> DataFrame:
    """All events of a lake as EVENTS, or those from an offset on. `table`: the version to read."""
    held = lake.table(EVENTS_TABLE) if table is None else table
    files = [file for file in held.files if file.max_values["offset"] >= since]
    rows = read_files(spark, lake, EVENTS_TABLE, files, EVENTS)
    return rows if all(file.min_values["offset"] >= since for file in files) else rows.filter(F.col("offset") >= since)


def read_table(spark: SparkSession, lake: "Lake | str", name: str) -> DataFrame:
    """A table of a lake, as of its last refresh, or a view, computed from the events as they are now."""
    lake = Lake.at(lake) if isinstance(lake, str) else lake
    if name == EVENTS_TABLE:
        return read_events(spark, lake)
    if name in VIEWS:
        return VIEWS[name].build(read_events(spark, lake))
    if name not in TABLES:
        raise Invalid("table", f"there is no {name!r}", f"use {', '.join([EVENTS_TABLE, *TABLES, *VIEWS])}")
    held = lake.tables([name], REVISION)
    return read_files(spark, lake, name, held[name].files if held else [], TABLES[name].schema)


def create_views(spark: SparkSession, lake: "Lake | str", prefix: str = "") -> list[str]:
    """Temporary views for SQL, one for each table of the lake; their names."""
    names = [EVENTS_TABLE, *TABLES, *VIEWS]
    for name in names:
        read_table(spark, lake, name).createOrReplaceTempView(prefix + name)
    return [prefix + name for name in names]


class Touched(NamedTuple):
    """Numbers that files are searched for, shifted right so that they are few, in ascending order."""

    column: str
    shift: int
    buckets: Sequence[int]

    @classmethod
    def of(cls, column: str, numbers: Numbers) -> "Touched":
        shift = _shift(int(numbers.min()), int(numbers.max())) if len(numbers) else 0
        return cls(column, shift, np.unique(numbers >> shift).tolist())

    def meets(self, file: DataFile) -> bool:
        """Whether the file may hold one of them, by its statistics."""
        if self.column not in file.max_values:
            return False
        minimum, maximum = file.min_values[self.column] >> self.shift, file.max_values[self.column] >> self.shift
        first = bisect_left(self.buckets, minimum)
        return first < len(self.buckets) and self.buckets[first] <= maximum


def touched(rows: DataFrame, column: str) -> Touched:
    """The numbers of a column."""
    known = rows.select(column).filter(F.col(column).isNotNull())
    minimum, maximum = known.agg(F.min(column), F.max(column)).collect()[0]
    shift = 0 if minimum is None else _shift(minimum, maximum)
    found = known.select(F.shiftright(column, shift).alias("bucket")).distinct().collect()
    return Touched(column, shift, sorted(row.bucket for row in found))


def _shift(minimum: int, maximum: int) -> int:
    return max(0, (maximum - minimum).bit_length() - _BUCKET_BITS)


def local_rows(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """A few rows of this process. No task of Python reads them. Spark reads no further than to an empty chunk."""
    return spark.createDataFrame(rows.combine_chunks() if len(rows) else arrow_schema(schema).empty_table(), schema)


def read_files(spark: SparkSession, lake: Lake, name: str, files: Iterable[DataFile], schema: StructType) -> DataFrame:
    """These files of a table."""
    paths = [file.path for file in files]
    if not paths:
        return spark.createDataFrame([], schema)
    if not lake.is_local:
        source = spark.read.format("forebay").schema(schema)
        return source.options(lake=lake.uri, table=name, files="\n".join(paths)).load()
    root = lake.table_uri(name)
    reader = spark.read.schema(schema).option("basePath", root)
    return reader.parquet(*(f"{root}/{path}" for path in paths)).select(*schema.names)


@dataclass(frozen=True)
class FilePart(InputPartition):
    path: str


class LakeReader(DataSourceReader):
    """All files of a table as it is when the query is planned, or those that are named."""

    def __init__(self, reading: LakeReading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        reading = self._reading
        paths = reading.files or [file.path for file in Lake.at(reading.lake).table(reading.table).files]
        return [FilePart(path) for path in paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePart)
        yield from read_file(Lake(self._reading.lake), self._reading.table, partition.path, self._schema)


def read_file(
    lake: Lake, table: str, path: str, schema: StructType, wanted: Mapping[str, Numbers] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one file, with the day of its partition. `wanted`: none, if no row has one of these numbers."""
    target = arrow_schema(schema)
    folder = path.partition("/")[0]
    try:
        with lake.files(table).open_input_file(path) as file:
            parquet = pq.ParquetFile(file)
            stored = set(parquet.schema_arrow.names)
            if wanted is not None and not _holds(parquet, wanted):
                return
            for batch in parquet.iter_batches(columns=[name for name in target.names if name in stored]):
                columns = [
                    batch[field.name].cast(field.type) if field.name in stored else _absent(folder, len(batch), field)
                    for field in target
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=target)
    except (pa.ArrowException, OSError) as error:
        raise ForebayError(f"lake file {table}/{path}: {error}") from None


def read_rows(
    lake: Lake,
    name: str,
    files: Iterable[DataFile],
    schema: StructType,
    wanted: Mapping[str, Numbers] | None = None,
    unwanted: Mapping[str, Numbers] | None = None,
) -> pa.Table:
    """Rows of these files, in this process. `wanted`: only rows with one of these numbers in one of these columns.
    `unwanted`: none of those."""

    def chosen() -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in read_file(lake, name, file.path, schema, wanted):
                kept = batch if wanted is None else batch.filter(_among(batch, wanted))
                yield kept if unwanted is None else kept.filter(pc.invert(_among(kept, unwanted)))

    return pa.Table.from_batches(chosen(), arrow_schema(schema))


def _holds(parquet: pq.ParquetFile, wanted: Mapping[str, Numbers]) -> bool:
    """The columns of these numbers are a small part of a file."""
    return any(pc.any(_among(batch, wanted)).as_py() for batch in parquet.iter_batches(columns=[*wanted]))


def _among(batch: pa.RecordBatch, numbers: Mapping[str, Numbers]) -> pa.Array:
    masks = [pc.is_in(batch[column], value_set=pa.array(own, pa.int64())) for column, own in numbers.items()]
    return reduce(pc.or_, masks)


def _absent(folder: str, rows: int, field: pa.Field) -> pa.Array:
    """The day is in the path and not in the file. Another column is null in files that are older than it."""
    if field.name != "day":
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(date.fromisoformat(folder.removeprefix("day=")), field.type), rows)
