"""Batch reads on SQLite: jobs, dead letters, events and logs are what the store says they are; mistakes are named."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual

from forebay.core.errors import Invalid
from forebay.core.job import Draft, State
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.spark.arrow import flatten
from forebay.spark.jobs import JOBS, JobFilter, id_extent, job_batch, narrow
from forebay.spark.options import Reading
from forebay.spark.reading import split
from forebay.spark.schemas import EVENTS
from forebay.spark.source import ForebaySource, register
from forebay.store.protocol import Query
from tests.spark.sample_stores import busy_day, every_job, opened, rows


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("forebay").options(url=url, **options).load()


def test_jobs_in_every_state_are_read_as_the_store_shows_them(spark: SparkSession, url: str) -> None:
    busy_day(url, 2_500)
    with opened(url) as store:
        expected = job_batch(every_job(store), JOBS).to_pylist()
    df = read(spark, url, partitions="3", page="100")
    assert df.schema == JOBS
    assert df.rdd.getNumPartitions() == 2, "parts of fewer than a thousand ids are not worth a task"
    assert rows(df) == expected
    assert {row["state"] for row in expected} == {"waiting", "ready", "running", "dead"}


def test_a_table_is_read_in_as_many_parts_as_tasks_run_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """On a cluster these are the slots of its executors, whatever the machine of the driver has."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy_day(url, 5_000)
    source = spark.read.format("forebay").option("url", url)
    assert source.load().rdd.getNumPartitions() == spark.sparkContext.defaultParallelism
    try:
        spark.dataSource.register(type("OfThree", (ForebaySource,), {"slots": 3}))
        assert source.load().rdd.getNumPartitions() == 3
        assert source.option("partitions", 4).load().rdd.getNumPartitions() == 4
    finally:
        register(spark)


def test_options_choose_and_filters_of_one_query_stay_with_it(spark: SparkSession, url: str) -> None:
    """Spark 4.3 keeps what was pushed down with the DataFrame: nothing may be pushed unless it is asked for."""
    busy_day(url)
    df = read(spark, url)
    whole = rows(df)
    ready = [row for row in whole if row["state"] == "ready" and row["tenant"] == "t1"]
    assert rows(df.filter("state = 'ready' and tenant = 't1'")) == ready != []
    assert rows(df) == whole
    assert rows(read(spark, url, state="ready", tenant="t1")) == ready
    assert [row["id"] for row in rows(read(spark, url, first_id="4", last_id="7", kind="k"))] == [5, 6, 7]
    assert read(spark, url, queue="late").count() == 4
    with opened(url) as store:
        store.enqueue([Draft("k", queue="late")])
    assert df.count() == len(whole) + 1, "the same DataFrame reads what is new"


def test_pushdown_filters_in_the_store(spark: SparkSession, url: str) -> None:
    busy_day(url)
    df = read(spark, url, pushdown="true")
    picked = df.filter("kind = 'odd' and queue = 'default' and id > 5 and id <= 30 and payload like '%seq%'")
    plan = picked._jdf.queryExecution().executedPlan().toString()
    assert "odd" not in plan, "what is pushed leaves the plan"
    assert "Contains(payload" in plan
    assert [row["id"] for row in rows(picked)] == [11, 18]
    assert read(spark, url, pushdown="true").filter("state = 'nonsense'").count() == 0


def test_dead_letters_have_their_errors(spark: SparkSession, url: str) -> None:
    busy_day(url)
    dead = read(spark, url, table="dead").select("id", "error_kind", "error", "state")
    assert [tuple(row.values()) for row in rows(dead)] == [
        (1, "ValueError", "no such é", "dead"),
        (4, "KeyError", "x", "dead"),
    ]


def test_only_columns_of_a_narrow_schema_are_built(spark: SparkSession, url: str) -> None:
    busy_day(url)
    df = spark.read.format("forebay").schema("state string, id bigint").option("url", url).load()
    assert df.columns == ["state", "id"]
    assert df.filter("state = 'dead'").count() == 2


def test_events_are_the_ledger(spark: SparkSession, url: str) -> None:
    busy_day(url)
    with opened(url) as store:
        expected = flatten(store.ledger(-1, 1_000), EVENTS).to_pylist()
    df = read(spark, url, table="events")
    assert df.schema == EVENTS
    assert sorted(df.toArrow().to_pylist(), key=lambda row: (row["offset"], row["place"])) == expected
    assert {row["change"] for row in expected} >= {"accepted", "claimed", "acked", "died", "retried", "cancelled"}


def test_a_log_is_read_whole(spark: SparkSession, url: str) -> None:
    with opened(url) as store:
        store.put_spec(QueueSpec(name="clicks", retention=Retained(partitions=3)))
        for number in range(30):
            store.append("clicks", [b"%d" % number, b"0"], [f"user{number % 4}", None])
    df = read(spark, url, table="log:clicks")
    found = [(row.partition, row.offset) for row in df.select("partition", "offset").collect()]
    assert len(set(found)) == len(found) == 60
    assert df.filter("key = 'user1'").select("partition").distinct().count() == 1
    assert sorted(int(row.body) for row in df.filter("key is not null").collect()) == list(range(30))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"url": ""}, 'option url: it is not given; add .option("url", "postgresql://…"), or set FOREBAY_URL'),
        ({"table": "job"}, "option table: there is no table 'job'; use jobs, dead, events or log:<name>"),
        ({"tabel": "jobs"}, "option tabel: the source forebay has no such option; did you mean table?"),
        ({"partitions": "many"}, "option partitions: 'many' is not a number in 1 … 10000"),
        ({"on_gap": "shrug"}, "option on_gap: 'shrug' is not one of its values; use fail or skip"),
        ({"url": "memory://"}, "a memory store exists in one process"),
        (
            {"state": "lost"},
            "option state: 'lost' is not a state of table jobs; read jobs, with waiting, ready, running",
        ),
    ],
)
def test_a_wrong_option_is_named(
    url: str, options: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    busy_day(url)
    with pytest.raises(Invalid) as caught:
        Reading.of({"url": url, **options})
    assert complaint in str(caught.value)


def test_a_wrong_option_fails_on_the_driver(spark: SparkSession, url: str) -> None:
    with pytest.raises(
        AnalysisException, match="option tabel: the source forebay has no such option; did you mean table"
    ):
        read(spark, url, tabel="jobs")


def test_a_missing_store_is_named_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="no store has the scheme 'mysql'"):
        read(spark, "mysql://x").count()
    with pytest.raises(AnalysisException, match=r"there is no file .*nothing\.db"):
        read(spark, f"sqlite:///{tmp_path}/nothing.db").count()
    assert not (tmp_path / "nothing.db").exists()


def test_a_schema_of_another_table_is_refused(spark: SparkSession, url: str) -> None:
    busy_day(url)
    with pytest.raises(
        AnalysisException, match="schema of jobs: it has no id int, speed double; choose among id bigint"
    ):
        spark.read.format("forebay").schema("id int, speed double").option("url", url).load().count()


def test_what_can_be_narrowed_exactly() -> None:
    chosen = JobFilter(Query())
    assert narrow(chosen, GreaterThan(("id",), 5)) == JobFilter(Query(), 6)
    assert narrow(JobFilter(Query(), 6), LessThanOrEqual(("id",), 9)) == JobFilter(Query(), 6, 9)
    assert narrow(chosen, EqualTo(("id",), 9)) == JobFilter(Query(), 9, 9)
    assert narrow(chosen, EqualTo(("state",), "dead")) == JobFilter(Query(state=State.DEAD))
    assert narrow(JobFilter(Query(queue="a")), EqualTo(("queue",), "b")) is None, "that is Spark's to find empty"
    assert narrow(chosen, EqualTo(("kind",), "no name!")) is None
    assert narrow(chosen, In(("queue",), ("a", "b"))) is None


def test_ranges_cover_everything_once() -> None:
    for start, end, parts in ((0, 1, 4), (0, 10_000, 3), (5, 5, 2), (7, 2_007, 5)):
        ranges = split(0, start, end, parts)
        assert [number for part in ranges for number in range(part.start, part.end)] == list(range(start, end))


def test_the_extent_of_ids_is_found_by_halving(url: str) -> None:
    with opened(url) as store:
        assert id_extent(store) == (1, 0)
        ids = [receipt.id for receipt in store.enqueue([Draft("k") for _ in range(300)])]
        assert id_extent(store) == (ids[0], ids[-1])
