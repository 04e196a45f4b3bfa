"""`attempts`: one row a delivery, from its claim to its end.

    job_id               the job
    delivery             its fence: with the job the identity of a row
    attempt              the attempt of the job
    queue, kind          of the job
    owner                the worker
    enqueued_at          when the job was accepted
    due_at               when the job became claimable
    claimed_at           the beginning
    lease_until          the end of the lease, as last extended
    extensions           how often the lease was extended
    ending               acked, retried, died, released or discarded; null: not yet
    ended_at             the end; null: not yet
    waited               seconds from due to claimed
    ran                  seconds from claimed to the end
    total                seconds from acceptance to the end
    error_kind, error    of a failure
    day                  of the claim; of the end or the lease, where the claim is not known

Merging is by fence. Changes of a running job carry the values of its lease, so a row built from the end alone has most
columns.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import SETTLED, count_of, seconds_between, was

ATTEMPTS: Final = schema_of("""
job_id long!
delivery int!
attempt int
queue string
kind string
owner string
enqueued_at timestamp
due_at timestamp
claimed_at timestamp
lease_until timestamp
extensions long!
ending string
ended_at timestamp
waited double
ran double
total double
error_kind string
error string
day date!
""")

CHANGES: Final = (Change.CLAIMED, Change.EXTENDED, *SETTLED)
_ANY: Final = ("attempt", "queue", "kind", "enqueued_at", "due_at", "claimed_at", "lease_until", "owner", "ended_at")


def attempts(events: DataFrame) -> DataFrame:
    ended = was(*SETTLED)
    claimed_at = F.when(was(Change.CLAIMED), F.col("event_at")).otherwise(F.col("claimed_at"))
    return _measured(
        events.filter(was(*CHANGES))
        .groupBy("job_id", "delivery")
        .agg(
            *(F.max(name).alias(name) for name in ("attempt", "queue", "kind", "enqueued_at", "due_at", "lease_until")),
            F.max(F.when(was(Change.CLAIMED), F.col("owner"))).alias("owner"),
            F.max(claimed_at).alias("claimed_at"),
            count_of(Change.EXTENDED).alias("extensions"),
            F.max(F.when(ended, F.col("change"))).alias("ending"),
            F.max(F.when(ended, F.col("event_at"))).alias("ended_at"),
            *_error(),
        )
    )


def merge_attempts(rows: DataFrame) -> DataFrame:
    return _measured(
        rows.groupBy("job_id", "delivery").agg(
            *(F.max(name).alias(name) for name in (*_ANY, "ending")),
            F.sum("extensions").alias("extensions"),
            *_error(),
        )
    )


def _error() -> list[Column]:
    return [F.max("error_kind").alias("error_kind"), F.max("error").alias("error")]


def _measured(rows: DataFrame) -> DataFrame:
    return (
        rows.withColumn("waited", seconds_between("due_at", "claimed_at"))
        .withColumn("ran", seconds_between("claimed_at", "ended_at"))
        .withColumn("total", seconds_between("enqueued_at", "ended_at"))
        .withColumn("day", F.to_date(F.coalesce("claimed_at", "ended_at", "lease_until")))
        .select(*ATTEMPTS.names)
    )
