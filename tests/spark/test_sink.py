"""Writes: rows become jobs, each once, whatever Spark repeats; what cannot be a job is named before anything is in."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.errors import Invalid, QueueFull
from forebay.core.policy import Bounded, Retained
from forebay.core.spec import QueueSpec
from forebay.spark.options import Writing
from forebay.spark.retries import PartitionAttempt
from forebay.spark.sink import Written, write_rows
from forebay.store.protocol import Checkpoint
from tests.spark.killed_query import start
from tests.spark.sample_stores import every_job, opened
from tests.waiting import eventually

TRY, AGAIN = b"a" * 16, b"b" * 16


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def write(df: DataFrame, url: str, **options: str) -> None:
    df.write.format("forebay").options(url=url, **options).mode("append").save()


def seqs(url: str) -> Counter[int]:
    with opened(url) as store:
        return Counter(job.payload["seq"] for job in every_job(store))


def depth(url: str) -> int:
    with opened(url) as store:
        return sum(queue.ready for queue in store.backlog())


def test_a_row_has_every_field_of_a_draft(spark: SparkSession, url: str) -> None:
    row = spark.sql("""
        select 'mail' as kind, named_struct('to', 'ada', 'tries', array(1, 2)) as payload, 'post' as queue,
            'once' as key, timestamp '2100-01-01 00:00:00' as run_at, timestamp '2101-01-01 00:00:00' as deadline,
            timestamp '2102-01-01 00:00:00' as expires_at, 9 as priority, 't1' as tenant, 's1' as subject,
            4L as max_attempts, map('trace', 'x') as meta
    """)
    write(row, url)
    write(row, url)
    with opened(url) as store:
        (job,) = every_job(store)
    assert (job.kind, job.queue, job.key, job.priority, job.tenant) == ("mail", "post", "once", 9, "t1")
    assert job.payload == {"to": "ada", "tries": [1, 2]}
    assert (job.subject, job.max_attempts, job.meta) == ("s1", 4, {"trace": "x"})
    assert (job.due_at, job.deadline, job.expires_at) == (
        4_102_444_800_000_000,
        4_133_980_800_000_000,
        4_165_516_800_000_000,
    )


def test_nulls_are_defaults_and_options_are_for_all_rows(spark: SparkSession, url: str) -> None:
    df = spark.sql("select '{\"seq\": 1}' as payload, cast(null as string) as key, 2.5 as delay")
    write(df, url, kind="k", queue="q")
    with opened(url) as store:
        (job,) = every_job(store)
    assert (job.kind, job.queue, job.key, job.payload) == ("k", "q", None, {"seq": 1})
    assert job.due_at - job.enqueued_at == 2_500_000


@pytest.mark.parametrize(
    ("select", "complaint"),
    [
        ("select 'k' as kind, 1 as payload", "payload is int, not JSON text, a struct, a map or an array"),
        ("select 'k' as kind, 'soon' as run_at", "run_at is string, not a timestamp"),
        ("select 'k' as kind, 1 as speed", "a job has no field speed"),
        ("select '1' as payload", "kind is missing; select some of kind, payload, queue, key"),
    ],
)
def test_wrong_columns_are_named_on_the_driver(spark: SparkSession, url: str, select: str, complaint: str) -> None:
    with pytest.raises(AnalysisException) as caught:
        write(spark.sql(select), url)
    assert complaint in str(caught.value)


def test_wrong_options_of_a_write_are_named(spark: SparkSession, url: str) -> None:
    row = spark.sql("select 'k' as kind")
    with pytest.raises(AnalysisException, match="write mode: a queue cannot be overwritten"):
        row.write.format("forebay").option("url", url).mode("overwrite").save()
    with pytest.raises(
        AnalysisException, match="option action: 'burn' is not one of its values; use enqueue or redrive"
    ):
        write(row, url, action="burn")


@pytest.mark.parametrize("died", ["raised", "killed"])
def test_a_task_that_fails_halfway_adds_each_row_once(spark: SparkSession, url: str, died: str) -> None:
    def fragile(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for part in parts:
            if {700, 1_650} & set(part.column("id").to_pylist()) and task.attemptNumber() < 2:
                if died == "killed":
                    os._exit(9)
                raise RuntimeError("on purpose")
            yield part

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        df = spark.range(0, 2_000, 1, 2).mapInArrow(fragile, "id long").withColumnRenamed("id", "seq")
        write(df.select(F.lit("k").alias("kind"), F.to_json(F.struct("seq")).alias("payload")), url, chunk="64")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert seqs(url) == Counter(range(2_000))
    with opened(url) as store:
        calls = [entry.record.jobs for entry in store.ledger(-1, 1_000)]
    assert max(calls) <= 64
    assert sum(calls) == 2_000


def batches(numbers: list[int], size: int = 10) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(numbers), size):
        bodies = [f'{{"seq":{number}}}' for number in numbers[begin : begin + size]]
        yield pa.RecordBatch.from_pydict({"payload": pa.array(bodies), "kind": pa.array(["k"] * len(bodies))})


def broken_after(numbers: list[int], batch: int) -> Iterator[pa.RecordBatch]:
    for place, rows in enumerate(batches(numbers)):
        if place == batch:
            raise OSError("the line is cut")
        yield rows


def task(url: str, rows: Iterator[pa.RecordBatch], batch: int = 0, **options: str) -> Written:
    return share_of(url, rows, PartitionAttempt("source", 0, batch, TRY), **options)


def share_of(url: str, rows: Iterator[pa.RecordBatch], share: PartitionAttempt, **options: str) -> Written:
    return write_rows(rows, Writing.of({"url": url, "chunk": "8", "patience": "0.01", **options}), share)


def test_a_task_continues_where_the_one_before_stopped(url: str) -> None:
    for cut in (0, 1, 3, 3, 4):
        with pytest.raises(OSError, match="cut"):
            task(url, broken_after(list(range(50)), cut))
    assert task(url, batches(list(range(50)))) == Written(taken=18, repeated=32)
    assert task(url, batches(list(range(50)), size=7)) == Written(repeated=50)
    assert seqs(url) == Counter(range(50))


def test_rows_in_another_order_are_refused_and_nothing_is_added(url: str) -> None:
    with pytest.raises(OSError, match="cut"):
        task(url, broken_after(list(range(50)), 3))
    before = seqs(url)
    for other in (list(range(49, -1, -1)), list(range(10)), [*range(20), 99, *range(21, 50)]):
        with pytest.raises(
            Invalid, match=r"rows of spark:source:0: they, or their order, differ.*sortWithinPartitions"
        ):
            task(url, batches(other))
    assert seqs(url) == before
    assert task(url, batches(list(range(50)))).taken == 50 - len(before)


def test_finished_batches_are_skipped(url: str) -> None:
    assert task(url, batches([1, 2]), batch=4) == Written(taken=2)
    assert task(url, batches([1, 2]), batch=4) == Written(repeated=2)
    assert task(url, batches([7, 8, 9]), batch=3) == Written(repeated=3)
    assert task(url, batches([3]), batch=5) == Written(taken=1)
    assert seqs(url) == Counter([1, 2, 3])


def test_two_attempts_at_once_write_each_row_once(url: str) -> None:
    """As with speculation: the second one starts when the first has not ended."""
    first = batches(list(range(40)))

    def interrupted() -> Iterator[pa.RecordBatch]:
        for place, rows in enumerate(batches(list(range(40)))):
            if place == 2:
                assert task(url, first).taken == 24, "what the other had put is passed over"
            yield rows

    assert task(url, interrupted()) == Written(taken=16, repeated=24)
    assert seqs(url) == Counter(range(40))


def test_a_partition_that_is_missing_in_the_next_attempt_keeps_the_others_from_adding_its_rows(url: str) -> None:
    """Four partitions, of which the last has put rows; then two, with the same rows between them."""
    assert share_of(url, batches([30, 31]), PartitionAttempt("w", 3, 7, TRY)).taken == 2
    with pytest.raises(
        Invalid, match=r"earlier attempt of batch 7 added rows of partition 3, unconfirmed .* nothing was added"
    ):
        share_of(url, batches([0, 1, 30]), PartitionAttempt("w", 0, 7, AGAIN))
    assert seqs(url) == Counter([30, 31])


def test_an_attempt_in_the_same_partitions_continues_when_the_started_ones_are_confirmed(url: str) -> None:
    for number in (1, 2):
        with pytest.raises(OSError, match="cut"):
            share_of(
                url,
                broken_after(list(range(number * 100, number * 100 + 30)), 2),
                PartitionAttempt("w", number, 7, TRY),
            )
    before = len(seqs(url))

    def rows_of_zero() -> Iterator[pa.RecordBatch]:
        for number in (1, 2):
            rows = batches(list(range(number * 100, number * 100 + 30)))
            if number == 1:
                with pytest.raises(Invalid, match="partition 2, unconfirmed"):
                    share_of(url, rows, PartitionAttempt("w", number, 7, AGAIN))
            else:
                share_of(url, rows, PartitionAttempt("w", number, 7, AGAIN))
        yield from batches(list(range(5)))

    assert share_of(url, rows_of_zero(), PartitionAttempt("w", 0, 7, AGAIN)).taken == 5
    assert share_of(url, batches(list(range(100, 130))), PartitionAttempt("w", 1, 7, AGAIN)).taken > 0
    assert seqs(url) == Counter([*range(5), *range(100, 130), *range(200, 230)])
    assert before < 60
    assert share_of(url, batches([1]), PartitionAttempt("w", 0, 8, TRY)).taken == 1, "the next batch reads no store"


def test_a_full_queue_is_waited_for_and_then_an_error(url: str) -> None:
    with opened(url) as store:
        store.put_spec(QueueSpec(name="few", capacity=Bounded(10)))
    with pytest.raises(QueueFull):
        task(url, batches(list(range(20))), queue="few", patience="0.01")
    assert len(seqs(url)) == 8
    with opened(url) as store:
        place: Any = store.ingested("spark:source:0")
        assert isinstance(place, Checkpoint)
        assert place.taken == 8


@pytest.mark.timeout(400)
def test_a_killed_query_starts_again_and_adds_each_row_once(spark: SparkSession, url: str, tmp_path: Path) -> None:
    source, checkpoint = f"sqlite:///{tmp_path}/log.db", str(tmp_path / "checkpoint")
    count = 2_000
    with opened(source) as store:
        store.put_spec(QueueSpec(name="orders", retention=Retained(partitions=2)))
        for begin in range(0, count, 1_000):
            store.append("orders", [b'{"seq":%d}' % number for number in range(begin, begin + 1_000)])
    with opened(url):
        pass
    program = [sys.executable, str(Path(__file__).with_name("killed_query.py")), source, url, checkpoint, str(tmp_path)]
    child = subprocess.Popen(program, stderr=subprocess.DEVNULL, start_new_session=True)
    eventually(lambda: depth(url) >= 300 or child.poll() is not None, "300 jobs", 240)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    taken = len(seqs(url))
    assert 300 <= taken < count, "it was to be killed in the middle"
    start(spark, source, url, checkpoint).awaitTermination()
    assert seqs(url) == Counter(range(count))
