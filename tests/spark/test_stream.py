"""Streams over the ledger and logs: every record once, in bounded batches, over restarts; gaps are never silent."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from forebay.core.errors import ForebayError
from forebay.core.job import Draft
from forebay.core.ledger import LedgerRule
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.spark.options import Reading
from forebay.spark.reading import ReadRange, TailStream
from forebay.spark.schemas import EVENTS
from forebay.spark.tails import LOG
from forebay.store.protocol import Want
from tests.spark.sample_stores import opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def some_work(url: str, calls: int, size: int = 10) -> None:
    with opened(url) as store:
        for _ in range(calls):
            store.enqueue([Draft("k", {"n": number}) for number in range(size)])


def run(spark: SparkSession, url: str, directory: Path, **options: str) -> list[dict[str, Any]]:
    """One AvailableNow run on the same checkpoint and table; the progress of its batches."""
    source = spark.readStream.format("forebay").options(url=url, **options).load()
    query = (
        source.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def test_every_event_once_over_restarts_until_a_gap_stops_it_with_the_way_out(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    some_work(url, 8)
    batches = run(spark, url, tmp_path, table="events", max_events="40")
    assert [batch["numInputRows"] for batch in batches] == [40, 40]
    some_work(url, 3)
    with opened(url) as store:
        store.claim([Want("default", 25)], "w", timedelta(seconds=5))
    assert sum(batch["numInputRows"] for batch in run(spark, url, tmp_path, table="events", max_events="40")) == 55
    table = spark.read.parquet(str(tmp_path / "table")).select("offset", "place")
    found = [tuple(row) for row in table.collect()]
    assert len(found) == len(set(found)) == 135
    assert max(found)[0] == 11
    some_work(url, 60, size=3)
    first = trimmed(url)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, url, tmp_path, table="events")
    assert f"offset 12 was trimmed; it begins at {first}; nothing was skipped" in str(caught.value)
    assert "set .option('on_gap', 'skip')" in str(caught.value)
    progress = run(spark, url, tmp_path, table="events", on_gap="skip")
    assert json.loads(progress[-1]["sources"][0]["endOffset"])["skipped"] == first - 12
    offsets = {row.offset for row in spark.read.parquet(str(tmp_path / "table")).select("offset").collect()}
    assert offsets == {*range(12), *range(first, 72)}


def test_a_log_with_several_partitions_is_followed(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with opened(url) as store:
        store.put_spec(QueueSpec(name="clicks", retention=Retained(partitions=2)))
        store.append("clicks", [b"%d" % number for number in range(50)])
    batches = run(spark, url, tmp_path, table="log:clicks", max_events="30")
    assert [batch["numInputRows"] for batch in batches] == [30, 20]
    with opened(url) as store:
        store.put_spec(QueueSpec(name="clicks", retention=Retained(partitions=3)))
        store.append("clicks", [b"%d" % number for number in range(50, 100)])
    run(spark, url, tmp_path, table="log:clicks")
    table = spark.read.parquet(str(tmp_path / "table"))
    assert sorted(int(row.body) for row in table.collect()) == list(range(100))


def trimmed(url: str) -> int:
    """All but the newest records are gone: how many."""
    with opened(url) as store:
        store.put_ledger_rule(LedgerRule(keep_bytes=1_000))
        store.trim_ledger(1_000)
        first: int = store.ledger_extent()[0]
    assert first > 0
    return first


def reader(url: str, schema: Any = EVENTS, **options: str) -> TailStream:
    return TailStream(Reading.of({"url": url, "table": "events", **options}), schema)


def test_the_bound_counts_events_although_offsets_are_records(url: str) -> None:
    some_work(url, 5, size=100)
    some_work(url, 50, size=1)
    stream = reader(url, max_events="250", max_records="10")
    start = stream.initialOffset()
    assert start == {"next": [0], "skipped": 0, "late": 0}
    first = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert first["next"] == [3], "the third record passes 250 events"
    assert stream.latestOffset(first, ReadMaxRows(250))["next"] == [13], "208 more events, but only 10 records"
    assert stream.latestOffset(first, ReadAllAvailable())["next"] == [55]
    assert reader(url, start="latest").initialOffset()["next"] == [55]
    stream.stop()


def test_a_batch_is_split_among_tasks_and_reads_the_same_twice(url: str) -> None:
    some_work(url, 40)
    stream = reader(url, partitions="4")
    parts = stream.partitions({"next": [1], "skipped": 0, "late": 0}, {"next": [37], "skipped": 0, "late": 0})
    assert [(part.start, part.end) for part in parts if isinstance(part, ReadRange)] == [
        (1, 10),
        (10, 19),
        (19, 28),
        (28, 37),
    ]
    assert stream.partitions({"next": [9], "skipped": 0, "late": 0}, {"next": [9], "skipped": 0, "late": 0}) == []
    assert (
        len(stream.partitions({"next": [1], "skipped": 0, "late": 0}, {"next": [18], "skipped": 0, "late": 0})) == 2
    ), "not one a record"
    once = [batch.to_pylist() for part in parts for batch in stream.read(part)]
    again = [batch.to_pylist() for part in parts for batch in stream.read(part)]
    assert once == again
    assert sum(map(len, once)) == 360
    stream.stop()


def test_available_now_ends_although_work_goes_on(url: str) -> None:
    some_work(url, 3)
    stream = reader(url)
    stream.prepareForTriggerAvailableNow()
    some_work(url, 3)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10_000))
    assert end["next"] == [3]
    assert stream.latestOffset(end, ReadMaxRows(10_000)) == end
    assert stream.reportLatestOffset()["next"] == [6]
    stream.stop()


def test_an_offset_of_another_store_is_refused(url: str) -> None:
    some_work(url, 3)
    with pytest.raises(ForebayError, match="the ledger ends before offset 3, 9 was its end before"):
        list(reader(url).read(ReadRange(0, 0, 9)))


def test_a_trim_between_plan_and_read_is_an_error(url: str) -> None:
    some_work(url, 80, size=3)
    first = trimmed(url)
    with pytest.raises(ForebayError, match=f"offset 0 was trimmed; it begins at {first};"):
        list(reader(url).read(ReadRange(0, 0, first + 1)))
    rows = [row for batch in reader(url, on_gap="skip").read(ReadRange(0, 0, first + 1)) for row in batch.to_pylist()]
    assert {row["offset"] for row in rows} == {first}


def test_what_was_trimmed_while_a_batch_was_under_way_is_counted(url: str) -> None:
    some_work(url, 80, size=3)
    stream = reader(url, on_gap="skip", max_records="70", partitions="2")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"next": [70], "skipped": 0, "late": 0}
    parts = stream.partitions(start, end)
    first = trimmed(url)
    rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    missed = set(range(70)) - {row["offset"] for row in rows}
    assert missed == set(range(min(first, 70)))
    later = stream.latestOffset(end, stream.getDefaultReadLimit())
    assert later["late"] == len(missed)
    assert later["skipped"] == max(0, first - 70)
    assert stream.latestOffset(later, stream.getDefaultReadLimit())["late"] == len(missed), "once"
    stream.stop()


def test_what_was_counted_when_it_was_planned_is_not_counted_again(url: str) -> None:
    some_work(url, 80, size=3)
    first = trimmed(url)
    stream = reader(url, on_gap="skip")
    start = {"next": [0], "skipped": 2}
    end = stream.latestOffset(start, ReadAllAvailable())
    assert (end["skipped"], end["late"]) == (first + 2, 0)
    stream.partitions(start, end)
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.stop()


def test_the_ledger_of_a_journal_is_read_beside_its_owner(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}/journal"
    with opened(url) as store:
        store.enqueue([Draft("k", {"n": number}) for number in range(7)])
        stream = reader(url)
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert end["next"] == [store.ledger_extent()[1]]
        found = [row for batch in stream.read(ReadRange(0, 0, end["next"][0])) for row in batch.to_pylist()]
        assert [row["change"] for row in found if row["change"]] == ["accepted"] * 7
        stream.stop()


def test_a_log_reads_by_ranges(url: str) -> None:
    with opened(url) as store:
        store.put_spec(QueueSpec(name="clicks", retention=Retained(partitions=1)))
        for start in range(0, 2_500, 500):
            store.append("clicks", [b"%d" % number for number in range(start, start + 500)])
    stream = reader(url, LOG, table="log:clicks", page="700")
    bodies = [row["body"] for batch in stream.read(ReadRange(0, 10, 2_400)) for row in batch.to_pylist()]
    assert [int(body) for body in bodies] == list(range(10, 2_400))
