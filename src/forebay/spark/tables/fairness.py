"""`fairness`: how evenly the tenants of a queue were served, as one row a minute and queue with a served job.

    minute      the beginning of the minute
    queue       the queue
    tenants     tenants that were served, or had a job waiting when the minute began
    starved     those of them without a claim
    served      claims of their jobs
    most        claims of the tenant with most of them
    jain        Jain's index, (Σx)² / (n Σx²) over the claims of each: 1 is even, 1/n is all for one
    day         of the minute

Jobs without a tenant are left out, and so are minutes with fewer than two tenants: there is nothing to compare.
Even is not always fair: with weights, or when a tenant enqueues little, less than 1 is correct.
Waiting counts from acceptance, retry, release or redrive to the claim or the end. A day is made anew from its own
events; a tenant that has waited since the day before counts from the first event of the new day.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import was

FAIRNESS: Final = schema_of("""
minute timestamp!
queue string!
tenants long!
starved long!
served long!
most long!
jain double!
day date!
""")

_IN: Final = (Change.ACCEPTED, Change.RETRIED, Change.RELEASED, Change.REDRIVEN)
_OUT: Final = (Change.CLAIMED, Change.CANCELLED, Change.EXPIRED, Change.SHED)


def fairness(events: DataFrame) -> DataFrame:
    tenants = events.filter(was(Change.ACCEPTED) & F.col("tenant").isNotNull()).select("job_id", "tenant")
    moves = events.filter(was(*_IN, *_OUT)).drop("tenant").join(tenants, "job_id")
    minute = moves.groupBy("day", "queue", F.date_trunc("minute", "event_at").alias("minute"), "tenant").agg(
        F.count_if(was(Change.CLAIMED)).alias("got"),
        (F.count_if(was(*_IN)) - F.count_if(was(*_OUT))).alias("more"),
    )
    served = minute.filter(F.col("got") > 0).select("day", "queue", "minute").distinct()
    known = minute.select("day", "queue", "tenant").distinct()
    grid = served.join(known, ["day", "queue"])
    whole = grid.join(minute, ["day", "queue", "minute", "tenant"], "full")
    before = Window.partitionBy("day", "queue", "tenant").orderBy("minute").rowsBetween(Window.unboundedPreceding, -1)
    rows = whole.withColumn("waiting", F.coalesce(F.sum("more").over(before), F.lit(0)))
    active = rows.join(served, ["day", "queue", "minute"], "left_semi").filter(
        (F.coalesce("got", F.lit(0)) > 0) | (F.col("waiting") > 0)
    )
    got = F.coalesce("got", F.lit(0))
    found = active.groupBy("day", "queue", "minute").agg(
        F.count("*").alias("tenants"),
        F.count_if(got == 0).alias("starved"),
        F.sum(got).alias("served"),
        F.max(got).alias("most"),
        (F.pow(F.sum(got), F.lit(2)) / (F.count("*") * F.sum(got * got))).alias("jain"),
    )
    return found.filter(F.col("tenants") > 1).select(*FAIRNESS.names)
