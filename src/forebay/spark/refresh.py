"""The tables of a lake, brought up to date from the events that they have not seen, and published all together.

Only days that new events touch are written anew. All tables change in one replacement of the contents, so whoever reads
two of them sees the same history in both. A table that was made by other definitions is made from scratch.
"""

from typing import Final

import msgspec
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.errors import ForebayError
from forebay.spark.frames import read_days, read_events, write_rows
from forebay.spark.lake import Held, Lake, Piece
from forebay.spark.tables import TABLES, Table

REVISION: Final = 1
"""Of the definitions of all tables: it grows when one means something else than before."""

_NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the directory of rows without a day."""

Days = frozenset[str]


class _News(Struct, frozen=True):
    """What the tables have not seen: events, their days, and the ids of their jobs from the least to the most."""

    events: DataFrame
    days: Days
    least: int
    most: int


class _Fresh(Struct, frozen=True):
    """What takes the place of some days of a table. `days` None: of all of them."""

    rows: DataFrame
    days: Days | None


def refresh(spark: SparkSession, lake: Lake) -> dict[str, int]:
    """Bring every table up to date; how many rows each has."""
    return _Refresh(spark, lake).run()


class _Refresh:
    """One step of all tables. `_held` and `_touched` change on the way: a table may be made from one before it."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._contents = lake.contents()
        held = self._contents.tables
        whole = set(held) == set(TABLES) and {each.revision for each in held.values()} == {REVISION}
        self._held = dict(held) if whole else {}
        self._touched: dict[str, Days | None] = {}

    def run(self) -> dict[str, int]:
        contents = self._contents
        ends = {held.end for held in self._held.values()}
        if ends != {contents.end}:
            news = self._news(ends.pop()) if ends else None
            for table in TABLES.values():
                fresh = self._fresh(table, news)
                self._touched[table.name] = fresh.days
                self._held[table.name] = self._written(table, fresh)
            versions = contents.versions + 1
            self._lake.replace(msgspec.structs.replace(contents, tables=self._held, versions=versions))
            self._lake.sweep()
        return {name: held.rows for name, held in self._held.items()}

    def _news(self, since: int) -> _News:
        events = read_events(self._spark, self._lake, since)
        days = F.collect_set(F.col("day").cast("string"))
        least, most = F.coalesce(F.min("job_id"), F.lit(0)), F.coalesce(F.max("job_id"), F.lit(0))
        (row,) = events.agg(days, least, most).collect()
        return _News(events, frozenset(row[0]), row[1], row[2])

    def _fresh(self, table: Table, news: _News | None) -> _Fresh:
        if table.source != "events":
            days = self._touched[table.source]
            source = read_days(self._spark, self._lake, table.source, self._held[table.source], days)
            return _Fresh(table.build(source), days)
        if news is None:
            return _Fresh(table.build(read_events(self._spark, self._lake)), None)
        if table.how == "day":
            return _Fresh(table.build(read_events(self._spark, self._lake).filter(_on(news.days))), news.days)
        return self._merged(table, self._held[table.name], news)

    def _merged(self, table: Table, held: Held, news: _News) -> _Fresh:
        """Whole days go through the merge: a row that nothing joins comes out as it was."""
        if table.cumulative:
            days = news.days | {day for day in held.days if day >= min(news.days)}
            old = read_days(self._spark, self._lake, table.name, held)
            return _Fresh(table.updated(old, news.events).filter(_on(days)), days)
        days = news.days if "day" in table.keys else self._days_of(table, held, news)
        old = read_days(self._spark, self._lake, table.name, held, days)
        return _Fresh(table.updated(old, news.events), days)

    def _days_of(self, table: Table, held: Held, news: _News) -> Days:
        """Days of new rows and of those that they join. Ids grow with time, so most old files are passed over."""
        added = table.build(news.events).select("job_id", "day")
        old = read_days(self._spark, self._lake, table.name, held).select("job_id", "day")
        near = old.filter(F.col("job_id").between(news.least, news.most)).join(added, "job_id", "left_semi")
        found = added.unionAll(near).select(F.col("day").cast("string")).distinct().collect()
        return frozenset(_NO_DAY if row[0] is None else row[0] for row in found)

    def _written(self, table: Table, fresh: _Fresh) -> Held:
        version = self._contents.versions
        draft = self._lake.draft(table.name)
        write_rows(fresh.rows, draft)
        place = self._lake.put(draft, table.name, version)
        rows: dict[str, int] = {}
        for file in place.rglob("*.parquet"):
            day = file.relative_to(place).parts[0].removeprefix("day=")
            rows[day] = rows.get(day, 0) + pq.read_metadata(file).num_rows
        if fresh.days is not None and not rows.keys() <= fresh.days:
            raise ForebayError(f"table {table.name}: days were written that were not read: {sorted(rows)}")
        before = self._held.get(table.name)
        kept = {} if before is None or fresh.days is None else before.days
        days = {day: piece for day, piece in kept.items() if day not in (fresh.days or ())}
        days |= {day: Piece(version, count) for day, count in rows.items()}
        return Held(self._contents.end, REVISION, dict(sorted(days.items())))


def _on(days: Days) -> Column:
    known = F.col("day").cast("string").isin(*(days - {_NO_DAY}))
    return known | F.col("day").isNull() if _NO_DAY in days else known
