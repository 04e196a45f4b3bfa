"""Append-only logs: the ledger, as events, and retained logs. Dense offsets, read by ranges, in Arrow batches.

A tail has partitions. The ledger has one; the ledgers of several cells have one for each cell, in the order of the
cells' numbers. `gap_error` rewords `OffsetGone` for users of the data source, whose option `on_gap` decides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.core.entries import LogEntry
from forebay.core.errors import ForebayError, Invalid, OffsetGone, StoreFailed
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.spark.arrow import arrow_schema, event_batches, instants
from forebay.spark.options import Reading
from forebay.spark.schemas import schema_of
from forebay.store.open import CellLedger, LedgerReader, cell_ledgers, open_cell_ledger, open_ledger, open_store
from forebay.store.protocol import Store

LOG: Final = StructType(
    [
        *schema_of("partition int!\noffset long!\nappended_at timestamp!\nkey string").fields,
        StructField("body", BinaryType(), nullable=False),
    ]
)
"""An entry of a retained log."""


_MIN_SAMPLE: Final = 16
_MAX_SAMPLE: Final = 1_000
_SAMPLE_SHARE: Final = 64
"""A bound is estimated from this fraction of the rows within it."""

_PROBES: Final = 4

_REMEDY: Final = "its events are read when it answers again; the other cells are not affected"


class Tail(Protocol):
    """A log with dense offsets."""

    def extents(self) -> list[tuple[int, int]]:
        """Per partition: the first offset still held, and the next one to be written."""

    def within(self, partition: int, start: int, end: int, rows: int) -> int:
        """An end not after `end` with about so many rows before it; beyond `start`, if `end` is."""

    def batches(self, partition: int, start: int, end: int, schema: StructType, rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of [start, end), about so many a batch. `OffsetGone` when it was trimmed."""

    def close(self) -> None: ...


def open_tail(reading: Reading) -> Tail:
    """The ledger or a log of the store behind the URL."""
    if reading.table == "log":
        return LogTail(open_store(reading.url), reading.log)
    cells = cell_ledgers(reading.url)
    return CellsTail(cells) if cells else LedgerTail(open_ledger(reading.url))


class LedgerTail:
    """The ledger as events. An offset is a record's; a record may be many events, or one without a job."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger

    def extents(self) -> list[tuple[int, int]]:
        return [self._ledger.ledger_extent()]

    def within(self, partition: int, start: int, end: int, rows: int) -> int:
        """Estimated from the sizes of the first records and of some further on, by the largest mean."""
        seen, at = 0, start
        for entry in self._records(start, min(end, start + _MAX_SAMPLE), rows // _SAMPLE_SHARE):
            seen += _size(entry)
            at = entry.offset + 1
            if seen >= rows:
                return at
            if seen >= rows // _SAMPLE_SHARE and at - start >= _MIN_SAMPLE:
                break
        guess = min(end, start + max(1, rows * (at - start) // max(1, seen)))
        if guess <= at:
            return max(guess, min(at, end))
        mean = seen / (at - start)
        for probe in range(1, _PROBES + 1):
            page = self._ledger.ledger(at - 1 + (guess - at) * probe // (_PROBES + 1), _MIN_SAMPLE)
            mean = max(mean, sum(map(_size, page)) / max(1, len(page)))
        return max(at, min(guess, start + int(rows / mean)))

    def batches(self, partition: int, start: int, end: int, schema: StructType, rows: int) -> Iterator[pa.RecordBatch]:
        return event_batches(self._records(start, end, rows), schema, rows)

    def close(self) -> None:
        self._ledger.close()

    def _records(self, start: int, end: int, rows: int) -> Iterator[LedgerEntry]:
        """Page by page; a page grows as long as its records are small, so that it holds no more than about `rows`."""
        size = _MIN_SAMPLE
        while start < end:
            page = self._ledger.ledger(start - 1, min(size, end - start))
            if not page:
                raise _missing("the ledger", start, end)
            yield from page
            start = page[-1].offset + 1
            mean = sum(map(_size, page)) / len(page)
            size = max(1, min(MAX_BATCH, size * 4, int(rows / mean)))


class CellsTail:
    """The ledgers of several cells, each with its own offsets.

    A row has the number of its cell in `cell` and its offset in that ledger in `seq`; its job id is the one that all
    cells use. A cell is opened when it is read: one that does not answer is named, and delays no other.
    """

    def __init__(self, cells: list[CellLedger]) -> None:
        self.cells: Final = cells
        self._tails: dict[int, LedgerTail] = {}

    def extents(self) -> list[tuple[int, int]]:
        return [self.extent(partition) for partition in range(len(self.cells))]

    def extent(self, partition: int) -> tuple[int, int]:
        """Of one cell; `StoreFailed` names it where it does not answer."""
        with self._naming(partition):
            return self._tail(partition).extents()[0]

    def within(self, partition: int, start: int, end: int, rows: int) -> int:
        with self._naming(partition):
            return self._tail(partition).within(0, start, end, rows)

    def batches(self, partition: int, start: int, end: int, schema: StructType, rows: int) -> Iterator[pa.RecordBatch]:
        number = self.cells[partition].number
        own = (
            schema if "offset" in schema.names else StructType([*schema.fields, StructType().add("offset", "long")[0]])
        )
        with self._naming(partition):
            for batch in self._tail(partition).batches(0, start, end, own, rows):
                yield _placed(batch, number).select(schema.names)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def _tail(self, partition: int) -> LedgerTail:
        if partition not in self._tails:
            self._tails[partition] = LedgerTail(open_cell_ledger(self.cells[partition]))
        return self._tails[partition]

    @contextmanager
    def _naming(self, partition: int) -> Iterator[None]:
        name = f"cell {self.cells[partition].name}"
        try:
            yield
        except OffsetGone as error:
            raise OffsetGone(f"the ledger of {name}", partition, error.requested, error.first) from None
        except (Invalid, StoreFailed) as error:
            raise StoreFailed(name, str(error), _REMEDY) from error


class LogTail:
    """A retained log."""

    def __init__(self, store: Store, log: str) -> None:
        self._store = store
        self._log = log

    def extents(self) -> list[tuple[int, int]]:
        return self._store.extent(self._log)

    def within(self, partition: int, start: int, end: int, rows: int) -> int:
        return min(end, start + rows)

    def batches(self, partition: int, start: int, end: int, schema: StructType, rows: int) -> Iterator[pa.RecordBatch]:
        ready: list[LogEntry] = []
        while start < end:
            page = self._store.read(self._log, partition, start - 1, min(MAX_BATCH, end - start))
            if not page:
                raise _missing(f"log {self._log!r} partition {partition}", start, end)
            ready += page
            start = page[-1].offset + 1
            if len(ready) >= rows or start >= end:
                yield _log_batch(ready, schema)
                ready = []

    def close(self) -> None:
        self._store.close()


def gap_error(error: OffsetGone) -> ForebayError:
    """The error for users of the data source."""
    return ForebayError(
        f"{error.log} partition {error.partition}: offset {error.requested} was trimmed; it begins at {error.first}; "
        f"nothing was skipped: start from another checkpoint, or set .option('on_gap', 'skip') to continue without the "
        f"{error.first - error.requested} that are gone, and retain more of it"
    )


def _size(entry: LedgerEntry) -> int:
    """Its number of events."""
    return max(1, entry.record.jobs)


def _missing(what: str, start: int, end: int) -> ForebayError:
    return ForebayError(f"{what} ends before offset {start}, {end} was its end before; is it the same store?")


def _log_batch(entries: list[LogEntry], schema: StructType) -> pa.RecordBatch:
    columns = {
        "partition": lambda: pa.array([entry.partition for entry in entries]),
        "offset": lambda: pa.array([entry.offset for entry in entries]),
        "appended_at": lambda: instants(np.array([entry.at for entry in entries], np.int64)),
        "key": lambda: pa.array([entry.key for entry in entries], pa.string()),
        "body": lambda: pa.array([entry.body for entry in entries], pa.binary()),
    }
    target = arrow_schema(schema)
    return pa.RecordBatch.from_arrays([columns[field.name]().cast(field.type) for field in target], schema=target)


def _placed(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """With the cell and the offset of each row in that cell's ledger, if these columns were requested."""
    columns = {"cell": pa.repeat(pa.scalar(number, pa.int32()), len(batch)), "seq": batch["offset"]}
    for name, values in columns.items():
        if (index := batch.schema.get_field_index(name)) >= 0:
            batch = batch.set_column(index, batch.schema.field(name), values)
    return batch
