"""At rest, what a server exposes to Prometheus equals what the audit's tables count on the same ledger (I15)."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from forebay.core.ledger import Change
from forebay.serve.metrics.tally import EventTally, LabelNames
from forebay.spark.arrow import flatten
from forebay.spark.schemas import EVENTS
from forebay.spark.tables.attempts import attempts
from forebay.spark.tables.jobs import jobs
from forebay.spark.tables.service_levels import service_levels
from forebay.store.open import open_store
from forebay.testing.clock import ManualClock
from tests.serve.job_histories import live
from tests.serve.test_metrics_tally import followed, read

LEVELS = (
    *(Change.ACCEPTED, Change.CLAIMED, Change.ACKED, Change.RETRIED, Change.RELEASED, Change.DIED, Change.EXPIRED),
    *(Change.DISCARDED, Change.CANCELLED, Change.REDRIVEN),
)
ENDS = ("acked", "died", "expired", "shed", "discarded", "cancelled")


@pytest.mark.parametrize("scheme", ["sqlite", "postgres"])
def test_counters_equal_the_tables(
    scheme: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if scheme == "sqlite" else request.getfixturevalue("postgres_url")
    clock = ManualClock()
    store = open_store(url, clock=clock)
    for _ in range(3):
        live(store, clock)
    tally = EventTally(LabelNames())
    followed(store, tally)
    events = spark.createDataFrame(pa.Table.from_batches([flatten(read(store), EVENTS)]))
    store.close()

    counted: Counter[tuple[str, str]] = Counter()
    for (queue, _), row in tally.counts().items():
        for change in LEVELS:
            counted[queue, change] += row[change]
        # The table is older than this change, and has both in one column.
        counted[queue, Change.EXPIRED] += row[Change.SHED]
    levels = service_levels(events).groupBy("queue").sum(*LEVELS).collect()
    assert {(row["queue"], change): row[f"sum({change})"] for row in levels for change in LEVELS} == counted

    rows = attempts(events).collect()
    by_kind = Counter((row["queue"], row["kind"], row["ending"]) for row in rows)
    counts = tally.counts()
    for change in (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED):
        expected = {pair: row[change] for pair, row in counts.items() if row[change]}
        assert {(queue, kind): n for (queue, kind, ending), n in by_kind.items() if ending == change} == expected, (
            change
        )

    for measure, column in (("wait", "waited"), ("run", "ran")):
        lengths = [row[column] for row in rows if row[column] is not None]
        seen = [each for _, each in tally.durations()[measure]]
        assert sum(each.count for each in seen) == len(lengths)
        assert sum(each.micros for each in seen) == sum(round(length * 1e6) for length in lengths)

    outcomes = Counter(row["outcome"] for row in jobs(events).collect())
    sums: dict[str, int] = {change: sum(row[change] for row in counts.values()) for change in (*LEVELS, Change.SHED)}
    assert outcomes["shed"] == sums[Change.SHED] > 0
    assert all(outcomes[change] == sums[change] for change in ENDS if change not in ("died", "expired"))
    assert sum(outcomes.values()) == sums[Change.ACCEPTED]
    assert sum(outcomes[change] for change in ENDS) == sum(sums[change] for change in ENDS) - sums[Change.REDRIVEN]
    assert sums[Change.ACCEPTED] == sum(outcomes[change] for change in ENDS) + outcomes["open"]
