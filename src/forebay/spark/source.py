"""The data source `forebay`: `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    table      jobs      every job, in any state                      batch
               dead      the dead letters                             batch
               events    the ledger, one row a job and change         batch and stream
               log:<x>   the retained log x                           batch and stream

With the option `lake` the table is one of that lake, not of a store: events, jobs, attempts and so on, as batches.

All options are in `options`. Rows travel as Arrow batches, never as tuples.
"""

import os
from collections.abc import Mapping
from typing import ClassVar

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
from forebay.spark.lake import PROOF
from forebay.spark.lake_reader import LakeReader
from forebay.spark.options import MAX_PARTITIONS, LakeReading, Reading, Writing
from forebay.spark.reading import TailReader, TailStream
from forebay.spark.redrive import RedriveSink
from forebay.spark.schemas import EFFECTS, EVENTS, RECEIPTS
from forebay.spark.sink import BatchSink, StreamSink
from forebay.spark.tables import TABLES
from forebay.spark.tails import LOG


class ForebaySource(DataSource):
    """Jobs, dead letters, the ledger and logs as tables; a writer that enqueues rows.

    `slots`: how many tasks run at once; the default of the option `partitions`.
    """

    slots: ClassVar[int] = os.cpu_count() or 1

    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> StructType:
        if "lake" in self.options:
            return _of_lake(LakeReading.of(self.options))
        return _whole(self._reading())

    def reader(self, schema: StructType) -> DataSourceReader:
        if "lake" in self.options:
            lake = LakeReading.of(self.options)
            return LakeReader(lake, narrowed(schema, _of_lake(lake), lake.table))
        reading = self._reading()
        schema = narrowed(schema, _whole(reading), reading.table)
        return JobsReader(reading, schema) if reading.table in ("jobs", "dead") else TailReader(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reading = self._reading()
        if reading.table in ("jobs", "dead"):
            raise Invalid("option table", f"{reading.table} cannot be followed", "stream events or log:<name>")
        return TailStream(reading, narrowed(schema, _whole(reading), reading.table))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writing = _writing(self.options, overwrite)
        return RedriveSink(writing, schema) if writing.action == "redrive" else BatchSink(writing, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writing = _writing(self.options, overwrite)
        if writing.action != "enqueue":
            raise Invalid("option action", f"a stream does not {writing.action}", "write the dead letters as a batch")
        return StreamSink(writing, schema)

    def _reading(self) -> Reading:
        return Reading.of({"partitions": str(self.slots), **self.options})


def register(spark: SparkSession) -> None:
    """Register `format("forebay")` with a session; `spark_session` does it.

    A table is planned in a process without a session, so the source carries the number of the cluster's slots.
    """
    slots = min(spark.sparkContext.defaultParallelism, MAX_PARTITIONS)
    spark.dataSource.register(type("SessionSource", (ForebaySource,), {"slots": slots}))


def _writing(options: Mapping[str, str], overwrite: bool) -> Writing:
    if overwrite:
        raise Invalid("write mode", "a queue cannot be overwritten", 'use .mode("append")')
    return Writing.of(options)


def _whole(reading: Reading) -> StructType:
    return {"events": EVENTS, "log": LOG}.get(reading.table, JOBS)


def _of_lake(reading: LakeReading) -> StructType:
    """Events, tables and evidence; views are available by `read_table` only. Files of the table of proofs that an audit
    names are events of open jobs."""
    schemas = {"events": EVENTS, **{name: table.schema for name, table in TABLES.items()}}
    schemas |= {"receipts": RECEIPTS, "effects": EFFECTS}
    if reading.files and reading.table == PROOF:
        return EVENTS
    if reading.table not in schemas:
        raise Invalid("option table", f"the lake has no table {reading.table!r}", f"use {', '.join(schemas)}")
    return schemas[reading.table]
