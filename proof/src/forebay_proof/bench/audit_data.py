"""A history of any size without a broken promise, made by Spark: a lake of events, and receipts and effects as NDJSON.

Jobs come in blocks of 100 that go through life together (one record a block and step); a period of 100 blocks is mixed
step by step, as many workers would. Of 100 blocks 99 succeed at once and one after a retry, so 1 % of the jobs are
retried; every twentieth of those left an effect by both deliveries: 0.05 % redeliveries. `stride` is the distance
between the first ids of two calls.
"""

from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.lake import Lake
from forebay.spark.lake_reader import read_events
from forebay.spark.landing import write_table
from forebay.spark.schemas import EFFECTS, EVENTS, RECEIPTS

BLOCK: Final = 100
MAX_ATTEMPTS: Final = 4
PERIOD: Final = 100
RETRIES: Final = [int(place == 42) for place in range(PERIOD)]
"""Of each block of a period."""

REDELIVERED: Final = 20
"""Of so many jobs that were retried one had done its work before."""

_FILES: Final = 4

START: Final = 1_900_000_000_000_000
SPACING: Final = 1_000
"""Microseconds between two records."""


def _ranks() -> tuple[list[list[int]], int]:
    """By block of the period: the places of its records among those of the period, step by step."""
    ranks: list[list[int]] = [[] for _ in RETRIES]
    rank = 0
    for step in range(1 + 2 * MAX_ATTEMPTS):
        for block, again in enumerate(RETRIES):
            if step < 3 + 2 * again:
                ranks[block].append(rank)
                rank += 1
    return ranks, rank


def events(spark: SparkSession, jobs: int, stride: int = BLOCK) -> DataFrame:
    """One row a job and step. Jobs are a multiple of a period's."""
    ranks, size = _ranks()
    table = F.array(*(F.array(*map(F.lit, each)) for each in ranks))
    seq = F.col("id")
    block = F.floor(seq / BLOCK).cast("long")
    born = (
        spark.range(jobs)
        .withColumn("block", block)
        .withColumn("ranks", F.element_at(table, (F.col("block") % PERIOD + 1).cast("int")))
        .withColumn("base", F.floor(F.col("block") / PERIOD).cast("long") * size)
        .select(
            "id",
            (F.col("block") * stride + F.col("id") % BLOCK + 1).alias("job_id"),
            (F.col("id") % BLOCK).cast("int").alias("place"),
            "base",
            "ranks",
            F.posexplode("ranks").alias("step", "rank"),
        )
    )
    last = F.size("ranks") - 1
    step = F.col("step")
    delivery = F.floor((step + 1) / 2).cast("int")
    dead = F.size("ranks") == 1 + 2 * MAX_ATTEMPTS
    change = (
        F.when(step == 0, "accepted")
        .when(step % 2 == 1, "claimed")
        .when(step < last, "retried")
        .when(dead, "died")
        .otherwise("acked")
    )
    at = _instant(F.col("base") + F.col("rank"))
    birth = _instant(F.col("base") + F.element_at("ranks", 1))
    claimed = _instant(F.col("base") + F.get("ranks", (step - (step + 1) % 2).cast("int")))
    due = F.when(step < 3, birth).otherwise(
        _instant(F.col("base") + F.get("ranks", (delivery * 2 - 2).cast("int"))) + F.expr("INTERVAL 500 MICROSECONDS")
    )
    failed = change.isin("retried", "died")
    values = {
        "offset": F.col("base") + F.col("rank"),
        "event_at": at,
        "verb": F.when(step == 0, "enqueue").when(step % 2 == 1, "claim").otherwise("settle"),
        "change": change,
        "queue": F.concat(F.lit("q"), (F.col("id") / BLOCK).cast("long") % 4),
        "kind": F.lit("work"),
        "delivery": F.when(step > 0, delivery),
        "attempt": F.when(step > 0, delivery),
        "max_attempts": F.when(step == 0, MAX_ATTEMPTS),
        "owner": F.when(step % 2 == 1, F.concat(F.lit("w"), F.col("rank") % 8)),
        "enqueued_at": birth,
        "due_at": due,
        "claimed_at": F.when(step > 0, claimed),
        "lease_until": F.when(step % 2 == 1, at + F.expr("INTERVAL 30 SECONDS")),
        "next_at": F.when(change == "retried", at + F.expr("INTERVAL 500 MICROSECONDS")),
        "error_kind": F.when(failed, "Timeout"),
        "error": F.when(failed, F.concat(F.lit("no answer from 10.0.0."), F.col("id") % 250)),
        "day": F.to_date(at),
        "places": F.lit(BLOCK),
    }
    return born.select(*(_column(values, field.name, field.dataType.simpleString()) for field in EVENTS))


def receipts(spark: SparkSession, jobs: int, stride: int = BLOCK) -> DataFrame:
    job_id = F.floor(F.col("id") / BLOCK).cast("long") * stride + F.col("id") % BLOCK + 1
    return (
        spark.range(jobs)
        .select(
            F.col("id").alias("seq"),
            job_id.alias("job_id"),
            F.lit("accepted").alias("answer"),
            _instant(F.floor(F.col("id") / BLOCK).cast("long")).alias("sent_at"),
        )
        .select(*RECEIPTS.names)
    )


def effects(happened: DataFrame, stride: int = BLOCK) -> DataFrame:
    """One for each job that was acknowledged, by its last delivery, and one by the first delivery of those that were
    delivered again."""
    job = F.col("job_id") - 1
    again = (F.col("change") == "retried") & (F.col("job_id") % REDELIVERED == 0)
    return (
        happened.filter((F.col("change") == "acked") | again)
        .select(
            (F.floor(job / stride).cast("long") * BLOCK + job % stride).alias("seq"),
            "job_id",
            "delivery",
            F.col("event_at").alias("effect_at"),
            F.lit("w1").alias("worker"),
        )
        .select(*EFFECTS.names)
    )


def whole_periods(jobs: int) -> int:
    """So many jobs, or nearly: two periods at least, one to be proven and one to come."""
    return max(2, jobs // (BLOCK * PERIOD)) * BLOCK * PERIOD


def write(spark: SparkSession, place: Path, jobs: int, stride: int = BLOCK) -> None:
    """`lake`, `receipts` and `effects` of whole periods below the place. The last 1 % (at least a period) is a commit
    of its own, and has files of its own beside `receipts/before`: `receipts/last`."""
    lake = Lake.of(place / "lake", "sqlite:////srv/jobs.db")
    before = write_events(spark, lake, jobs, stride)
    for name, rows in (
        ("receipts", receipts(spark, jobs, stride)),
        ("effects", effects(read_events(spark, lake), stride)),
    ):
        for folder, part in (("before", F.col("seq") < before), ("last", F.col("seq") >= before)):
            rows.filter(part).repartitionByRange(_FILES, "seq").write.json(str(place / name / folder))


def write_events(spark: SparkSession, lake: Lake, jobs: int, stride: int = BLOCK) -> int:
    """The events of a lake, in two commits; how many jobs the first one holds."""
    period = BLOCK * PERIOD
    before = jobs - max(1, jobs // period // 100) * period
    made = events(spark, jobs, stride)
    (cut,) = made.filter(F.col("job_id") > (before // BLOCK) * stride).agg(F.min("offset")).collect()[0]
    for part in (F.col("offset") < cut, F.col("offset") >= cut):
        rows = made.filter(part).repartitionByRange(_FILES, "offset").sortWithinPartitions("offset", "place")
        files = write_table(lake, "events", rows)
        lake.table("events").commit(files, 1 + max(file.max_values["offset"] for file in files))
    return before


def _instant(offset: Column) -> Column:
    return F.timestamp_micros(F.lit(START) + offset * SPACING)


def _column(values: dict[str, Column], name: str, kind: str) -> Column:
    if name in {"place", "job_id"}:
        return F.col(name)
    return values.get(name, F.lit(None)).cast(kind).alias(name)
