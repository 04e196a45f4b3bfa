"""`jobs`: one row a job, from its acceptance to where it is now.

    job_id, queue, kind, tenant, subject, key, priority, max_attempts   as it was accepted
    accepted_at          when the store accepted it
    first_due_at         when it was due at first
    first_claim_at       when a worker first claimed it
    ended_at             when it ended as in `outcome`; null: open
    deliveries           the highest fence that was handed out
    claims               how often it was claimed
    retries, releases, redrives   how often each happened
    attempt              of the last claim or settle, since the last redrive
    outcome              acked, died, expired, shed, discarded or cancelled; open: none of them, or redriven since
    error_kind, error    of the last failure
    schedule             the schedule that fired it
    tick                 the slot of the schedule
    last_offset, last_place   of the last event that is in this row
    day                  of acceptance; of the first event, where that is not known

Merging is by job: rows of earlier events and of later ones give the row of both, each event being in one of them.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import ENDED, count_of, was

JOBS: Final = schema_of("""
job_id long!
queue string
kind string
tenant string
subject string
key string
priority int
max_attempts int
accepted_at timestamp
first_due_at timestamp
first_claim_at timestamp
ended_at timestamp
deliveries int!
claims long!
retries long!
releases long!
redrives long!
attempt int!
outcome string!
error_kind string
error string
schedule string
tick timestamp
last_offset long!
last_place int!
day date!
""")

_BORN: Final = ("tenant", "subject", "key", "priority", "max_attempts")
_ONCE: Final = (*_BORN, "accepted_at", "first_due_at", "schedule", "tick")
_SUMS: Final = ("claims", "retries", "releases", "redrives")
_STATES: Final = (*ENDED, Change.REDRIVEN)


def jobs(events: DataFrame) -> DataFrame:
    """Of these events alone; a job that was accepted before them has no acceptance yet."""
    born = was(Change.ACCEPTED)
    fired = born & (F.col("verb") == "fire")
    last = F.struct("offset", "place")
    state = F.max_by("change", F.when(was(*_STATES), last))
    rows = (
        events.filter(F.col("job_id").isNotNull())
        .groupBy("job_id")
        .agg(
            *(F.max(name).alias(name) for name in ("queue", *_BORN)),
            F.min_by("kind", last).alias("kind"),
            F.min(F.when(born, F.col("event_at"))).alias("accepted_at"),
            F.min(F.when(born, F.col("due_at"))).alias("first_due_at"),
            F.min(F.when(was(Change.CLAIMED), F.col("event_at"))).alias("first_claim_at"),
            F.max_by("event_at", F.when(was(*_STATES), last)).alias("ended_at"),
            F.coalesce(F.max("delivery"), F.lit(0)).alias("deliveries"),
            count_of(Change.CLAIMED).alias("claims"),
            count_of(Change.RETRIED).alias("retries"),
            count_of(Change.RELEASED).alias("releases"),
            count_of(Change.REDRIVEN).alias("redrives"),
            F.coalesce(F.max_by("attempt", F.when(F.col("attempt").isNotNull(), last)), F.lit(0)).alias("attempt"),
            F.coalesce(state, F.lit("open")).alias("outcome"),
            *(_latest(name, last) for name in ("error_kind", "error")),
            F.max(F.when(fired, F.col("name"))).alias("schedule"),
            F.max(F.when(fired, F.col("tick"))).alias("tick"),
            F.max(last).alias("last"),
            F.coalesce(F.min(F.when(born, F.col("day"))), F.min("day")).alias("day"),
        )
    )
    return _settled(rows.withColumn("last_offset", F.col("last.offset")).withColumn("last_place", F.col("last.place")))


def merge_jobs(rows: DataFrame) -> DataFrame:
    """Rows of `jobs` over parts of a history, in any order, as one row a job."""
    last = F.struct("last_offset", "last_place")
    known = F.when((F.col("outcome") != "open") | F.col("reopened"), last)
    parts = rows.withColumn("reopened", (F.col("outcome") == "open") & (F.col("redrives") > 0))
    merged = parts.groupBy("job_id").agg(
        *(F.max(name).alias(name) for name in ("queue", *_ONCE, "deliveries")),
        F.min_by("kind", last).alias("kind"),
        F.min("first_claim_at").alias("first_claim_at"),
        F.max_by("ended_at", known).alias("ended_at"),
        *(F.sum(name).alias(name) for name in _SUMS),
        F.coalesce(F.max_by("attempt", F.when(F.col("attempt") > 0, last)), F.lit(0)).alias("attempt"),
        F.coalesce(F.max_by("outcome", known), F.lit("open")).alias("outcome"),
        *(_latest(name, last) for name in ("error_kind", "error")),
        F.max(last).alias("last"),
        F.coalesce(F.min(F.when(F.col("accepted_at").isNotNull(), F.col("day"))), F.min("day")).alias("day"),
    )
    rows = merged.withColumn("last_offset", F.col("last.last_offset"))
    return _settled(rows.withColumn("last_place", F.col("last.last_place")))


def _latest(name: str, last: Column) -> Column:
    return F.max_by(name, F.when(F.col("error_kind").isNotNull(), last)).alias(name)


def _settled(rows: DataFrame) -> DataFrame:
    """A job that was redriven last is open and has no end."""
    again = F.col("outcome") == Change.REDRIVEN
    rows = rows.withColumn("ended_at", F.when(~again & (F.col("outcome") != "open"), F.col("ended_at")))
    return rows.withColumn("outcome", F.when(again, "open").otherwise(F.col("outcome"))).select(*JOBS.names)
