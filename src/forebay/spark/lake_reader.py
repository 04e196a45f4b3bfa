"""Tables of a lake by the data source `forebay`: a task of Python reads each Parquet file, wherever the lake is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forebay.spark.arrow import arrow_schema
from forebay.spark.lake import Lake
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


def _absent(folder: str, rows: int, field: pa.Field) -> pa.Array:
    """The day is in the path and not in the file. Another column is null in files that are older than it."""
    if field.name != "day":
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(date.fromisoformat(folder.removeprefix("day=")), field.type), rows)
