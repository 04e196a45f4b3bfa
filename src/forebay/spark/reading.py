"""Reads by ranges, in batches and in streams: a table of jobs by ids, the ledger and logs by offsets.

Partitions are planned on the driver, where the store is opened for the first time: a wrong URL fails there. A part is
read in one task with a connection of its own, in Arrow batches of bounded size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from forebay.core.errors import Invalid, OffsetGone
from forebay.spark.options import Reading
from forebay.spark.tails import CellsTail, Tail, gap_error, open_tail

ReaderOffset = dict[str, Any]

_MIN_PART: Final = 1_000
"""Smaller parts cost more to plan than to read."""

MIN_RECORDS: Final = 8
"""Of a part of a micro-batch: a record may hold thousands of events, and a stream that keeps up reads few records a
batch."""


@dataclass(frozen=True)
class ReadRange(InputPartition):
    """[start, end) of a partition of a tail, or of the ids. `shift`: from these offsets to those of a lake."""

    partition: int
    start: int
    end: int
    shift: int = 0


def split(
    partition: int, start: int, end: int, parts: int, minimum: int = _MIN_PART, shift: int = 0
) -> list[ReadRange]:
    """Neighbouring ranges of about the same size, none of them empty."""
    parts = max(1, min(parts, (end - start) // minimum))
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
        raise gap_error(error) from None
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


class TailStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A tail that one query follows: a bound a micro-batch, AvailableNow, several tasks a batch.

    Spark's checkpoint holds the next offset of each partition, and how many were lost where `on_gap` is skip.

        {"next": [n, …], "skipped": k, "late": m}              by partition
        {"next": {"0": n, …}, "skipped": k, "late": m}         by the number of the cell, of the ledgers of cells

    `skipped` were trimmed before a batch was planned. `late` were trimmed while their batch was running: tasks may have
    read some of them before, so it is an upper bound. Reading is repeatable: the same offsets give the same rows.
    """

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._tail: Tail | None = None
        self._target: list[int] | None = None
        self._under_way: tuple[list[int], list[int], int] = ([], [], 0)

    def initialOffset(self) -> ReaderOffset:  # noqa: N802
        extents = self._opened().extents()
        place = 1 if self._reading.start == "latest" else 0
        return {"next": self._keyed([extent[place] for extent in extents]), "skipped": 0, "late": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = [following for _, following in self._opened().extents()]

    def reportLatestOffset(self) -> ReaderOffset:  # noqa: N802
        return {
            "next": self._keyed([following for _, following in self._opened().extents()]),
            "skipped": 0,
            "late": 0,
        }

    def latestOffset(self, start: ReaderOffset, limit: ReadLimit) -> ReaderOffset:  # noqa: N802
        """The end of the next batch within its bounds, which are divided among the partitions."""
        tail = self._opened()
        extents = tail.extents()
        ends: list[int] = []
        skipped = start["skipped"]
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for number, (start_offset, (first, following)) in enumerate(
            zip(self._padded(start, extents), extents, strict=True)
        ):
            begin = self._gap(number, start_offset, first) if start_offset < first else start_offset
            skipped += begin - start_offset
            end = following if self._target is None else min(following, max(begin, self._target[number]))
            if maximum is not None:
                end = min(end, begin + max(1, self._reading.max_records // len(extents)))
                end = tail.within(number, begin, end, max(1, maximum // len(extents)))
            ends.append(max(begin, end))
        return {"next": self._keyed(ends), "skipped": skipped, "late": start.get("late", 0) + self._late(extents)}

    def partitions(self, start: ReaderOffset, end: ReaderOffset) -> Sequence[InputPartition]:
        extents = self._opened().extents()
        share = -(-self._reading.partitions // len(extents))
        parts: list[InputPartition] = []
        begins, ends = self._padded(start, extents), self._padded(end, extents)
        self._under_way = (begins, ends, end["skipped"] - start["skipped"])
        for number, (begin, upto) in enumerate(zip(begins, ends, strict=True)):
            first = extents[number][0]
            held = self._gap(number, begin, first) if begin < first else begin
            parts += split(number, held, upto, share, MIN_RECORDS)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadRange)
        return read_range(self._reading, partition, self._schema)

    def stop(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _late(self, extents: Sequence[tuple[int, int]]) -> int:
        """How many offsets the last batch may have missed, besides those counted when it was planned.

        With `on_gap` fail its tasks would have failed.
        """
        (begins, ends, known), self._under_way = self._under_way, ([], [], 0)
        if self._reading.on_gap == "fail":
            return 0
        gone = [max(0, min(first, end) - begin) for begin, end, (first, _) in zip(begins, ends, extents, strict=False)]
        return max(0, sum(gone) - known)

    def _gap(self, partition: int, requested: int, first: int) -> int:
        """Where to continue after a gap, if gaps are skipped."""
        if self._reading.on_gap == "fail":
            raise gap_error(OffsetGone(self._reading.log or "the ledger", partition, requested, first))
        return first

    def _opened(self) -> Tail:
        if self._tail is None:
            self._tail = open_tail(self._reading)
        return self._tail

    def _keyed(self, ends: list[int]) -> list[int] | dict[str, int]:
        """By partition, or by the number of the cell: a cell keeps its number."""
        tail = self._opened()
        if not isinstance(tail, CellsTail):
            return ends
        return {str(cell.number): end for cell, end in zip(tail.cells, ends, strict=True)}

    def _padded(self, offset: ReaderOffset, extents: Sequence[tuple[int, int]]) -> list[int]:
        """There may be more partitions or cells than before: those are read from their start."""
        known: list[int] | dict[str, int] = offset["next"]
        if isinstance(known, list):
            return known + [first for first, _ in extents[len(known) :]]
        tail = self._opened()
        cells = tail.cells if isinstance(tail, CellsTail) else []
        if gone := sorted(known.keys() - {str(cell.number) for cell in cells}):
            reason = f"the checkpoint has an offset of cell {gone[0]}, which the store does not have"
            raise Invalid("checkpoint", reason, "name the store that it was made of")
        return [known.get(str(cell.number), first) for cell, (first, _) in zip(cells, extents, strict=True)]
