"""A streaming query from a log of one store into the queue of another; the test kills it while it works."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from forebay.spark.session import spark_session


def start(spark: SparkSession, source: str, target: str, checkpoint: str) -> StreamingQuery:
    log = spark.readStream.format("forebay").options(url=source, table="log:orders", max_events="1000").load()
    jobs = log.select(F.lit("order").alias("kind"), F.col("body").cast("string").alias("payload"))
    writer = jobs.writeStream.format("forebay").options(url=target, chunk="50")
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


if __name__ == "__main__":
    session = spark_session("local[2,3]", conf={"spark.local.dir": sys.argv[4]}, quick=True)
    start(session, *sys.argv[1:4]).awaitTermination()
