"""`service_levels`: one row a minute and queue in which something happened.

    minute       the beginning of the minute
    queue        the queue
    accepted, claimed, acked, retried, released, died, discarded, cancelled, redriven   how many there were of each
    expired      how many expired, or were shed
    wait_*       from acceptance to the first claim
    late_*       from due to claimed, of every claim
    run_*        from claimed to the end of a delivery
    total_*      from acceptance to the end of the job
    retry_rate   the share of retries in all deliveries that ended, except releases
    dead_rate    the share of jobs that died, expired or were shed in all jobs that ended
    change       by how much the depth changed
    depth        jobs that had not ended at the end of the minute
    day          of the minute

The percentiles `*_p50`, `*_p95` and `*_p99` are in seconds, the KLL sketches `*_sketch` in microseconds.

Merging adds counts and sketches and sums `change` up to the depth: a depth counts what the table has seen, so a table
that begins in the middle of a history begins with a depth of 0. A minute without a row is as deep as the one before.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.core.ledger import Change
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import (
    ENDED,
    PERCENTILES,
    SETTLED,
    UNCLAIMED,
    count_of,
    merged,
    micros_between,
    percentile,
    sketch,
    was,
)

_COUNTED: Final = (
    *(Change.ACCEPTED, Change.CLAIMED, Change.ACKED, Change.RETRIED, Change.RELEASED, Change.DIED, Change.EXPIRED),
    *(Change.DISCARDED, Change.CANCELLED, Change.REDRIVEN),
)
MEASURES: Final = ("wait", "late", "run", "total")


def _schema() -> StructType:
    counts = "\n".join(f"{change} long!" for change in _COUNTED)
    fields = list(schema_of(f"minute timestamp!\nqueue string!\n{counts}"))
    for measure in MEASURES:
        fields.append(StructField(f"{measure}_sketch", BinaryType()))
        fields += schema_of("\n".join(f"{measure}_p{percent} double" for percent in PERCENTILES))
    return StructType(
        [*fields, *schema_of("retry_rate double\ndead_rate double\nchange long!\ndepth long!\nday date!")]
    )


SERVICE_LEVELS: Final = _schema()


def service_levels(events: DataFrame, unit: str = "minute") -> DataFrame:
    """`unit`: as `date_trunc` has it. A short history may be shown by the second."""
    first = was(Change.CLAIMED) & (F.col("delivery") == 1)
    lengths = {
        "wait": F.when(first, micros_between("enqueued_at", "event_at")),
        "late": F.when(was(Change.CLAIMED), micros_between("due_at", "event_at")),
        "run": F.when(was(*SETTLED), micros_between("claimed_at", "event_at")),
        "total": F.when(was(*ENDED), micros_between("enqueued_at", "event_at")),
    }
    rows = (
        events.filter(was(*_COUNTED, *UNCLAIMED))
        .groupBy(F.date_trunc(unit, "event_at").alias("minute"), "queue")
        .agg(
            *(count_of(*_counted_as(change)).alias(change) for change in _COUNTED),
            *(sketch(length).alias(f"{measure}_sketch") for measure, length in lengths.items()),
            (count_of(Change.ACCEPTED, Change.REDRIVEN) - count_of(*ENDED)).alias("change"),
        )
    )
    return _rated(rows)


def _counted_as(change: Change) -> tuple[Change, ...]:
    """`expired` counts all jobs that died unclaimed, shed ones too."""
    return UNCLAIMED if change is Change.EXPIRED else (change,)


def merge_service_levels(rows: DataFrame) -> DataFrame:
    return _rated(
        rows.groupBy("minute", "queue").agg(
            *(F.sum(name).alias(name) for name in (*_COUNTED, "change")),
            *(merged(f"{measure}_sketch") for measure in MEASURES),
        )
    )


def with_depths_after(rows: DataFrame, before: DataFrame) -> DataFrame:
    """These minutes after minutes that are not among them: their depths begin where those end."""
    last = before.groupBy("queue").agg(F.max_by("depth", "minute").alias("ground"))
    deep = rows.join(F.broadcast(last), "queue", "left")
    return deep.withColumn("depth", F.col("depth") + F.coalesce("ground", F.lit(0))).select(*SERVICE_LEVELS.names)


def _rated(rows: DataFrame) -> DataFrame:
    so_far = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    columns = {"depth": F.sum("change").over(so_far), "day": F.to_date("minute")}
    ended = (Change.ACKED, Change.RETRIED, Change.DIED, Change.DISCARDED)
    columns |= {
        "retry_rate": _share([Change.RETRIED], ended),
        "dead_rate": _share([Change.DIED, Change.EXPIRED], tuple(each for each in ENDED if each in _COUNTED)),
    }
    for measure in MEASURES:
        columns |= {f"{measure}_p{each}": percentile(f"{measure}_sketch", each) for each in PERCENTILES}
    return rows.withColumns(columns).select(*SERVICE_LEVELS.names)


def _share(part: list[Change], whole: tuple[Change, ...]) -> Column:
    total = sum((F.col(change) for change in whole), F.lit(0))
    return F.when(total > 0, sum((F.col(change) for change in part), F.lit(0)) / total)
