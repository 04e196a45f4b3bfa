"""A lake as DataFrames, and DataFrames as files of a lake."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.errors import Invalid
from forebay.spark.lake import Held, Lake
from forebay.spark.schemas import EVENTS
from forebay.spark.tables import PARTITIONS, TABLES

_NO_MARK: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


def read_events(spark: SparkSession, lake: Lake, since: int = 0) -> DataFrame:
    """All events of a lake as EVENTS, or those from an offset on."""
    parts = [part for part in lake.contents().events if part.end > since]
    if not parts:
        return spark.createDataFrame([], EVENTS)
    places = [str(lake.place("events", part.version)) for part in parts]
    frame = spark.read.schema(EVENTS).option("basePath", str(lake.home("events"))).parquet(*places)
    frame = frame.select(*EVENTS.names)
    return frame if parts[0].first >= since else frame.filter(F.col("offset") >= since)


def read_table(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table of a lake, as it was when the tables were last brought up to date."""
    if name not in TABLES:
        raise Invalid("table", f"there is no {name!r}", f"use {', '.join(TABLES)}")
    held = lake.contents().tables.get(name)
    return read_days(spark, lake, name, held)


def read_days(
    spark: SparkSession, lake: Lake, name: str, held: Held | None, days: Iterable[str] | None = None
) -> DataFrame:
    """What is held of a table, or some days of it."""
    schema = TABLES[name].schema
    chosen = {} if held is None else held.days
    if days is not None:
        wanted = frozenset(days)
        chosen = {day: piece for day, piece in chosen.items() if day in wanted}
    if not chosen:
        return spark.createDataFrame([], schema)
    places = [str(lake.place(name, piece.version) / f"day={day}") for day, piece in chosen.items()]
    return spark.read.schema(schema).option("basePath", str(lake.home(name))).parquet(*places).select(*schema.names)


def write_rows(frame: DataFrame, place: Path) -> None:
    """By day and queue."""
    frame.write.partitionBy(*PARTITIONS).option(_NO_MARK, "false").parquet(str(place))
