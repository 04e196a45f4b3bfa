"""Streams over the ledger and over logs: dense offsets, a bound a micro-batch, AvailableNow, several tasks a batch.

Spark's checkpoint holds the place: `{"next": [n, …], "skipped": k}`, the next offset of each partition, and how many
were gone before they could be read where `on_gap` is skip. Reading is repeatable: the same offsets give the same rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from forebay.core.errors import OffsetGone
from forebay.spark.landing import land
from forebay.spark.options import Reading
from forebay.spark.reading import Part, read_part, split
from forebay.spark.tails import Tail, gone, open_tail

Offset = dict[str, Any]

_PART_LEAST: Final = 8
"""Offsets a task: a record may be thousands of events, and a stream in step with its store has few records a batch."""


class TailStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One tail, as one query follows it."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._tail: Tail | None = None
        self._target: list[int] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        extents = self._opened().extents()
        place = 1 if self._reading.start == "latest" else 0
        return {"next": [extent[place] for extent in extents], "skipped": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = [following for _, following in self._opened().extents()]

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {"next": [following for _, following in self._opened().extents()], "skipped": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """As far as the bounds let this batch go; each partition has its share of them."""
        tail = self._opened()
        extents = tail.extents()
        ends: list[int] = []
        skipped = start["skipped"]
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for number, (asked, (first, following)) in enumerate(zip(_padded(start, extents), extents, strict=True)):
            begin = self._gap(number, asked, first) if asked < first else asked
            skipped += begin - asked
            end = following if self._target is None else min(following, max(begin, self._target[number]))
            if most is not None:
                end = min(end, begin + max(1, self._reading.max_records // len(extents)))
                end = tail.within(number, begin, end, max(1, most // len(extents)))
            ends.append(max(begin, end))
        return {"next": ends, "skipped": skipped}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        extents = self._opened().extents()
        share = -(-self._reading.partitions // len(extents))
        parts: list[InputPartition] = []
        for number, (begin, upto) in enumerate(zip(_padded(start, extents), _padded(end, extents), strict=True)):
            first = extents[number][0]
            held = self._gap(number, begin, first) if begin < first else begin
            parts += split(number, held, upto, share, _PART_LEAST)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return (
            land(self._reading, partition) if self._reading.lake else read_part(self._reading, partition, self._schema)
        )

    def stop(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _gap(self, partition: int, asked: int, first: int) -> int:
        """Where to go on although something is gone, if that is wanted."""
        if self._reading.on_gap == "fail":
            raise gone(OffsetGone(self._reading.log or "the ledger", partition, asked, first))
        return first

    def _opened(self) -> Tail:
        if self._tail is None:
            self._tail = open_tail(self._reading)
        return self._tail


def _padded(offset: Offset, extents: Sequence[tuple[int, int]]) -> list[int]:
    """A log may have got more partitions since: those are read from their start."""
    known: list[int] = offset["next"]
    return known + [first for first, _ in extents[len(known) :]]
