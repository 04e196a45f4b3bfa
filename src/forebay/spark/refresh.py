"""Refresh of the tables of a lake from new events: its cost is that of the change.

A table is rewritten file by file. The ids of the jobs, or the days, of new events select files by their statistics;
their rows and those of the new events are merged, and one commit replaces the old files by new ones. The commit carries
the offset that the table has reached. So each table is independent: one that a crash left behind catches up, and of two
concurrent refreshes one is refused and has changed nothing.

A table of another revision is built from scratch.
"""

from collections.abc import Sequence
from functools import reduce

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.arrow import arrow_schema
from forebay.spark.frames import Touched, read_events, read_files, touched
from forebay.spark.lake import EVENTS, REVISION, Conflict, DataFile, Lake, LakeTable
from forebay.spark.landing import MAX_TABLE_ROWS, write_table
from forebay.spark.tables import TABLES, Table
from forebay.spark.tables.redeliveries import taken_off
from forebay.spark.tables.service_levels import on_top_of


class Refreshed(Struct, frozen=True):
    """`rows`: of the table. `written`: of those, the rewritten ones."""

    rows: int
    written: int


class _Replacement(Struct, frozen=True):
    """The files that one commit replaced, in a table that had reached the offset `since`."""

    since: int
    removed: list[DataFile]
    added: list[DataFile]


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
        self._touched: dict[int, Touched] = {}
        self._replaced: dict[str, _Replacement] = {}

    def refresh(self, table: Table) -> Refreshed:
        self._lake.create(table.name, arrow_schema(table.schema), ["day"])
        held = self._lake.table(table.name, REVISION)
        if held.end >= self._events.end:
            return Refreshed(held.rows, 0)
        known = held.end > 0
        removed = self._files(table, held) if known else held.files
        rows = self._merged(table, held, removed) if known else self._built(table)
        added = write_table(self._lake, table.name, self._clustered(table, rows, held.end, removed), MAX_TABLE_ROWS)
        try:
            held.commit(added, self._events.end, removed)
        except Conflict:
            self._lake.discard(table.name, added)
            return Refreshed(self._lake.table(table.name, REVISION).rows, 0)
        if known:
            self._replaced[table.name] = _Replacement(held.end, removed, added)
        kept = held.rows - sum(file.rows for file in removed)
        written = sum(file.rows for file in added)
        return Refreshed(kept + written, written)

    def _new_events(self, since: int) -> DataFrame:
        return read_events(self._spark, self._lake, since, self._events)

    def _source(self, table: Table, files: Sequence[DataFile] | None = None) -> DataFrame:
        """The rows of the table that this one is built from."""
        source = TABLES[table.source]
        held = self._lake.table(table.source, REVISION).files if files is None else files
        return read_files(self._spark, self._lake, table.source, held, source.schema)

    def _built(self, table: Table) -> DataFrame:
        return table.build(self._new_events(0) if table.source == EVENTS else self._source(table))

    def _files(self, table: Table, held: LakeTable) -> list[DataFile]:
        """Files that may hold rows that change."""
        if table.source != EVENTS:
            change = self._replaced.get(table.source)
            if change is None or change.since != held.end:
                return held.files
            days = {file.day for file in (*change.removed, *change.added)}
            return [file for file in held.files if file.day in days]
        if table.by == "job":
            jobs = self._touched_jobs(held.end)
            return [file for file in held.files if jobs.meets(file)]
        days = {file.day for file in self._events.files if file.max_values["offset"] >= held.end}
        if table.by == "later days":
            return [file for file in held.files if file.day >= min(days)]
        return [file for file in held.files if file.day in days]

    def _touched_jobs(self, since: int) -> Touched:
        """The jobs of new events."""
        if since not in self._touched:
            self._touched[since] = touched(self._new_events(since), "job_id")
        return self._touched[since]

    def _merged(self, table: Table, held: LakeTable, removed: list[DataFile]) -> DataFrame:
        """Rows of selected files without new events stay as they are."""
        old = read_files(self._spark, self._lake, table.name, removed, table.schema)
        if table.source != EVENTS:
            change = self._replaced.get(table.source)
            if change is None or change.since != held.end:
                return self._built(table)
            gone = taken_off(table.build(self._source(table, change.removed)))
            return table.merge(reduce(DataFrame.unionAll, [old, gone, table.build(self._source(table, change.added))]))
        rows = table.updated(old, self._new_events(held.end))
        if table.by != "later days":
            return rows
        before = [file for file in held.files if file not in removed]
        return on_top_of(rows, read_files(self._spark, self._lake, table.name, before, table.schema))

    def _clustered(self, table: Table, rows: DataFrame, since: int, removed: list[DataFile]) -> DataFrame:
        """Put neighbouring jobs into the same file, so that a later refresh selects few files."""
        if table.by != "job":
            return rows.coalesce(1)
        sources = [*(file for file in self._events.files if file.max_values["offset"] >= since), *removed]
        slots = 1 + sum(file.rows for file in sources) // (2 * MAX_TABLE_ROWS)
        if slots == 1:
            return rows.coalesce(1).sortWithinPartitions("job_id")
        known = [file for file in sources if "job_id" in file.max_values]
        low, high = min(file.min_values["job_id"] for file in known), max(file.max_values["job_id"] for file in known)
        slot = F.floor((F.col("job_id") - low) / ((high - low) // slots + 1))
        return rows.repartition(slots, slot).sortWithinPartitions("job_id")
