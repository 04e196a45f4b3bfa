"""Refresh of the tables of a lake from new events: its cost is that of the change.

A table is rewritten file by file. The ids of the jobs, or the days, of new events select files by their statistics;
their rows and those of the new events are merged, and one commit replaces the old files by new ones. The commit carries
the offset that the table has reached. So each table is independent: one that a crash left behind catches up, and of two
concurrent refreshes one is refused and has changed nothing.

Where new events are few, Spark merges only the rows of their jobs; this process copies the other rows of their files.
Where they are many, tasks merge and write whole files. The rules of the tables are the same.

A table of another revision is built from scratch.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.arrow import Numbers, arrow_schema, distinct_numbers
from forebay.spark.lake import EVENTS, MAX_TABLE_ROWS, REVISION, Conflict, DataFile, Lake, LakeTable
from forebay.spark.lake_reader import Touched, local_rows, read_events, read_files, read_rows, touched
from forebay.spark.landing import write_files, write_table
from forebay.spark.schemas import EVENTS as EVENTS_SCHEMA
from forebay.spark.session import FEW, stage, tuned
from forebay.spark.tables import TABLES, Table
from forebay.spark.tables.redeliveries import negated
from forebay.spark.tables.service_levels import with_depths_after

_MAX_FEW: Final = 20_000
"""New events. Up to so many the driver reads them, and the rows of their jobs."""

_MAX_SEARCHED_ROWS: Final = 2_000_000
"""Of files that the driver searches for rows of these jobs."""


class Refreshed(Struct, frozen=True):
    """`rows`: of the table. `written`: of those, the rewritten ones."""

    rows: int
    written: int


class _NewEvents(Struct, frozen=True):
    """Events from an offset on. `few`: the same in this process; None: they are many."""

    rows: DataFrame
    jobs: Touched
    few: pa.Table | None

    def jobs_of(self, table: Table) -> Numbers | None:
        """The ids of jobs whose rows may change; None: the events are many."""
        if self.few is None:
            return None
        own = pc.is_in(self.few["change"], value_set=pa.array(table.changes)) if table.changes else None
        return distinct_numbers((self.few if own is None else self.few.filter(own))["job_id"])


class _Replacement(Struct, frozen=True):
    """The files that one commit replaced, in a table that had reached the offset `since`. `before`, `after`: the rows
    that changed; None: all rows of these files."""

    since: int
    removed: list[DataFile]
    added: list[DataFile]
    before: pa.Table | None = None
    after: pa.Table | None = None


def refresh(spark: SparkSession, lake: Lake) -> dict[str, Refreshed]:
    """Refresh every table."""
    step = _Refresh(spark, lake)
    return {table.name: step.refresh(table) for table in TABLES.values()}


class _Refresh:
    """A refresh of all tables up to the offset that the events have reached when it starts."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._events = lake.table(EVENTS)
        self._new: dict[int, _NewEvents] = {}
        self._replaced: dict[str, _Replacement] = {}

    def refresh(self, table: Table) -> Refreshed:
        self._lake.create(table.name, arrow_schema(table.schema), ["day"])
        held = self._lake.table(table.name, REVISION)
        if held.end >= self._events.end:
            return Refreshed(held.rows, 0)
        with stage(self._spark, f"pipeline: {table.name}"):
            change = self._derived(table, held) if table.source != EVENTS else self._of_events(table, held)
        try:
            held.commit(change.added, self._events.end, change.removed)
        except Conflict:
            self._lake.discard(table.name, change.added)
            return Refreshed(self._lake.table(table.name, REVISION).rows, 0)
        if held.end:
            self._replaced[table.name] = change
        kept = held.rows - sum(file.rows for file in change.removed)
        written = sum(file.rows for file in change.added)
        return Refreshed(kept + written, written)

    def _new_events(self, since: int) -> _NewEvents:
        if since not in self._new:
            self._new[since] = self._read_new(since)
        return self._new[since]

    def _read_new(self, since: int) -> _NewEvents:
        files = self._recent(since)
        if sum(file.rows for file in files) > _MAX_FEW:
            frame = read_events(self._spark, self._lake, since, self._events)
            return _NewEvents(frame, touched(frame, "job_id"), None)
        rows = read_rows(self._lake, EVENTS, files, EVENTS_SCHEMA)
        rows = rows.filter(pc.greater_equal(rows["offset"], since))
        jobs = Touched.of("job_id", distinct_numbers(rows["job_id"]))
        return _NewEvents(local_rows(self._spark, rows, EVENTS_SCHEMA), jobs, rows)

    def _recent(self, since: int) -> list[DataFile]:
        return [file for file in self._events.files if file.max_values["offset"] >= since]

    def _of_events(self, table: Table, held: LakeTable) -> _Replacement:
        """A table whose source is the events."""
        jobs = self._new_events(held.end).jobs_of(table)
        if jobs is not None and not len(jobs) and held.end:
            return _Replacement(held.end, [], [])
        few = None if jobs is None or table.by != "job" else self._few_jobs(table, held, jobs)
        return self._merged(table, held) if few is None else few

    def _few_jobs(self, table: Table, held: LakeTable, jobs: Numbers) -> _Replacement | None:
        """Merge the rows of these jobs; None if too many rows are beside them."""
        new, touched_jobs = self._new_events(held.end), Touched.of("job_id", jobs)
        files = [file for file in held.files if held.end and touched_jobs.meets(file)]
        if sum(file.rows for file in files) > _MAX_SEARCHED_ROWS:
            return None
        chosen = {"job_id": jobs}
        parts = [read_rows(self._lake, table.name, [file], table.schema, chosen) for file in files]
        removed = [file for file, rows in zip(files, parts, strict=True) if len(rows)] if held.end else held.files
        old = pa.concat_tables([arrow_schema(table.schema).empty_table(), *parts])
        with tuned(self._spark, len(old), few=True):
            merged = _collected(table, table.updated(local_rows(self._spark, old, table.schema), new.rows))
        added = list(self._inserted(table, removed if held.end else [], chosen, merged.sort_by("job_id")))
        return _Replacement(held.end, removed, added, old, merged)

    def _inserted(
        self, table: Table, files: list[DataFile], replaced: dict[str, Numbers], rows: pa.Table
    ) -> Iterator[DataFile]:
        """Write these files anew, without the replaced rows, and with `rows` in the order of their jobs."""
        for day in {file.day for file in files} | set(map(str, rows["day"].unique().to_pylist())):
            left = rows.filter(pc.equal(rows["day"].cast(pa.string()), day))
            own = sorted((file for file in files if file.day == day), key=lambda file: int(file.max_values["job_id"]))
            for file in own:
                here = len(left)
                if file is not own[-1]:
                    here = int(np.searchsorted(left["job_id"].to_numpy(), file.max_values["job_id"], "right"))
                rest = read_rows(self._lake, table.name, [file], table.schema, unwanted=replaced)
                yield from self._write(table, pa.concat_tables([rest, left.slice(0, here)]).sort_by("job_id"))
                left = left.slice(here)
            yield from self._write(table, left)

    def _write(self, table: Table, rows: pa.Table) -> Iterator[DataFile]:
        slots = _slots(len(rows))
        for number in range(slots if len(rows) else 0):
            start, end = (len(rows) * each // slots for each in (number, number + 1))
            yield from write_files(self._lake, table.name, rows.slice(start, end - start))

    def _merged(self, table: Table, held: LakeTable) -> _Replacement:
        """Rows of selected files without new events stay as they are."""
        new = self._new_events(held.end)
        removed = self._files(table, held) if held.end else held.files
        replaced = sum(file.rows for file in removed) if held.end else 0
        few = new.few is not None and replaced <= FEW
        rows_read = replaced + sum(file.rows for file in self._recent(held.end))
        with tuned(self._spark, rows_read, few=few):
            rows = table.updated(self._read(table, removed), new.rows) if held.end else table.build(new.rows)
            if held.end and table.by == "later days":
                before = [file for file in held.files if file not in removed]
                rows = with_depths_after(rows, self._read(table, before))
            if few:
                return _Replacement(held.end, removed, list(self._write(table, _collected(table, rows))))
            return _Replacement(
                held.end, removed, self._write_many(table, self._clustered(table, rows, held.end, removed))
            )

    def _files(self, table: Table, held: LakeTable) -> list[DataFile]:
        """Files that may hold rows that change."""
        if table.by == "job":
            return [file for file in held.files if self._new_events(held.end).jobs.meets(file)]
        days = {file.day for file in self._recent(held.end)}
        if table.by == "later days":
            return [file for file in held.files if file.day >= min(days)]
        return [file for file in held.files if file.day in days]

    def _derived(self, table: Table, held: LakeTable) -> _Replacement:
        """From the rows of the source that changed, if that is known, or from all of them."""
        source, change = TABLES[table.source], self._replaced.get(table.source)
        if change is None or change.since != held.end:
            rows = table.build(self._read(source, self._lake.table(source.name, REVISION).files))
            return _Replacement(held.end, held.files, self._write_many(table, rows))
        days = {file.day for file in (*change.removed, *change.added)}
        if not days:
            return _Replacement(held.end, [], [])
        removed = [file for file in held.files if file.day in days]
        few = change.before is not None
        with tuned(self._spark, sum(file.rows for file in (*change.removed, *change.added, *removed)), few=few):
            gone = negated(table.build(self._read(source, change.removed, change.before)))
            come = table.build(self._read(source, change.added, change.after))
            rows = table.merge(reduce(DataFrame.unionAll, [self._read(table, removed), gone, come]))
            added = list(self._write(table, _collected(table, rows))) if few else self._write_many(table, rows)
        return _Replacement(held.end, removed, added)

    def _read(self, table: Table, files: Sequence[DataFile], rows: pa.Table | None = None) -> DataFrame:
        """The rows of these files, or those of them that are given."""
        if rows is None and sum(file.rows for file in files) <= _MAX_FEW:
            rows = read_rows(self._lake, table.name, files, table.schema)
        if rows is not None:
            return local_rows(self._spark, rows, table.schema)
        return read_files(self._spark, self._lake, table.name, files, table.schema)

    def _write_many(self, table: Table, rows: DataFrame) -> list[DataFile]:
        return write_table(self._lake, table.name, rows, MAX_TABLE_ROWS)

    def _clustered(self, table: Table, rows: DataFrame, since: int, removed: list[DataFile]) -> DataFrame:
        """Put neighbouring jobs into the same file, so that a later refresh selects few files."""
        if table.by != "job":
            return rows.coalesce(1)
        sources = [*self._recent(since), *removed]
        slots = _slots(sum(file.rows for file in sources))
        if slots == 1:
            return rows.coalesce(1).sortWithinPartitions("job_id")
        known = [file for file in sources if "job_id" in file.max_values]
        low, high = min(file.min_values["job_id"] for file in known), max(file.max_values["job_id"] for file in known)
        slot = F.floor((F.col("job_id") - low) / ((high - low) // slots + 1))
        return rows.repartitionById(slots, slot.cast("int")).sortWithinPartitions("job_id")


def _collected(table: Table, rows: DataFrame) -> pa.Table:
    return rows.toArrow().cast(arrow_schema(table.schema))


def _slots(rows: int) -> int:
    """Files for so many rows of jobs."""
    return 1 + rows // (2 * MAX_TABLE_ROWS)
