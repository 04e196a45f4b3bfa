"""`df.write` and `df.writeStream`: rows become jobs, each once, however often Spark repeats a task or a batch.

A task is a source of the store (`ingest`): its checkpoint moves in the transaction that adds its rows, so a task that
is retried skips the rows that were added and continues after them. A stream's source is (query, partition), and its
checkpoint has the batch; a batch write has its own id, or the option `write_id`, with which a program can be repeated.

Rows must come in the same partitions and the same order each time; a digest verifies those that were added, and a task
with other rows fails instead of losing or repeating some (`retries`). Rows with a `key` are deduplicated as well,
within their queue's window.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from forebay.core.errors import ForebayError, Invalid, QueueFull
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES
from forebay.spark.drafts import check_columns, drafts_of
from forebay.spark.options import Writing
from forebay.spark.retries import DIGEST_BYTES, PartitionAttempt, begin
from forebay.store.open import open_store
from forebay.store.protocol import Checkpoint, Store, Tally

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """Counts of one task's rows. `repeated`: added before. `duplicates`: of jobs with the same key."""

    taken: int = 0
    duplicates: int = 0
    repeated: int = 0


def report(writing: Writing, messages: Sequence[Any]) -> None:
    """Write the counts of all tasks to the file of the option `report`."""
    if writing.report is not None:
        totals: Counter[str] = Counter()
        for message in messages:
            totals.update(asdict(message))
        Path(writing.report).write_bytes(msgspec.json.encode(totals))


class BatchSink(DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, writing: Writing, schema: StructType) -> None:
        check_columns(schema, writing)
        self._writing = writing
        self._attempt = uuid4().bytes
        self._id = writing.write_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(iterator, self._writing, PartitionAttempt(self._id, _task().partitionId(), 0, self._attempt))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._writing, messages)


class StreamSink(DataSourceStreamArrowWriter):
    """One query. Its tasks get query and batch from Spark's local properties."""

    def __init__(self, writing: Writing, schema: StructType) -> None:
        check_columns(schema, writing)
        if writing.write_id is not None:
            raise Invalid(
                "option write_id", "the id of a stream is that of its query", "omit it: the checkpoint has the id"
            )
        self._writing = writing
        self._attempt = uuid4().bytes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise ForebayError("Spark set no query and batch for this task; use Spark 4.1 or newer")
        return write_rows(
            iterator, self._writing, PartitionAttempt(query, task.partitionId(), int(batch), self._attempt)
        )


def write_rows(batches: Iterable[pa.RecordBatch], writing: Writing, attempt: PartitionAttempt) -> Written:
    """Run one task."""
    store = open_store(writing.url)
    try:
        return _PartitionWriter(store, writing, attempt).run(batches)
    finally:
        store.close()


class _PartitionWriter:
    """Adds the rows of one partition of one batch."""

    def __init__(self, store: Store, writing: Writing, attempt: PartitionAttempt) -> None:
        self._store = store
        self._writing = writing
        self._attempt = attempt
        self._known = store.ingested(attempt.source)
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._seen = 0
        self._passed = 0
        self._begun = False
        self._written = Written()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        known = self._known
        if known is not None and known.batch > self._attempt.batch:
            return Written(repeated=sum(len(batch) for batch in batches))
        self._passed = self._added()
        ready: list[Draft] = []
        size = 0
        for draft in (draft for batch in batches for draft in drafts_of(batch, self._writing)):
            if ready and (len(ready) == self._writing.chunk or size + len(draft.body) > BATCH_BYTES):
                self._put(ready)
                ready, size = [], 0
            self._digest.update(draft.body)
            self._seen += 1
            if self._seen > self._passed:
                ready.append(draft)
                size += len(draft.body)
            elif self._seen == self._passed:
                self._compare()
        if ready:
            self._put(ready)
        if self._seen < self._passed:
            raise self._other_rows()
        self._written.repeated = self._seen - self._written.taken
        return self._written

    def _added(self) -> int:
        """How many rows of this batch were added."""
        return self._known.taken if self._known is not None and self._known.batch == self._attempt.batch else 0

    def _put(self, drafts: list[Draft]) -> None:
        if not self._begun:
            begin(self._store, self._attempt, self._writing.patience)
            self._begun = True
        after = self._attempt.checkpoint(self._seen, self._digest.digest())
        tally = self._with_retries(after, drafts)
        if tally is None:
            self._follow()
            return
        self._known = after
        self._written.taken += tally.taken
        self._written.duplicates += tally.duplicates

    def _follow(self) -> None:
        """Another attempt of the same task is ahead: the rows that it has added are skipped."""
        self._known = self._store.ingested(self._attempt.source)
        self._passed = self._added()
        if self._passed < self._seen:
            raise self._other_rows()
        if self._passed == self._seen:
            self._compare()

    def _with_retries(self, after: Checkpoint, drafts: list[Draft]) -> Tally | None:
        """Wait for a full queue."""
        give_up_at = monotonic() + self._writing.patience
        while True:
            try:
                return self._store.ingest(self._attempt.source, self._known, after, drafts)
            except QueueFull as full:
                if monotonic() >= give_up_at or len(drafts) > full.limit:
                    raise
                Event().wait(full.retry_after)

    def _compare(self) -> None:
        """Verify that the rows so far are those that were added, and confirm it for the other tasks."""
        known, digest = self._known, self._digest.digest()
        if known is None or digest != known.digest[:DIGEST_BYTES]:
            raise self._other_rows()
        if not self._attempt.confirmed(known):
            seen = self._attempt.checkpoint(known.taken, digest)
            self._store.ingest(self._attempt.source, known, seen, [])
            self._known = self._store.ingested(self._attempt.source)

    def _other_rows(self) -> Invalid:
        return Invalid(
            f"rows of {self._attempt.source}",
            "they, or their order, differ from those of an earlier attempt, which added some; nothing was added now",
            "make the order the same each time: df.sortWithinPartitions(…), or write a df.checkpoint()",
        )


def _task() -> Any:
    task = TaskContext.get()
    assert task is not None
    return task
