"""`redeliveries`: how often jobs were handed out, as one row a day of acceptance, queue and number of deliveries.

    deliveries   how many fences a job had                jobs   how many jobs had as many
    acked, dead  how many of them ended well, or died     open   how many may still change their row

Made from `jobs`, by the day of acceptance: a day is made anew from its jobs when one of them changes.
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
        jobs.filter(F.col("day").isNotNull())
        .groupBy("day", "queue", "deliveries")
        .agg(
            F.count("*").alias("jobs"),
            F.count_if(outcome == Change.ACKED).alias("acked"),
            F.count_if(outcome.isin(*DEAD)).alias("dead"),
            F.count_if(outcome == "open").alias("open"),
        )
        .select(*REDELIVERIES.names)
    )
