"""The pipeline: the ledger streams into the events of a lake, and the tables follow.

The ledger's dense offsets identify what the lake has: each micro-batch reads from the offset that the events have
reached, or from that of each cell (`sections`), tasks write files, and one commit adds the files and moves the offset.
A batch that a crash interrupted has added nothing, and of two pipelines that commit the same batch the second is
refused by the format. There is no other checkpoint that could be lost, or disagree.
"""

from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from time import monotonic
from typing import Final

from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.spark.failures import unwrapped
from forebay.spark.lake import EVENTS, Conflict, DataFile, Lake, LakeCells
from forebay.spark.landing import land
from forebay.spark.maintenance import Maintenance, maintain
from forebay.spark.options import Reading
from forebay.spark.reading import MIN_RECORDS, ReadRange, split
from forebay.spark.refresh import Refreshed, refresh
from forebay.spark.sections import Positions, check_ledger, next_sections, reached_by
from forebay.spark.session import stage

_TASKS_A_SLOT: Final = 4
"""Records differ in size: small tasks balance the slots."""


class PipelineRun(Struct, frozen=True):
    """Records and events that a run added, and its duration. `tables`: the rows of each. `written`: the rows of each
    that were rewritten."""

    records: int
    events: int
    seconds: float
    tables: dict[str, int]
    written: dict[str, int]


class BatchTimes(Struct, frozen=True):
    """Seconds of a micro-batch: to find its bounds in the ledger, for the tasks that read it and write files, and for
    the commit."""

    bounds: float
    tasks: float
    commit: float

    @property
    def total(self) -> float:
        return self.bounds + self.tasks + self.commit


class Pipeline:
    """One store, one lake, one session. `progress` is called with a line for each step. `last_batch`: of the last
    micro-batch that was added."""

    last_batch: BatchTimes | None = None

    def __init__(
        self, spark: SparkSession, lake: Lake, url: str, progress: Callable[[str], object] | None = None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._url = url
        self._progress = progress
        self._unread: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._records = self._events = 0
        self._tables: dict[str, Refreshed] = {}

    def run(self, *, tables: bool = True) -> PipelineRun:
        """Add all records that the ledger has now, then refresh the tables."""
        self._begin()
        began = monotonic()
        heads = check_ledger(self._url, self._lake.contents()).heads
        while self._batch(heads):
            pass
        if tables:
            self._refresh()
        return self._done(began)

    def stream(
        self, every: float, stop: Event, tables_every: float, maintenance: Maintenance | None = None
    ) -> PipelineRun:
        """Add records continuously until `stop` is set; refresh the tables every `tables_every` seconds, and at the
        end."""
        self._begin()
        began = refreshed = maintained = monotonic()
        check_ledger(self._url, self._lake.contents())
        while not stop.is_set():
            turn = monotonic()
            more = self._batch(None)
            if monotonic() - refreshed >= tables_every:
                self._refresh()
                refreshed = monotonic()
            if maintenance is not None and monotonic() - maintained >= maintenance.every:
                self._say(str(maintain(self._lake, maintenance)))
                maintained = monotonic()
            stop.wait(0 if more else max(0.0, every - (monotonic() - turn)))
        self._refresh()
        return self._done(began)

    def _batch(self, heads: Mapping[int, int] | None) -> bool:
        """Add one micro-batch, not beyond `heads`; whether there are more records."""
        began, table = monotonic(), self._lake.table(EVENTS)
        reading = Reading.of({"url": self._url, "table": "events"})
        sections, positions = next_sections(reading, table, heads)
        self._note_cells(positions)
        if not sections:
            return False
        start, end = (
            at + each.shift for at, each in ((sections[0].start, sections[0]), (sections[-1].end, sections[-1]))
        )
        bounded = monotonic()
        share = max(1, _TASKS_A_SLOT * self._spark.sparkContext.defaultParallelism // len(sections))
        parts = [
            part
            for each in sections
            for part in split(each.position.partition, each.start, each.end, share, MIN_RECORDS, each.shift)
        ]
        try:
            files = self._land(reading, parts)
        except PySparkException as error:
            raise unwrapped(error) from None
        written = monotonic()
        try:
            table.commit(files, end, apps=reached_by(sections))
        except Conflict:
            self._lake.discard(EVENTS, files)
            self._say(f"offsets {start} … {end - 1}: another pipeline has added them")
            return True
        self.last_batch = BatchTimes(bounded - began, written - bounded, monotonic() - written)
        events = sum(file.rows for file in files)
        self._records += end - start
        self._events += events
        speed = events / max(0.001, self.last_batch.total)
        self._say(f"offsets {start} … {end - 1}: {events:,} events ({speed:,.0f} a second)")
        return any(each.more for each in sections)

    def _land(self, reading: Reading, parts: list[ReadRange]) -> list[DataFile]:
        """One part is read here: that takes less than to start a task."""
        if len(parts) == 1:
            return land(self._lake, reading, parts[0])
        landed = self._spark.sparkContext.parallelize(parts, len(parts)).map(partial(land, self._lake, reading))
        with stage(self._spark, "pipeline: events"):
            return [file for each in landed.collect() for file in each]

    def _note_cells(self, positions: Positions) -> None:
        """The lake names the cells, and those that did not answer, before it has events of them."""
        if not positions.names:
            return
        self._lake.put_cells(LakeCells(positions.names, positions.unread))
        for name in sorted(positions.unread.keys() - self._unread):
            self._say(f"{positions.unread[name]}")
        self._unread = set(positions.unread)

    def _refresh(self) -> None:
        began = monotonic()
        before, self._tables = self._tables, refresh(self._spark, self._lake)
        if any(each.written for each in self._tables.values()):
            self._say(f"{len(self._tables)} tables in {monotonic() - began:.1f} s")
        self._tables = {
            name: Refreshed(each.rows, each.written + (before[name].written if name in before else 0))
            for name, each in self._tables.items()
        }

    def _say(self, line: str) -> None:
        if self._progress is not None:
            self._progress(line)

    def _done(self, began: float) -> PipelineRun:
        rows = {name: each.rows for name, each in self._tables.items()}
        written = {name: each.written for name, each in self._tables.items()}
        return PipelineRun(self._records, self._events, monotonic() - began, rows, written)
