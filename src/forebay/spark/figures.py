"""The figures of a report, computed by Spark from the tables of a lake: a few hundred numbers, however long the history
is.

A short history is shown by seconds, from its events; a longer one by minutes or more, from `service_levels`, whose
sketches give the percentiles of any stretch of time.
"""

from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.lake import Lake
from forebay.spark.lake_reader import read_events, read_table
from forebay.spark.tables.columns import PERCENTILES, merged, percentile
from forebay.spark.tables.service_levels import MEASURES, service_levels

SHORT: Final = timedelta(minutes=20)
MAX_STEPS: Final = 240
MAX_QUEUES: Final = 40
MAX_GROUPS: Final = 40
MAX_DEPTHS: Final = 6
COUNTS: Final = ("accepted", "claimed", "acked", "retried", "died")
CURVE: Final = tuple(round(number / 100, 2) for number in (1, *range(5, 100, 5), 99))

FigureRow = dict[str, Any]


class Figures(Struct, frozen=True):
    """Rows as dictionaries, in the order in which they are shown.

    steps    one a stretch of time: at, seconds, COUNTS, and of each measure three percentiles, in seconds
    depths   one a stretch and queue, the queues with most jobs: at, queue, depth
    queues   one a queue: COUNTS, expired, discarded, cancelled, redriven, and percentiles
    curve    one a rank: rank, and each measure
    deliveries, retries, deaths, fairness    the tables, over all days; `more_deaths`: groups that are not shown
    """

    store: str
    since: datetime | None
    until: datetime | None
    records: int
    events: int
    rows: dict[str, int]
    steps: list[FigureRow]
    depths: list[FigureRow]
    queues: list[FigureRow]
    curve: list[FigureRow]
    deliveries: list[FigureRow]
    retries: list[FigureRow]
    deaths: list[FigureRow]
    more_deaths: int
    fairness: list[FigureRow]


def figures(spark: SparkSession, lake: Lake) -> Figures:
    contents = lake.contents()
    minutes = read_table(spark, lake, "service_levels")
    since, until = minutes.agg(F.min("minute"), F.max("minute")).collect()[0]
    short = since is not None and until - since < SHORT
    levels = _by_seconds(read_events(spark, lake)) if short else minutes.withColumnRenamed("minute", "at")
    levels = levels.persist()
    try:
        since, until = levels.agg(F.min("at"), F.max("at")).collect()[0]
        unit = 1 if short else 60
        step = unit * max(1, ceil(((until - since).total_seconds() / unit + 1) / MAX_STEPS)) if since else unit
        deaths, more = _deaths(read_table(spark, lake, "dead_letters"))
        return Figures(
            contents.store,
            since,
            until,
            contents.end - contents.first,
            contents.event_count,
            {name: held.rows for name, held in contents.tables.items()},
            _steps(levels, step),
            _depths(levels, step),
            _queues(levels),
            _curve(levels),
            _deliveries(read_table(spark, lake, "redeliveries")),
            _retries(read_table(spark, lake, "retry_spread")),
            deaths,
            more,
            _fairness(read_table(spark, lake, "fairness"), step),
        )
    finally:
        levels.unpersist()


def _by_seconds(events: DataFrame) -> DataFrame:
    return service_levels(events, "second").withColumnRenamed("minute", "at")


def _steps(levels: DataFrame, step: int) -> list[FigureRow]:
    """Over all queues. Rates are a second."""
    rows = levels.groupBy(_stretch("at", step)).agg(
        *((F.sum(name) / step).alias(name) for name in COUNTS), *_sketches()
    )
    return _collected(rows.select("at", *COUNTS, *_percentiles()).orderBy("at"))


def _depths(levels: DataFrame, step: int) -> list[FigureRow]:
    """The depth at the end of each stretch; a queue without events keeps its depth."""
    largest = levels.groupBy("queue").agg(F.sum("accepted").alias("n")).orderBy(F.desc("n"), "queue").limit(MAX_DEPTHS)
    rows = (
        levels.join(largest, "queue", "left_semi")
        .groupBy("queue", _stretch("at", step))
        .agg(F.max_by("depth", levels["at"]).alias("depth"))
    )
    return _collected(rows.select("queue", "at", "depth").orderBy("queue", "at"))


def _queues(levels: DataFrame) -> list[FigureRow]:
    more = ("expired", "discarded", "cancelled", "redriven")
    rows = levels.groupBy("queue").agg(*(F.sum(name).alias(name) for name in (*COUNTS, *more)), *_sketches())
    chosen = rows.select("queue", *COUNTS, *more, *_percentiles())
    return _collected(chosen.orderBy(F.desc("accepted"), "queue").limit(MAX_QUEUES))


def _curve(levels: DataFrame) -> list[FigureRow]:
    whole = levels.agg(*_sketches())
    ranks = F.array(*(F.lit(rank) for rank in CURVE))
    sketches = {measure: F.col(f"{measure}_sketch") for measure in MEASURES}
    columns = [
        F.when(sketch.isNotNull(), F.kll_sketch_get_quantile_bigint(sketch, ranks)).alias(measure)
        for measure, sketch in sketches.items()
    ]
    (row,) = whole.select(*columns).collect()
    found = {measure: row[measure] or [None] * len(CURVE) for measure in MEASURES}
    return [
        {"rank": rank, **{measure: _seconds(values[place]) for measure, values in found.items()}}
        for place, rank in enumerate(CURVE)
    ]


def _deliveries(table: DataFrame) -> list[FigureRow]:
    names = ("jobs", "acked", "dead", "open")
    rows = table.groupBy("deliveries").agg(*(F.sum(name).alias(name) for name in names))
    return _collected(rows.orderBy("deliveries").limit(MAX_QUEUES))


def _retries(table: DataFrame) -> list[FigureRow]:
    rows = table.groupBy("queue", "attempt").agg(
        F.sum("retries").alias("retries"),
        merged("delay_sketch"),
        F.max("delay_max").alias("most"),
        F.max("same_delay").alias("same_delay"),
        F.max("burst").alias("burst"),
    )
    delays = {f"p{each}": percentile("delay_sketch", each) for each in PERCENTILES}
    shown = rows.withColumns(delays).drop("delay_sketch").orderBy(F.desc("retries"), "queue", "attempt")
    found = _collected(shown.limit(MAX_QUEUES))
    return sorted(found, key=lambda row: (row["queue"], row["attempt"]))


def _deaths(table: DataFrame) -> tuple[list[FigureRow], int]:
    rows = table.groupBy("queue", "kind", "fingerprint", "error_kind", "message").agg(
        F.sum("deaths").alias("deaths"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.min_by("example", "first_at").alias("example"),
        F.min_by("job_ids", "first_at").alias("job_ids"),
    )
    found = _collected(rows.orderBy(F.desc("deaths"), "queue", "kind", "fingerprint").limit(MAX_GROUPS))
    return found, max(0, rows.count() - len(found))


def _fairness(table: DataFrame, step: int) -> list[FigureRow]:
    """The evenest and the least even minute of each stretch, over all queues."""
    rows = table.groupBy(_stretch("minute", max(step, 60))).agg(
        F.min("jain").alias("least"), F.max("jain").alias("most"), F.sum("starved").alias("starved")
    )
    return _collected(rows.orderBy("at"))


def _stretch(column: str, step: int) -> Column:
    whole = (F.floor(F.unix_micros(column) / (step * 1_000_000)) * step).cast("long")
    return F.timestamp_seconds(whole).alias("at")


def _sketches() -> list[Column]:
    return [merged(f"{measure}_sketch") for measure in MEASURES]


def _percentiles() -> list[Column]:
    return [
        percentile(f"{measure}_sketch", each).alias(f"{measure}_p{each}")
        for measure in MEASURES
        for each in PERCENTILES
    ]


def _seconds(micros: float | None) -> float | None:
    return None if micros is None else micros / 1e6


def _collected(rows: DataFrame) -> list[FigureRow]:
    return [row.asDict() for row in rows.collect()]
