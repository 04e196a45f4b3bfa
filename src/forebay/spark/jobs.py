"""Jobs as a table: one row a job, in any state; what the store keeps of it, payload and errors as JSON.

Read by ranges of ids, each range in one task. A store that exports (Postgres) sends whole runs; any other is browsed
page by page. The store filters by the options queue, state, kind, tenant, subject and range of ids; with the option
`pushdown` also by filters of Spark. A job never changes its range, so each is read once, in a state that it had while
the query ran.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import BooleanType, StructField, StructType

from forebay.core.errors import Invalid
from forebay.core.job import Job, State
from forebay.core.limits import MAX_BATCH
from forebay.spark.arrow import arrow_schema, instants
from forebay.spark.export import exported
from forebay.spark.options import MAX_ID, Reading
from forebay.spark.reading import ReadRange, split
from forebay.spark.schemas import schema_of
from forebay.store.open import open_store
from forebay.store.protocol import Exporting, Query, Store

JOBS: Final = StructType(
    [
        *schema_of("""
id long!
queue string!
kind string!
state string!
payload string!
priority int!
enqueued_at timestamp!
due_at timestamp!
attempt int!
max_attempts int!
delivery int!
key string
tenant string
subject string
deadline timestamp
expires_at timestamp
meta string
owner string
claimed_at timestamp
lease_until timestamp
finished_at timestamp
error_kind string
error string
errors string
result string
""").fields,
        StructField("cancel_requested", BooleanType(), nullable=False),
    ]
)
"""
payload, meta, result   JSON
error_kind, error       of the last failure;  errors: the last few of them, as JSON, oldest first
"""

_FIELDS: Final = ("queue", "state", "kind", "tenant", "subject")
_PAYLOADS: Final = {"payload": "body", "result": "result_body"}
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class JobFilter:
    """Which jobs: those that match the query, with ids in [first, last]."""

    query: Query
    first: int = 1
    last: int = MAX_ID


class JobsReader(DataSourceReader):
    """The jobs of a store, or its dead letters."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._filter = JobFilter(reading.query, reading.first_id, reading.last_id)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            narrower = narrow(self._filter, each) if self._reading.pushdown else None
            if narrower is None:
                yield each
            else:
                self._filter = narrower

    def partitions(self) -> Sequence[InputPartition]:
        store = open_store(self._reading.url)
        try:
            first, last = id_extent(store)
        finally:
            store.close()
        first, last = max(first, self._filter.first), min(last, self._filter.last)
        *parts, newest = split(0, first, last + 1, self._reading.partitions) or [ReadRange(0, first, first)]
        return [*parts, ReadRange(0, newest.start, self._filter.last + 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadRange)
        query, first, last = self._filter.query, partition.start, partition.end - 1
        store = open_store(self._reading.url)
        try:
            if isinstance(store, Exporting):
                yield from exported(store, query, first, last, self._schema)
            else:
                yield from _browsed(store, JobFilter(query, first, last), self._schema, self._reading.page)
        finally:
            store.close()


def narrow(chosen: JobFilter, given: Filter) -> JobFilter | None:
    """The filter with one more condition, if the store can apply it exactly."""
    if not isinstance(given, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    (name, *deeper), value = given.attribute, given.value
    if deeper:
        return None
    if name == "id" and type(value) is int:
        return _by_id(chosen, given, value)
    if name in _FIELDS and isinstance(given, EqualTo | EqualNullSafe) and type(value) is str:
        return _by_field(chosen, name, value)
    return None


def _by_id(chosen: JobFilter, given: Filter, value: int) -> JobFilter:
    first, last = chosen.first, chosen.last
    match given:
        case GreaterThan():
            first = max(first, value + 1)
        case GreaterThanOrEqual():
            first = max(first, value)
        case LessThan():
            last = min(last, value - 1)
        case LessThanOrEqual():
            last = min(last, value)
        case _:
            first, last = max(first, value), min(last, value)
    return JobFilter(chosen.query, first, last)


def _by_field(chosen: JobFilter, name: str, value: str) -> JobFilter | None:
    if getattr(chosen.query, name) is not None:
        return None
    try:
        query = msgspec.structs.replace(chosen.query, **{name: State(value) if name == "state" else value})
    except (Invalid, ValueError):
        return None
    return JobFilter(query, chosen.first, chosen.last)


def id_extent(store: Store) -> tuple[int, int]:
    """The first and the last id; (1, 0) if there are no jobs."""
    if isinstance(store, Exporting):
        return store.id_extent()
    page = store.browse(Query(), 0, 1)
    if not page.jobs:
        return 1, 0
    first = low = page.jobs[0].id
    high = MAX_ID
    while low < high:
        middle = low + (high - low) // 2
        found = store.browse(Query(), middle, 1).jobs
        low, high = (found[0].id, high) if found else (low, middle)
    return first, low


def _browsed(store: Store, chosen: JobFilter, schema: StructType, rows: int) -> Iterator[pa.RecordBatch]:
    ready: list[Job] = []
    after: int | None = chosen.first - 1
    while after is not None and after < chosen.last:
        page = store.browse(chosen.query, after, MAX_BATCH)
        ready += [job for job in page.jobs if job.id <= chosen.last]
        after = page.next
        if len(ready) >= rows:
            yield job_batch(ready, schema)
            ready = []
    if ready:
        yield job_batch(ready, schema)


def job_batch(jobs: Sequence[Job], schema: StructType) -> pa.RecordBatch:
    """These jobs; `schema` is `JOBS` or a part of it."""
    target = arrow_schema(schema)
    columns = [_column(jobs, field.name, field.type).cast(field.type) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _column(jobs: Sequence[Job], name: str, kind: pa.DataType) -> pa.Array:
    special = _SPECIAL.get(name)
    if special is not None:
        return pa.array([special(job) for job in jobs], kind)
    values = [getattr(job, _PAYLOADS.get(name, name)) for job in jobs]
    if pa.types.is_timestamp(kind):
        return instants(np.array([value or 0 for value in values], np.int64))
    return pa.array(values, pa.binary() if name in _PAYLOADS else kind)


def _text(value: object) -> str | None:
    return _encode(value).decode() if value else None


_SPECIAL: Final[dict[str, Callable[[Job], Any]]] = {
    "state": lambda job: job.state.value,
    "meta": lambda job: _text(job.meta),
    "errors": lambda job: _text(job.errors),
    "error_kind": lambda job: job.errors[-1].kind if job.errors else None,
    "error": lambda job: job.errors[-1].message if job.errors else None,
}
