"""Records of the ledger as Arrow columns: `EVENTS`, one row a job and change. Work is per range of jobs, not per job.

A value that all jobs of a range share is built once and repeated by Arrow; only jobs with traits are processed one by
one. Columns that were not requested are not built.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from forebay.core.errors import Invalid
from forebay.core.ledger import Change, JobRange, LedgerEntry, Trait

Numbers = NDArray[np.int64]

_DAY: Final = 86_400_000_000
_LEASED: Final = frozenset({Change.CLAIMED, Change.EXTENDED})
_AGAIN: Final = frozenset({Change.RETRIED, Change.RELEASED, Change.REDRIVEN})
_ENDED: Final = frozenset({Change.ACKED, Change.DISCARDED, Change.CANCELLED})
_NO_RANGE: Final = JobRange("", 0, 1, "", "")
_TRAITS: Final = ("kind", "tenant", "subject", "key", "error_kind", "error", "priority")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a source with this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def narrowed(schema: StructType, whole: StructType, what: str) -> StructType:
    """The requested schema; `Invalid` if it is not a subset of the full one."""
    known = {field.name: field.dataType for field in whole}
    wrong = [
        f"{field.name} {field.dataType.simpleString()}" for field in schema if known.get(field.name) != field.dataType
    ]
    if wrong:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in whole)
        raise Invalid(f"schema of {what}", f"it has no {', '.join(wrong)}", f"choose among {columns}")
    return schema


def instants(values: NDArray[np.int64]) -> pa.Array:
    """Microseconds as timestamps; 0 is null."""
    return pa.array(values, pa.timestamp("us", tz="UTC"), mask=values == 0)


def distinct_numbers(*columns: pa.ChunkedArray) -> Numbers:
    """All values of these columns, each once, in ascending order."""
    values = [column.drop_null().to_numpy() for column in columns]
    return np.unique(np.concatenate([np.empty(0, np.int64), *values]))


def event_batches(entries: Iterable[LedgerEntry], schema: StructType, rows: int = 50_000) -> Iterator[pa.RecordBatch]:
    """The events of these records, in order, in batches of about so many rows; a record is never cut."""
    ready: list[LedgerEntry] = []
    size = 0
    for entry in entries:
        ready.append(entry)
        size += max(1, entry.record.jobs)
        if size >= rows:
            yield flatten(ready, schema)
            ready, size = [], 0
    if ready:
        yield flatten(ready, schema)


def flatten(entries: Sequence[LedgerEntry], schema: StructType) -> pa.RecordBatch:
    """The events of these records; `schema` is `EVENTS` or a part of it."""
    return _Events(entries).batch(schema)


class _Events:
    """The job ranges of some records, and the range of each row."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self._entries = entries
        ranges = [entry.record.ranges or (_NO_RANGE,) for entry in entries]
        self._ranges: list[JobRange] = list(chain.from_iterable(ranges))
        sizes = np.fromiter((job_range.n for job_range in self._ranges), np.int64, len(self._ranges))
        self._owner = np.repeat(np.arange(len(ranges)), list(map(len, ranges)))
        self._range_of = np.repeat(np.arange(len(sizes)), sizes)
        self._entry_of = self._owner[self._range_of]
        self._starts = np.cumsum(sizes) - sizes
        self._rows = int(sizes.sum())
        self._own: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in _TRAITS}
        for start, job_range in zip(self._starts.tolist(), self._ranges, strict=True):
            if job_range.traits is not None:
                self._note(start, job_range.traits)

    def batch(self, schema: StructType) -> pa.RecordBatch:
        target = arrow_schema(schema)
        columns = [self._column(field.name).cast(field.type) for field in target]
        return pa.RecordBatch.from_arrays(columns, schema=target)

    def _column(self, name: str) -> pa.Array:
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self)
        return self._trait(name) if name in _TRAITS else self._repeated(name)

    def _note(self, start: int, traits: Sequence[Trait | None]) -> None:
        """Collect the values of single jobs, by column, with their rows."""
        kinds, kind_values = self._own["kind"]
        for row, trait in enumerate(traits, start):
            if trait is None:
                continue
            if trait.kind is not None:
                kinds.append(row)
                kind_values.append(trait.kind)
            if not (trait.tenant or trait.subject or trait.key or trait.error_kind or trait.error or trait.priority):
                continue
            for name in _TRAITS[1:]:
                value = getattr(trait, name)
                if value:
                    self._own[name][0].append(row)
                    self._own[name][1].append(value)

    def _repeated(self, name: str) -> pa.Array:
        """A value of the ranges, repeated for each of their jobs; 0 and "" are null."""
        values = list(map(attrgetter(name), self._ranges))
        if name in _TEXTS:
            return pa.array([value or None for value in values], pa.string()).take(pa.array(self._range_of))
        column = np.array(values, np.int64)[self._range_of]
        return instants(column) if name.endswith("_at") else pa.array(column, mask=column == 0)

    def _of_record(self, value: Callable[[Any], str | None]) -> pa.Array:
        values = pa.array([value(entry.record) for entry in self._entries], pa.string())
        return values.take(pa.array(self._entry_of))

    def _until(self, changes: frozenset[Change]) -> pa.Array:
        values = [job_range.until if job_range.change in changes else 0 for job_range in self._ranges]
        return instants(np.array(values, np.int64)[self._range_of])

    def _trait(self, name: str) -> pa.Array:
        """A column that is null except for jobs with a value of their own."""
        rows, values = self._own[name]
        if not rows:
            return pa.nulls(self._rows, pa.string())
        places = np.full(self._rows, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return pa.array(values, pa.string()).take(pa.array(places, mask=places < 0))

    def _offsets(self) -> pa.Array:
        return pa.array(np.array([entry.offset for entry in self._entries], np.int64)[self._entry_of])

    def _begins(self) -> NDArray[np.int64]:
        """The first row of each record."""
        return self._starts[np.flatnonzero(np.diff(self._owner, prepend=-1))]

    def _places(self) -> pa.Array:
        return pa.array(np.arange(self._rows) - self._begins()[self._entry_of])

    def _sizes(self) -> pa.Array:
        return pa.array(np.diff(self._begins(), append=self._rows)[self._entry_of])

    def _ats(self) -> NDArray[np.int64]:
        return np.array([entry.record.at for entry in self._entries], np.int64)[self._entry_of]

    def _job_ids(self) -> pa.Array:
        firsts = np.array([job_range.first for job_range in self._ranges], np.int64)[self._range_of]
        none = np.array([job_range is _NO_RANGE for job_range in self._ranges], bool)[self._range_of]
        return pa.array(firsts + np.arange(self._rows) - self._starts[self._range_of], mask=none)

    def _kinds(self) -> pa.Array:
        """The kind of the range, except for jobs with their own. Kinds are few: rows are indices until the end."""
        rows, values = self._own["kind"]
        common = pa.array([job_range.kind or None for job_range in self._ranges], pa.string())
        own = pa.array(values, pa.string()).dictionary_encode()
        numbers = self._range_of.copy()
        numbers[rows] = own.indices.to_numpy() + len(common)
        return pa.concat_arrays([common, own.dictionary]).take(pa.array(numbers))

    def _priorities(self) -> pa.Array:
        """Recorded for new jobs only."""
        born = np.array([job_range.change == Change.ACCEPTED for job_range in self._ranges], bool)[self._range_of]
        column = np.zeros(self._rows, np.int64)
        rows, values = self._own["priority"]
        column[rows] = values
        return pa.array(column, mask=~born)

    def _enqueued(self) -> pa.Array:
        """A job is enqueued when it is accepted, whether or not its range repeats it."""
        column = np.array([job_range.enqueued_at for job_range in self._ranges], np.int64)[self._range_of]
        born = np.array([job_range.change == Change.ACCEPTED for job_range in self._ranges], bool)[self._range_of]
        return instants(np.where(born & (column == 0), self._ats(), column))

    def _ticks(self) -> pa.Array:
        ticks = np.array([entry.record.tick or 0 for entry in self._entries], np.int64)
        return instants(ticks[self._entry_of])


_TEXTS: Final = frozenset({"change", "queue"})
_SPECIAL: Final[dict[str, Callable[[_Events], pa.Array]]] = {
    "offset": _Events._offsets,
    "place": _Events._places,
    "event_at": lambda events: instants(events._ats()),
    "verb": lambda events: events._of_record(lambda record: record.verb),
    "owner": lambda events: events._of_record(lambda record: record.owner),
    "name": lambda events: events._of_record(lambda record: record.name),
    "tick": _Events._ticks,
    "job_id": _Events._job_ids,
    "kind": _Events._kinds,
    "priority": _Events._priorities,
    "enqueued_at": _Events._enqueued,
    "lease_until": lambda events: events._until(_LEASED),
    "next_at": lambda events: events._until(_AGAIN),
    "kept_until": lambda events: events._until(_ENDED),
    "day": lambda events: pa.array(events._ats() // _DAY, pa.int32()),
    "places": _Events._sizes,
    "cell": lambda events: pa.nulls(events._rows, pa.int32()),
    "seq": lambda events: pa.nulls(events._rows, pa.int64()),
}
