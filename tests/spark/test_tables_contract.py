"""What holds for every table: its schema, and that parts of a history merge to what the whole of it gives."""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertDataFrameEqual

from forebay.core.errors import Invalid
from forebay.spark import lake
from forebay.spark.schemas import EVENTS, conform
from forebay.spark.tables import TABLES, VIEWS, Table, View
from tests.spark.planted import clean

MERGED = [table for table in TABLES.values() if table.source == "events"]
EVERY = {**TABLES, **VIEWS}


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[DataFrame]:
    frame, _, _ = clean(seed=5, jobs=120).story.frames(spark)
    yield frame.cache()
    frame.unpersist()


def built(table: Table | View, events: DataFrame) -> DataFrame:
    direct = isinstance(table, View) or table.source == "events"
    return table.build(events if direct else TABLES["jobs"].build(events))


@pytest.mark.parametrize("table", EVERY.values(), ids=EVERY)
def test_a_table_keeps_its_schema(table: Table | View, events: DataFrame) -> None:
    rows = built(table, events)
    fields = [(field.name, field.dataType) for field in rows.schema]
    assert fields == [(field.name, field.dataType) for field in table.schema]
    assert {"day", "queue"} <= set(table.schema.names)
    never = [field.name for field in table.schema if not field.nullable]
    found = rows.select(*never, F.struct(*table.keys).alias("keys")).collect()
    assert all(value is not None for row in found for value in row)
    assert len({row["keys"] for row in found}) == len(found) > 0


@pytest.mark.parametrize("table", MERGED, ids=lambda table: table.name)
def test_parts_of_a_history_merge_to_the_whole(table: Table, events: DataFrame) -> None:
    """Cut twice, the later part first: what was half done at a cut is finished by the merge."""
    cuts = events.filter("offset < 200"), events.filter("offset BETWEEN 200 AND 550"), events.filter("offset > 550")
    merged = table.updated(table.updated(table.build(cuts[1]), cuts[0]), cuts[2])
    sketches = [name for name in table.schema.names if name.endswith("_sketch")]
    assertDataFrameEqual(merged.drop(*sketches), built(table, events).drop(*sketches))


def test_the_lake_lists_every_table() -> None:
    assert tuple(TABLES) == lake.TABLES


def test_the_answer_does_not_depend_on_partitions(events: DataFrame) -> None:
    jobs = TABLES["jobs"]
    mixed = events.repartition(4, "place").sortWithinPartitions(F.desc("offset"))
    assertDataFrameEqual(jobs.build(mixed), jobs.build(events))


def test_events_of_another_shape_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "offset int, place int")
    with pytest.raises(Invalid, match="offset is int; event_at is missing"):
        conform(frame, EVENTS, "events")
