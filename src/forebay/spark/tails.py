"""Append-only logs: the ledger, as events, and retained logs. Dense offsets, read by ranges, in Arrow batches.

A tail has partitions; the ledger has one, the ledgers of several cells (`cells`) one for each. `gone` rewords
`OffsetGone` for users of the data source, whose option `on_gap` decides.
"""

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.core.entries import LogEntry
from forebay.core.errors import ForebayError, OffsetGone
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.spark.arrow import arrow_schema, event_batches, instants
from forebay.spark.options import Reading
from forebay.spark.schemas import schema_of
from forebay.store.open import LedgerReader, cell_ledgers, open_ledger, open_store
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
_SAMPLE_SHARE: Final = 16
"""A bound is estimated from this fraction of the rows within it."""

_PROBES: Final = 4


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
    if not cells:
        return LedgerTail(open_ledger(reading.url))
    from forebay.spark.cells import CellsTail

    return CellsTail(cells)


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


def gone(error: OffsetGone) -> ForebayError:
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
