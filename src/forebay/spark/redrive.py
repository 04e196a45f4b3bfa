"""Dead letters go back by `df.write`: those with the same payload live again, those with another one are replaced.

A row is the id of a dead job and, where the DataFrame has it, the payload that it should have. The same payload (or
null): the job itself is redriven, under its id, with all its lives. Another payload: the dead job gives way to a new
one that is like it and says whose place it took (`meta` `redriven_from`), both in one transaction of the store. So
nothing is lost whenever it is stopped, and repeating it moves nothing twice: what is no longer dead is left alone.
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
from forebay.redrive import Plan, divided
from forebay.spark.options import Writing
from forebay.spark.sink import report
from forebay.store.open import open_store
from forebay.store.protocol import Store


@dataclass
class Redriven(WriterCommitMessage):
    """What became of the rows, or would become of them. `gone`: not dead, or not known."""

    redriven: int = 0
    mended: int = 0
    gone: int = 0


def redrive(letters: DataFrame, url: str, *, rate: float | None = None, dry_run: bool = False) -> Redriven:
    """Write dead letters back, up to `rate` a second. The columns are `id` and perhaps `payload`; others are let be.

    A dry run changes nothing and tells how many it would have moved.
    """
    columns = [name for name in ("id", "payload") if name in letters.columns]
    with TemporaryDirectory(prefix="forebay-") as folder:
        told = Path(folder, "redriven.json")
        writer = letters.select(*columns).coalesce(1).write.format("forebay").mode("append")
        writer = writer.option("url", url).option("action", "redrive").option("report", str(told))
        if rate is not None:
            writer = writer.option("rate", str(rate))
        writer.option("dry_run", str(dry_run).lower()).save()
        return Redriven(**msgspec.json.decode(told.read_bytes()))


class RedriveSink(DataSourceArrowWriter):
    """One `df.write` of dead letters."""

    def __init__(self, writing: Writing, schema: StructType) -> None:
        kinds = {"id": LongType(), "payload": StringType()}
        wrong = [field.name for field in schema if kinds.get(field.name) != field.dataType]
        if wrong or "id" not in schema.names:
            reason = f"{', '.join(wrong)} cannot be read" if wrong else "there is no id"
            raise Invalid("columns to redrive", reason, "select id bigint and, to change it, payload string (JSON)")
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Redriven:
        task = TaskContext.get()
        if self._writing.rate is not None and task is not None and task.partitionId():
            raise Invalid("option rate", "the rows come in several partitions", "write df.coalesce(1)")
        store = open_store(self._writing.url)
        try:
            return _put_back(store, iterator, self._writing)
        finally:
            store.close()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._writing, messages)


def _put_back(store: Store, batches: Iterable[pa.RecordBatch], writing: Writing) -> Redriven:
    total = Redriven()
    due = monotonic()
    for letters in _some(batches, Plan(rate=writing.rate).step):
        if writing.rate is not None:
            Event().wait(max(0.0, due - monotonic()))
            due = max(due, monotonic()) + len(letters) / writing.rate
        one = _step(store, letters, writing.dry_run)
        total = Redriven(*(before + more for before, more in zip(_numbers(total), _numbers(one), strict=True)))
    return total


def _numbers(redriven: Redriven) -> list[int]:
    return list(asdict(redriven).values())


def _some(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[tuple[int, str | None]]]:
    for batch in batches:
        ids = batch.column("id").to_pylist()
        payloads = batch.column("payload").to_pylist() if "payload" in batch.schema.names else [None] * len(ids)
        rows = list(zip(ids, payloads, strict=True))
        yield from (rows[start : start + most] for start in range(0, len(rows), most))


def _step(store: Store, letters: Sequence[tuple[int, str | None]], dry_run: bool) -> Redriven:
    """A few dead letters."""
    jobs = store.get([job_id for job_id, _ in letters])
    dead = [
        (job, job.payload if payload is None else decode_payload(check_body(payload.encode())))
        for job, (_, payload) in zip(jobs, letters, strict=True)
        if job is not None and job.state is State.DEAD
    ]
    alike, others = divided(dead)
    redriven = len(alike) if dry_run else len(store.redrive(alike))
    mended = len(others) if dry_run else sum(receipt is not None for receipt in store.replace_dead(others))
    return Redriven(redriven, mended, len(letters) - redriven - mended)
