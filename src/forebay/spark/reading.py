"""Batch reads: a table of jobs by ranges of ids, the ledger and logs by ranges of offsets.

Partitions are planned on the driver, where the store is opened for the first time: a wrong URL fails there. A part is
read in one task with a connection of its own, in Arrow batches of bounded size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from forebay.core.errors import OffsetGone
from forebay.spark.options import Reading
from forebay.spark.tails import gone, open_tail

_MIN_PART: Final = 1_000
"""Smaller parts cost more to plan than to read."""


@dataclass(frozen=True)
class ReadRange(InputPartition):
    """[start, end) of a partition of a tail, or of the ids. `shift`: from these offsets to those of a lake."""

    partition: int
    start: int
    end: int
    shift: int = 0


def split(partition: int, start: int, end: int, parts: int, least: int = _MIN_PART, shift: int = 0) -> list[ReadRange]:
    """Neighbouring ranges of about the same size, none of them empty."""
    parts = max(1, min(parts, (end - start) // least))
    bounds = [start + (end - start) * number // parts for number in range(parts + 1)]
    return [ReadRange(partition, low, high, shift) for low, high in pairwise(bounds) if low < high]


def read_range(reading: Reading, part: ReadRange, schema: StructType) -> Iterator[pa.RecordBatch]:
    """What a task does, in a batch as in a stream."""
    tail = open_tail(reading)
    try:
        start = part.start
        if reading.on_gap == "skip":
            start = max(start, tail.extents()[part.partition][0])
        yield from tail.batches(part.partition, start, part.end, schema, reading.page)
    except OffsetGone as error:
        raise gone(error) from None
    finally:
        tail.close()


class TailReader(DataSourceReader):
    """All that is retained of the ledger or a log, as it is when the query is planned."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        tail = open_tail(self._reading)
        try:
            extents = tail.extents()
        finally:
            tail.close()
        share = -(-self._reading.partitions // len(extents))
        return [part for number, held in enumerate(extents) for part in split(number, *held, share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadRange)
        return read_range(self._reading, partition, self._schema)
