"""Tables of a lake by the data source `forebay`: a task of Python reads each Parquet file, wherever the lake is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forebay.spark.arrow import arrow_schema
from forebay.spark.lake import DataFile, Lake
from forebay.spark.options import LakeReading


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


def read_file(lake: Lake, table: str, path: str, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one file, with the day of its partition."""
    target = arrow_schema(schema)
    folder = path.partition("/")[0]
    with lake.files(table).open_input_file(path) as file:
        parquet = pq.ParquetFile(file)
        stored = set(parquet.schema_arrow.names)
        for batch in parquet.iter_batches(columns=[name for name in target.names if name in stored]):
            columns = [
                batch[field.name].cast(field.type) if field.name in stored else _absent(folder, len(batch), field)
                for field in target
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def read_rows(
    lake: Lake,
    name: str,
    files: Iterable[DataFile],
    schema: StructType,
    wanted: Mapping[str, NDArray[np.int64]] | None = None,
    unwanted: Mapping[str, NDArray[np.int64]] | None = None,
) -> pa.Table:
    """Rows of these files, in this process. `wanted`: only rows with one of these numbers in one of these columns.
    `unwanted`: none of those."""

    def chosen() -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in read_file(lake, name, file.path, schema):
                kept = batch if wanted is None else batch.filter(_among(batch, wanted))
                yield kept if unwanted is None else kept.filter(pc.invert(_among(kept, unwanted)))

    return pa.Table.from_batches(chosen(), arrow_schema(schema))


def _among(batch: pa.RecordBatch, numbers: Mapping[str, NDArray[np.int64]]) -> pa.Array:
    masks = [pc.is_in(batch[column], value_set=pa.array(own, pa.int64())) for column, own in numbers.items()]
    return reduce(pc.or_, masks)


def _absent(folder: str, rows: int, field: pa.Field) -> pa.Array:
    """The day is in the path and not in the file. Another column is null in files that are older than it."""
    if field.name != "day":
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(date.fromisoformat(folder.removeprefix("day=")), field.type), rows)
