"""The pipeline: the ledger streams into the events of a lake, and the tables follow.

What is in the lake is known by the ledger's own dense offsets, not by the numbers of micro-batches: a batch brings what
lies beyond the last offset that the contents name, all of it, or nothing. So a batch that Spark repeats after a crash
adds nothing, and a checkpoint that is lost or old costs time, never events. After each write the files are read back,
and their offsets must be whole: first to last, each there.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from forebay.core.errors import ForebayError, Invalid
from forebay.spark.failures import plain
from forebay.spark.frames import read_events, write_rows
from forebay.spark.lake import Contents, Lake, Part, identity
from forebay.spark.landing import counted
from forebay.spark.options import Reading
from forebay.spark.refresh import refresh
from forebay.spark.tails import open_tail

_FAN: Final = 8
"""So many small neighbouring parts become one."""

_LARGE: Final = 250_000
"""A part with so many events is not small."""

_LOOK_SECONDS: Final = 1
_EVENTS_MOST: Final = 2_000_000
_RECORDS_MOST: Final = 500_000
"""A micro-batch has its own price, about half a second."""

_TASKS_A_CORE: Final = 4


class Done(Struct, frozen=True):
    """What a run brought: records and events of the ledger, and in how many seconds."""

    records: int
    events: int
    seconds: float
    tables: dict[str, int]


class Pipeline:
    """One store, one lake, one session. `hear` is told what happens, a line at a time."""

    def __init__(self, spark: SparkSession, lake: Lake, url: str, hear: Callable[[str], object] | None = None) -> None:
        self._spark = spark
        self._lake = lake
        self._url = url
        self._hear = hear
        self._tables_every = inf
        self._refreshed_at = monotonic()
        self._turn = Lock()
        self._open = False
        self._failure: Exception | None = None

    def run(self, *, tables: bool = True) -> Done:
        """Bring all that the ledger holds by now, then the tables, unless these can wait."""
        with self._lake.writing():
            began, before = monotonic(), self._lake.contents()
            if check_ledger(self._url, before)[1] > before.end:
                self._flow(self._stream().trigger(availableNow=True), Event())
            return self._done(before, began, self._refresh() if tables else {})

    def stream(self, every: float, stop: Event, tables_every: float) -> Done:
        """Likewise, again and again, until `stop` is set; the tables so often, and at the end."""
        with self._lake.writing():
            began, before = monotonic(), self._lake.contents()
            check_ledger(self._url, before)
            self._tables_every = tables_every
            self._flow(self._stream().trigger(processingTime=f"{every} seconds"), stop)
            return self._done(before, began, self._refresh())

    def _stream(self) -> DataStreamWriter:
        source = self._spark.readStream.format("forebay").options(
            url=self._url, table="events", lake=str(self._lake.path)
        )
        files = source.options(max_events=_EVENTS_MOST, max_records=_RECORDS_MOST, partitions=_tasks()).load()
        return files.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._lake.checkpoint))

    def _flow(self, writer: DataStreamWriter, stop: Event) -> None:
        self._failure = None
        self._open = True
        query = writer.start()
        try:
            while not stop.is_set() and not query.awaitTermination(_LOOK_SECONDS):
                pass
        except PySparkException as error:
            raise self._failure or plain(error) from None
        finally:
            # A batch that is under way is finished first; nobody else writes from here on.
            with self._turn:
                self._open = False
            # It tells again of what has failed, or of a batch that came too late.
            with suppress(Exception):
                query.stop()

    def _take(self, batch: DataFrame, number: int) -> None:
        """One micro-batch, in a thread of Spark's. What raises here is not behind the checkpoint."""
        with self._turn:
            if not self._open:
                raise ForebayError("the pipeline was stopped")
            try:
                self._step(batch)
            except Exception as error:
                self._failure = error
                raise

    def _step(self, batch: DataFrame) -> None:
        self._add(batch)
        while merged := _mergeable(self._lake.contents().events):
            self._merge(merged)
        if monotonic() - self._refreshed_at >= self._tables_every:
            self._refresh()

    def _add(self, batch: DataFrame) -> None:
        began, contents = monotonic(), self._lake.contents()
        files = [row.file for row in batch.collect()]
        if not files:
            return
        part = self._kept(self._lake.landed(files), contents)
        if contents.events and part.first != contents.end:
            reason = f"the batch begins at offset {part.first}, the lake ends at {contents.end}"
            raise ForebayError(f"lake {self._lake.path}: {reason}; nothing was added: begin another lake")
        self._name(contents, [*contents.events, part])
        speed = part.events / max(0.001, monotonic() - began)
        self._say(f"offsets {part.first} … {part.end - 1}: {part.events:,} events ({speed:,.0f} a second)")

    def _merge(self, parts: Sequence[Part]) -> None:
        """One part in place of several small ones: fewer and larger files."""
        contents = self._lake.contents()
        frame = read_events(self._spark, self._lake, parts[0].first).hint("rebalance", "day", "queue")
        draft = self._lake.draft("events")
        write_rows(frame, draft)
        part = self._kept(draft, contents)
        if (part.first, part.end) != (parts[0].first, parts[-1].end):
            raise ForebayError(f"lake {self._lake.path}: parts were merged and do not hold what they held before")
        merged = msgspec.structs.replace(part, level=parts[0].level + 1)
        self._name(contents, [*contents.events[: -len(parts)], merged])

    def _kept(self, draft: Path, contents: Contents) -> Part:
        """What was written, counted from its files, as a new version."""
        part = counted(draft, contents.versions)
        self._lake.put(draft, "events", part.version)
        return part

    def _name(self, contents: Contents, events: list[Part]) -> None:
        self._lake.replace(msgspec.structs.replace(contents, events=events, versions=contents.versions + 1))
        self._lake.sweep()

    def _refresh(self) -> dict[str, int]:
        began = monotonic()
        rows = refresh(self._spark, self._lake)
        self._refreshed_at = monotonic()
        self._say(f"{len(rows)} tables in {self._refreshed_at - began:.1f} s")
        return rows

    def _say(self, line: str) -> None:
        if self._hear is not None:
            self._hear(line)

    def _done(self, before: Contents, began: float, tables: dict[str, int]) -> Done:
        after = self._lake.contents()
        start = before.end if before.events else after.first
        return Done(after.end - start, after.event_count - before.event_count, monotonic() - began, tables)


def check_ledger(url: str, contents: Contents) -> tuple[int, int]:
    """The ledger's extent; `Invalid` when the lake cannot go on with it."""
    tail = open_tail(Reading.of({"url": url, "table": "events"}))
    try:
        ((first, following),) = tail.extents()
    finally:
        tail.close()
    if contents.events and first > contents.end:
        reason = f"offsets {contents.end} … {first - 1} were trimmed before the pipeline had read them"
        raise Invalid("ledger", reason, "begin another lake, and let the ledger keep more: forebay ledger keep --help")
    if following < contents.end:
        reason = f"it ends at offset {following}, the lake at {contents.end}: {identity(url)} is not the store it was"
        raise Invalid("ledger", reason, "begin another lake")
    return first, following


def _tasks() -> int:
    """A few a core: records differ in size, and who is done first takes the next."""
    return _TASKS_A_CORE * (os.cpu_count() or 1)


def _mergeable(parts: Sequence[Part]) -> Sequence[Part]:
    last = parts[-_FAN:]
    alike = len(last) == _FAN and len({part.level for part in last}) == 1
    return last if alike and all(part.events < _LARGE for part in last) else []
