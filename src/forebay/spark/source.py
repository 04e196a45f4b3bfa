"""The data source `forebay`: `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    table      jobs      every job, in any state                      batch
               dead      the dead letters                             batch
               events    the ledger, one row a job and change         batch and stream
               log:<x>   the retained log x                           batch and stream

All options are in `options`. Rows travel as Arrow batches, never as tuples.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from forebay.core.errors import Invalid
from forebay.spark.arrow import narrowed
from forebay.spark.jobs import JOBS, JobsReader
from forebay.spark.landing import LANDED
from forebay.spark.options import Reading, Writing
from forebay.spark.reading import TailReader
from forebay.spark.redrive import RedriveSink
from forebay.spark.schemas import EVENTS
from forebay.spark.sink import BatchSink, StreamSink
from forebay.spark.streaming import TailStream
from forebay.spark.tails import LOG


class ForebaySource(DataSource):
    """Jobs, dead letters, the ledger and logs as tables; a table of jobs as a way in."""

    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> StructType:
        return _whole(Reading.of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        reading = Reading.of(self.options)
        if reading.lake:
            raise Invalid("option lake", "it is for streams", "use readStream, or forebay pipeline run")
        schema = narrowed(schema, _whole(reading), reading.table)
        return JobsReader(reading, schema) if reading.table in ("jobs", "dead") else TailReader(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reading = Reading.of(self.options)
        if reading.table in ("jobs", "dead"):
            raise Invalid("option table", f"{reading.table} has no end to follow", "stream events or log:<name>")
        return TailStream(reading, narrowed(schema, _whole(reading), reading.table))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writing = _writing(self.options, overwrite)
        return RedriveSink(writing, schema) if writing.action == "redrive" else BatchSink(writing, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writing = _writing(self.options, overwrite)
        if writing.action != "enqueue":
            raise Invalid("option action", f"a stream does not {writing.action}", "write the dead letters as a batch")
        return StreamSink(writing, schema)


def register(spark: SparkSession) -> None:
    """Make `format("forebay")` known to a session; `spark_session` does it by itself."""
    spark.dataSource.register(ForebaySource)


def _writing(options: Mapping[str, str], overwrite: bool) -> Writing:
    if overwrite:
        raise Invalid("write mode", "a queue cannot be overwritten", 'say .mode("append")')
    return Writing.of(options)


def _whole(reading: Reading) -> StructType:
    if reading.lake:
        return LANDED
    return {"events": EVENTS, "log": LOG}.get(reading.table, JOBS)
