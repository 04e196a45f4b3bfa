"""A refresh of few new events merges the rows of their jobs alone: it gives what tasks give that merge whole files."""

import random
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from forebay.spark import maintenance
from forebay.spark import refresh as module
from forebay.spark.lake import REVISION, Lake
from forebay.spark.landing import write_files
from forebay.spark.maintenance import Maintenance, maintain
from forebay.spark.refresh import Refreshed, refresh
from forebay.spark.tables import TABLES
from tests.spark.lakes import plain
from tests.spark.planted import clean
from tests.spark.story import START

STRETCH = 60
"""Of a history of an hour, so that the attempts of a job are of several days."""


def stretched(events: pa.Table) -> pa.Table:
    for number, field in enumerate(events.schema):
        if pa.types.is_timestamp(field.type):
            times = events[field.name].cast(pa.int64())
            later = pc.add(pc.multiply(pc.subtract(times, START), STRETCH), START)
            events = events.set_column(number, field, later.cast(field.type))
    days = events["event_at"].cast(pa.date32())
    return events.set_column(events.schema.get_field_index("day"), events.schema.field("day"), days)


def brought(spark: SparkSession, lake: Lake, events: pa.Table, end: int) -> dict[str, Refreshed]:
    table = lake.table("events")
    offsets = events["offset"]
    part = events.filter(pc.and_(pc.greater_equal(offsets, table.end), pc.less(offsets, end)))
    table.commit(write_files(lake, "events", part), end)
    return refresh(spark, lake)


def test_files_of_a_table_that_tasks_wrote_do_not_share_ids(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a few new events would touch a third of a large table."""
    monkeypatch.setattr(module, "MAX_TABLE_ROWS", 5)
    monkeypatch.setattr(module, "_MAX_FEW", 0)
    events = clean(seed=3, jobs=60).story.table()
    lake = Lake.of(tmp_path / "lake", "sqlite:////srv/jobs.db")
    brought(spark, lake, events, 1 + pc.max(events["offset"]).as_py())
    for name in ("jobs", "attempts"):
        files = lake.table(name, REVISION).files
        assert len(files) > 10
        for day in {file.day for file in files}:
            ranges = [(file.min_values["job_id"], file.max_values["job_id"]) for file in files if file.day == day]
            assert all(one[1] <= two[0] for one, two in pairwise(sorted(ranges))), ranges


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))])
def test_few_new_events_and_many_give_the_same_tables(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TABLE_ROWS", 20)
    rng = random.Random(seed)
    events = stretched(clean(seed, 60).story.table())
    head = 1 + pc.max(events["offset"]).as_py()
    few, many = (Lake(str(tmp_path / name)) for name in ("few", "many"))
    brought(spark, Lake.of(few.uri, "sqlite:////srv/jobs.db"), events, rng.randrange(head // 4, head))
    shutil.copytree(few.uri, many.uri)
    ours = brought(spark, few, events, head)
    monkeypatch.setattr(module, "_MAX_FEW", 0)
    theirs = brought(spark, many, events, head)
    assert {name: each.rows for name, each in ours.items()} == {name: each.rows for name, each in theirs.items()}
    for name in TABLES:
        assert plain(few, name) == plain(many, name), name
    files = few.table("attempts", REVISION).files
    assert len({file.day for file in files}) > 1
    assert max(file.rows for file in files) <= 40
    assert np.mean([file.rows for file in files]) >= 5
    monkeypatch.setattr(maintenance, "MAX_TABLE_ROWS", 20)
    before = plain(few, "jobs")
    maintain(few, Maintenance())
    assert plain(few, "jobs") == before
    assert max(file.rows for file in few.table("jobs", REVISION).files) <= 60, "a refresh would rewrite whole days"
