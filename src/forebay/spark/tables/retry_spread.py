"""`retry_spread`: whether retries spread out or are due all at once, as one row a day, queue and attempt.

    queue          the queue
    attempt        the attempt that failed
    retries        how many failed at this attempt and were due again
    delay_sketch   a KLL sketch of the delays that were drawn, in microseconds
    delay_p50, delay_p95, delay_p99, delay_max   percentiles and the largest of these delays, in seconds
    same_delay     the share of the most frequent delay, to the millisecond: near 1 where jitter was lost
    crowds         seconds in which at least 20 jobs failed together (CROWD)
    burst          of those jobs, the largest share that was due within one second: with jitter over ten seconds
                   about 0.1, without it 1; null where there was no crowd
    day            of the failure

Retries without a delay (a worker died, `retry_after=0`) are left out. A day is computed from its own events.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.core.ledger import Change
from forebay.spark.schemas import schema_of
from forebay.spark.tables.columns import PERCENTILES, micros_between, percentile, sketch, was

CROWD: Final = 20

_HEAD: Final = schema_of("queue string!\nattempt int!\nretries long!")
_TAIL: Final = schema_of("""
delay_p50 double
delay_p95 double
delay_p99 double
delay_max double!
same_delay double!
crowds long!
burst double
day date!
""")
RETRY_SPREAD: Final = StructType([*_HEAD, StructField("delay_sketch", BinaryType()), *_TAIL])

_KEY: Final = ["day", "queue", "attempt"]


def retry_spread(events: DataFrame) -> DataFrame:
    drawn = events.filter(was(Change.RETRIED) & (F.col("next_at") > F.col("event_at"))).withColumn(
        "delay", micros_between("event_at", "next_at")
    )
    whole = drawn.groupBy(*_KEY).agg(
        F.count("*").alias("retries"),
        sketch(F.col("delay")).alias("delay_sketch"),
        (F.max("delay") / 1e6).alias("delay_max"),
    )
    alike = drawn.groupBy(*_KEY, F.round(F.col("delay") / 1e3).alias("length")).count()
    largest = alike.groupBy(*_KEY).agg(F.max("count").alias("alike"))
    failed, back = F.date_trunc("second", "event_at").alias("failed"), F.date_trunc("second", "next_at").alias("back")
    bins = drawn.groupBy(*_KEY, failed, back).count()
    crowd = bins.groupBy(*_KEY, "failed").agg(F.sum("count").alias("jobs"), F.max("count").alias("burst"))
    crowds = crowd.filter(F.col("jobs") >= CROWD).groupBy(*_KEY)
    bursts = crowds.agg(F.count("*").alias("crowds"), F.max(F.col("burst") / F.col("jobs")).alias("burst"))
    rows = whole.join(largest, _KEY).join(bursts, _KEY, "left")
    columns = {f"delay_p{each}": percentile("delay_sketch", each) for each in PERCENTILES}
    columns |= {"same_delay": F.col("alike") / F.col("retries"), "crowds": F.coalesce("crowds", F.lit(0))}
    return rows.withColumns(columns).select(*RETRY_SPREAD.names)
