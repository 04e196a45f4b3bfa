"""`redeliveries`: how often jobs were handed out, as one row a day of acceptance, queue and number of deliveries.

    queue        the queue
    deliveries   how many fences a job had
    jobs         how many jobs had as many
    acked        how many of these succeeded
    dead         how many of these died, expired or were shed
    open         how many of these have not ended
    day          of acceptance

Made from `jobs`. When jobs change, what they were is taken off and what they are is added.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import DEAD

REDELIVERIES: Final = schema_of("""
queue string!
deliveries int!
jobs long!
acked long!
dead long!
open long!
day date!
""")


def redeliveries(jobs: DataFrame) -> DataFrame:
    outcome = F.col("outcome")
    return (
        jobs.groupBy("day", "queue", "deliveries")
        .agg(
            F.count("*").alias("jobs"),
            F.count_if(outcome == Change.ACKED).alias("acked"),
            F.count_if(outcome.isin(*DEAD)).alias("dead"),
            F.count_if(outcome == "open").alias("open"),
        )
        .select(*REDELIVERIES.names)
    )


def merge_redeliveries(rows: DataFrame) -> DataFrame:
    """Counts add up; those of rows that were replaced are negative."""
    counts = ("jobs", "acked", "dead", "open")
    summed = rows.groupBy("day", "queue", "deliveries").agg(*(F.sum(name).alias(name) for name in counts))
    return summed.filter(F.col("jobs") > 0).select(*REDELIVERIES.names)


def negated(rows: DataFrame) -> DataFrame:
    """As `merge_redeliveries` subtracts them."""
    return rows.withColumns({name: -F.col(name) for name in ("jobs", "acked", "dead", "open")})
