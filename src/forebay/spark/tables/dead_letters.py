"""`dead_letters`: what died of the same cause, as one row a day, queue, kind and fingerprint.

    queue, kind   of the jobs
    fingerprint   a number of the error's kind and its message without what differs from case to case
    error_kind    the class of the error; null: it expired unclaimed
    message       the message without what differs from case to case
    example       the message of the job with the smallest id, unchanged
    deaths        how many jobs died
    first_at, last_at   when the first and the last of them died
    job_ids       up to 10 of them, the smallest
    day           of the deaths

Normalised by `core.fingerprint`. Merging adds counts and keeps the smallest ids.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from forebay.core.fingerprint import SORTS
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import DEAD, was

SAMPLES: Final = 10

_HEAD: Final = """
queue string!
kind string!
fingerprint long!
error_kind string
message string
example string
deaths long!
first_at timestamp!
last_at timestamp!
"""
DEAD_LETTERS: Final = StructType(
    [*schema_of(_HEAD), StructField("job_ids", ArrayType(LongType()), False), *schema_of("day date!")]
)


def normalised(message: Column) -> Column:
    """The part of a message that repeats when the same error happens again."""
    for pattern, word in SORTS:
        message = F.regexp_replace(message, F.lit(pattern), F.lit(word))
    return F.trim(message)


def dead_letters(events: DataFrame) -> DataFrame:
    dead = events.filter(was(*DEAD)).withColumn("message", normalised(F.col("error")))
    return (
        dead.withColumn("fingerprint", F.xxhash64("error_kind", "message"))
        .groupBy("day", "queue", "kind", "fingerprint")
        .agg(
            F.first("error_kind").alias("error_kind"),
            F.first("message").alias("message"),
            F.min_by("error", "job_id").alias("example"),
            F.count("*").alias("deaths"),
            F.min("event_at").alias("first_at"),
            F.max("event_at").alias("last_at"),
            F.array_sort(F.array_distinct(F.min_by("job_id", "job_id", SAMPLES))).alias("job_ids"),
        )
        .select(*DEAD_LETTERS.names)
    )


def merge_dead_letters(rows: DataFrame) -> DataFrame:
    ids = F.array_sort(F.array_distinct(F.flatten(F.collect_list("job_ids"))))
    return (
        rows.groupBy("day", "queue", "kind", "fingerprint")
        .agg(
            F.first("error_kind").alias("error_kind"),
            F.first("message").alias("message"),
            F.min_by("example", F.get("job_ids", F.lit(0))).alias("example"),
            F.sum("deaths").alias("deaths"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.slice(ids, 1, SAMPLES).alias("job_ids"),
        )
        .select(*DEAD_LETTERS.names)
    )
