"""Each table's numbers on small histories whose answers are worked out by hand."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.instant import to_datetime
from forebay.core.ledger import Trait
from forebay.spark.tables import TABLES, VIEWS
from forebay.spark.tables.columns import merged
from forebay.spark.tables.dead_letters import normalised
from tests.spark.story import LEASE, SECOND, START, Life, Story

MINUTE = 60 * SECOND
NOON = START - START % MINUTE


def events_of(spark: SparkSession, story: Story) -> DataFrame:
    return spark.createDataFrame(story.table())


def rows_of(frame: DataFrame, *by: str) -> list[Row]:
    return frame.orderBy(*by).collect()


def part(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    """Six jobs: done at once; done at the third try; dead; redriven and open; cancelled; fired and running."""
    story = Story()
    Life(story, NOON).accept().claim(at=NOON + 2 * SECOND).after(3 * SECOND).ack()
    twice = Life(story, NOON, delay=10 * SECOND).accept(traits=[Trait(tenant="ada", key="k", priority=4)])
    twice.claim().after(SECOND).retry(5 * SECOND).claim().after(SECOND).release(SECOND)
    twice.claim().after(LEASE - SECOND).extend().after(SECOND).ack()
    Life(story, NOON, max_attempts=1).accept().claim().after(SECOND).die("Broken", "pipe 7")
    again = Life(story, NOON, max_attempts=1).accept().claim().after(SECOND).die("Broken", "pipe 8").after(MINUTE)
    again.redrive()
    Life(story, NOON).accept().after(SECOND).cancel()
    Life(story, NOON + 5, queue="cron").accept(name="tick", tick=NOON).claim()
    return events_of(spark, story).cache()


def test_jobs(events: DataFrame) -> None:
    done, twice, dead, again, cancelled, fired = rows_of(TABLES["jobs"].build(events), "job_id")
    noon = to_datetime(NOON).replace(tzinfo=None)
    assert part(done, "outcome", "deliveries", "claims", "retries") == ("acked", 1, 1, 0)
    assert part(done, "accepted_at", "first_claim_at", "ended_at") == tuple(
        noon + timedelta(seconds=each) for each in (0, 2, 5)
    )
    assert part(twice, "outcome", "deliveries", "claims", "retries", "releases", "attempt") == ("acked", 3, 3, 1, 1, 2)
    assert part(twice, "tenant", "key", "priority", "max_attempts") == ("ada", "k", 4, 3)
    assert part(twice, "error_kind", "error") == ("Timeout", "no answer")
    assert twice["first_due_at"] == noon + timedelta(seconds=10)
    assert part(dead, "outcome", "error", "attempt") == ("died", "pipe 7", 1)
    assert part(again, "outcome", "ended_at", "redrives", "error") == ("open", None, 1, "pipe 8")
    assert part(cancelled, "outcome", "claims", "first_claim_at") == ("cancelled", 0, None)
    assert part(fired, "outcome", "schedule", "tick", "queue") == ("open", "tick", noon, "cron")


def test_attempts(events: DataFrame) -> None:
    rows = {(row["job_id"], row["delivery"]): row for row in TABLES["attempts"].build(events).collect()}
    assert len(rows) == 7
    assert part(rows[1, 1], "waited", "ran", "total", "ending", "owner") == (2.0, 3.0, 5.0, "acked", "w1")
    assert part(rows[2, 1], "waited", "ran", "ending", "error") == (0.0, 1.0, "retried", "no answer")
    assert part(rows[2, 2], "waited", "ran", "ending", "attempt") == (0.0, 1.0, "released", 2)
    assert part(rows[2, 3], "ran", "ending", "attempt", "extensions") == (30.0, "acked", 2, 1)
    assert rows[2, 3]["lease_until"] - rows[2, 3]["claimed_at"] == timedelta(seconds=59)
    assert part(rows[6, 1], "ending", "ended_at", "ran") == (None, None, None)


def test_service_levels(events: DataFrame) -> None:
    build = TABLES["service_levels"].build(events)
    first, second = rows_of(build.filter("queue = 'mail'"), "minute")
    counts = ("accepted", "claimed", "acked", "retried", "released", "died", "cancelled", "redriven")
    assert part(first, *counts) == (5, 6, 2, 1, 1, 2, 1, 0)
    assert part(first, "change", "depth") == (0, 0)
    assert part(second, *counts) == (0, 0, 0, 0, 0, 0, 0, 1)
    assert part(second, "change", "depth") == (1, 1)
    assert first["retry_rate"] == pytest.approx(1 / 5)
    assert first["dead_rate"] == pytest.approx(2 / 5)
    assert part(first, "run_p50", "run_p99") == (1.0, 30.0)
    assert part(first, "late_p50", "late_p99") == (0.0, 2.0)
    assert part(first, "wait_p50", "wait_p99") == (0.0, 10.0)
    assert part(second, "run_p50", "retry_rate") == (None, None)


def test_percentiles_of_any_range_come_from_the_sketches(spark: SparkSession) -> None:
    story = Story()
    for number in range(300):
        life = Life(story, NOON + number * SECOND).accept().claim().after((number + 1) * 1_000)
        life.ack()
    build = TABLES["service_levels"].build(events_of(spark, story))
    whole = build.agg(merged("run_sketch"), F.count("*").alias("minutes"))
    (row,) = whole.select("minutes", F.kll_sketch_get_quantile_bigint("run_sketch", F.lit(0.5)).alias("p50")).collect()
    assert row["minutes"] == 5
    assert row["p50"] == pytest.approx(150_000, rel=0.03)


def test_redeliveries(events: DataFrame) -> None:
    rows = rows_of(TABLES["redeliveries"].build(TABLES["jobs"].build(events)).filter("queue = 'mail'"), "deliveries")
    names = ("deliveries", "jobs", "acked", "dead", "open")
    assert [part(row, *names) for row in rows] == [(0, 1, 0, 0, 0), (1, 3, 1, 1, 1), (3, 1, 1, 0, 0)]


def test_dead_letters_are_grouped_by_what_went_wrong(spark: SparkSession) -> None:
    story = Story()
    for number in range(12):
        Life(story, NOON + number, max_attempts=1).accept().claim().after(SECOND).die(
            "Broken", f"row {number} of 'a{number}'"
        )
    Life(story, NOON, max_attempts=1).accept().claim().after(SECOND).die("Other", "row 1 of 'a'")
    Life(story, NOON).accept().after(SECOND).expire()
    rows = rows_of(TABLES["dead_letters"].build(events_of(spark, story)), "error_kind")
    names = ("error_kind", "message", "deaths", "example")
    assert [part(row, *names) for row in rows] == [
        (None, None, 1, None),
        ("Broken", "row <n> of <text>", 12, "row 0 of 'a0'"),
        ("Other", "row <n> of <text>", 1, "row 1 of 'a'"),
    ]
    assert rows[1]["job_ids"] == list(range(1, 11))
    assert rows[1]["last_at"] - rows[1]["first_at"] == timedelta(microseconds=11)


@pytest.fixture(scope="module")
def normal(spark: SparkSession) -> dict[str, str]:
    texts = [text for pair in ALIKE for text in pair] + [text for pair in DIFFERENT for text in pair]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    return {row["text"]: row["normal"] for row in frame.withColumn("normal", normalised(F.col("text"))).collect()}


ALIKE = [
    ("timeout after 30 s", "timeout after 2.5 s"),
    ("key 'ada' is gone", 'key "bob and co" is gone'),
    ("no row 8d3f1c9e-0000-4a1b-8c2d-1234567890ab here", "no row 00000000-1111-2222-3333-444444444444 here"),
    ("object at 0x7f3a9c", "object at 0x10"),
    ("commit deadbeef01 is missing", "commit 0123456789abcdef is missing"),
    ("connect to 10.0.0.1:5432 refused", "connect to 192.168.7.250:80 refused"),
    ("connect to [::1]:5432 refused", "connect to [fe80::1]:80 refused"),
    ("no such file: /var/tmp/a.txt", "no such file: /srv/data/x-9/b.csv"),
    ("GET https://a.example/x?y=1 failed", "GET http://b.example failed"),
    ("mail to ada@example.com bounced", "mail to b.c+d@mail.example.org bounced"),
    ("two  blanks", "two blanks"),
]
DIFFERENT = [("disk full", "disk failed"), ("feed is bad", "face is bad"), ("a/b test", "c test")]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_differs_from_case_to_case_is_left_out(normal: dict[str, str], one: str, other: str) -> None:
    assert normal[one] == normal[other]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_distinguishes_causes_stays(normal: dict[str, str], one: str, other: str) -> None:
    assert normal[one] != normal[other]


def _served(story: Story, tenant: str, times: Sequence[int], *, waits: int = 0) -> None:
    for at in times:
        Life(story, at).accept(traits=[Trait(tenant=tenant)]).claim(at=at + 1).after(1).ack()
    for _ in range(waits):
        Life(story, times[0] if times else NOON).accept(traits=[Trait(tenant=tenant)])


def test_fairness(spark: SparkSession) -> None:
    story = Story()
    _served(story, "ada", [NOON + each for each in (10, 20, 30)])
    _served(story, "bob", [NOON + 40])
    _served(story, "eve", [], waits=1)
    _served(story, "ada", [NOON + MINUTE + 10, NOON + MINUTE + 20])
    _served(story, "ada", [NOON + 5 * MINUTE])
    Life(story, NOON + 5 * MINUTE).accept().claim().ack()
    rows = rows_of(VIEWS["fairness"].build(events_of(spark, story)), "minute")
    names = ("tenants", "starved", "served", "most")
    assert [part(row, *names) for row in rows] == [(2, 0, 4, 3), (2, 1, 2, 2), (2, 1, 1, 1)]
    assert [row["jain"] for row in rows] == pytest.approx([16 / 20, 1 / 2, 1 / 2])


def test_retry_spread_shows_lost_jitter(spark: SparkSession) -> None:
    story = Story()
    for number in range(40):
        for queue, delay in (("even", SECOND * 5), ("spread", SECOND + number * SECOND // 4)):
            Life(story, NOON, queue=queue).accept().claim().after(number).retry(delay).claim().after(1).retry(0)
    even, spread = rows_of(VIEWS["retry_spread"].build(events_of(spark, story)), "queue")
    assert part(even, "attempt", "retries", "same_delay", "crowds", "burst") == (1, 40, 1.0, 1, 1.0)
    assert part(spread, "attempt", "retries", "crowds") == (1, 40, 1)
    assert part(spread, "same_delay", "burst") == (1 / 40, 4 / 40)
    assert spread["delay_max"] == 1 + 39 / 4
    assert spread["delay_p50"] == pytest.approx(5.875, abs=0.3)
