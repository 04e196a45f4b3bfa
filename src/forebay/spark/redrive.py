"""Dead letters are redriven by `df.write`: with the same payload as they are, with another payload by a replacement.

A row is the id of a dead job and, if the DataFrame has the column, its new payload. The same payload (or null): the job
itself is redriven, under its id, with all its attempts. Another payload: a new job like it replaces the dead one and
names it (`meta` `redriven_from`), both in one transaction of the store. So nothing is lost whenever it is interrupted,
and a repetition redrives nothing twice: jobs that are no longer dead are skipped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import LongType, StringType, StructType

from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.payload import check_body, decode_payload
from forebay.redrive import RedrivePlan, divided
from forebay.spark.options import Writing
from forebay.spark.sink import report
from forebay.store.open import open_store
from forebay.store.protocol import Store


@dataclass
class RedriveCommit(WriterCommitMessage):
    """Counts of rows. `replaced`: with another payload. `gone`: not dead, or not found."""

    redriven: int = 0
    replaced: int = 0
    gone: int = 0


def redrive(letters: DataFrame, url: str, *, rate: float | None = None, dry_run: bool = False) -> RedriveCommit:
    """Redrive dead letters, up to `rate` a second. The columns are `id` and optionally `payload`; others are ignored.

    A dry run changes nothing and returns the counts.
    """
    columns = [name for name in ("id", "payload") if name in letters.columns]
    with TemporaryDirectory(prefix="forebay-") as folder:
        counts = Path(folder, "redriven.json")
        writer = letters.select(*columns).coalesce(1).write.format("forebay").mode("append")
        writer = writer.option("url", url).option("action", "redrive").option("report", str(counts))
        if rate is not None:
            writer = writer.option("rate", str(rate))
        writer.option("dry_run", str(dry_run).lower()).save()
        return RedriveCommit(**msgspec.json.decode(counts.read_bytes()))


class RedriveSink(DataSourceArrowWriter):
    """One `df.write` with the action redrive."""

    def __init__(self, writing: Writing, schema: StructType) -> None:
        kinds = {"id": LongType(), "payload": StringType()}
        wrong = [field.name for field in schema if kinds.get(field.name) != field.dataType]
        if wrong or "id" not in schema.names:
            reason = f"{', '.join(wrong)} cannot be read" if wrong else "there is no id"
            raise Invalid("columns to redrive", reason, "select id bigint and, to change it, payload string (JSON)")
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RedriveCommit:
        task = TaskContext.get()
        if self._writing.rate is not None and task is not None and task.partitionId():
            raise Invalid("option rate", "the rows come in several partitions", "write df.coalesce(1)")
        store = open_store(self._writing.url)
        try:
            return _redrive_all(store, iterator, self._writing)
        finally:
            store.close()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._writing, messages)


def _redrive_all(store: Store, batches: Iterable[pa.RecordBatch], writing: Writing) -> RedriveCommit:
    total = RedriveCommit()
    due = monotonic()
    for letters in _chunks(batches, RedrivePlan(rate=writing.rate).step):
        if writing.rate is not None:
            Event().wait(max(0.0, due - monotonic()))
            due = max(due, monotonic()) + len(letters) / writing.rate
        one = _redrive_chunk(store, letters, writing.dry_run)
        total = RedriveCommit(*(before + more for before, more in zip(_numbers(total), _numbers(one), strict=True)))
    return total


def _numbers(redriven: RedriveCommit) -> list[int]:
    return list(asdict(redriven).values())


def _chunks(batches: Iterable[pa.RecordBatch], maximum: int) -> Iterator[list[tuple[int, str | None]]]:
    for batch in batches:
        ids = batch.column("id").to_pylist()
        payloads = batch.column("payload").to_pylist() if "payload" in batch.schema.names else [None] * len(ids)
        rows = list(zip(ids, payloads, strict=True))
        yield from (rows[start : start + maximum] for start in range(0, len(rows), maximum))


def _redrive_chunk(store: Store, letters: Sequence[tuple[int, str | None]], dry_run: bool) -> RedriveCommit:
    """A few dead letters."""
    jobs = store.get([job_id for job_id, _ in letters])
    dead = [
        (job, job.payload if payload is None else decode_payload(check_body(payload.encode())))
        for job, (_, payload) in zip(jobs, letters, strict=True)
        if job is not None and job.state is State.DEAD
    ]
    alike, others = divided(dead)
    redriven = len(alike) if dry_run else len(store.redrive(alike))
    replaced = len(others) if dry_run else sum(receipt is not None for receipt in store.replace_dead(others))
    return RedriveCommit(redriven, replaced, len(letters) - redriven - replaced)
