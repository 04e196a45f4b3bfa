"""Anomalies planted into clean histories: all found with the right seq and job, nothing else; and DuckDB agrees."""

import random
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from forebay.spark.audit import CHECKS, Options, Tier, Verdict, audit
from tests.spark.oracle import oracle
from tests.spark.planted import KINDS, OPTIONS, Found, Garden, clean, events_of, planted
from tests.spark.story import Story

pytestmark = pytest.mark.timeout(300)
EACH = 6
NOTES = ("recovered", "redelivered", "effect_of_dead", "early_take_back")
Frames = tuple[DataFrame, DataFrame, DataFrame]


@pytest.fixture(scope="module")
def garden() -> Garden:
    return planted(seed=11, lives=150, each=EACH)


@pytest.fixture(scope="module")
def frames(spark: SparkSession, garden: Garden) -> Iterator[Frames]:
    _, receipts, effects = garden.story.frames(spark)
    read, _ = events_of(garden)
    events = spark.createDataFrame(read).cache()
    yield events, receipts, effects
    events.unpersist()


@pytest.fixture(scope="module")
def verdict(frames: Frames) -> Verdict:
    return audit(*frames, options=OPTIONS)


def named(verdict: Verdict) -> set[Found]:
    return {(result.check, each.seq, each.job_id) for result in verdict.results for each in result.offenders}


def test_there_is_something_to_find(garden: Garden, frames: Frames) -> None:
    assert len(KINDS) * EACH >= 200
    assert len({row[0] for row in garden.found}) >= 9
    assert frames[0].count() > 2_000


def test_every_anomaly_is_found_and_nothing_else(garden: Garden, verdict: Verdict) -> None:
    _, gaps = events_of(garden)
    found = named(verdict)
    assert {row for row in found if row[0] != "ledger_gap"} == garden.found
    assert {each.offset for each in verdict.result("ledger_gap").offenders} == gaps
    assert verdict.answer == "FAIL"
    assert verdict.exit_code == 1


def test_each_anomaly_is_counted_once(garden: Garden, verdict: Verdict) -> None:
    expected = Counter(row[0] for row in garden.found)
    counts = {result.check: result.count for result in verdict.results if result.count}
    assert counts == expected | {"ledger_gap": len(events_of(garden)[1])}


def test_notes_are_no_failures(verdict: Verdict) -> None:
    outcomes = {result.check: result.outcome for result in verdict.results if result.count}
    assert {outcomes.pop(note) for note in NOTES} == {"noted"}
    assert outcomes.pop("unreceipted") == "missing"
    assert set(outcomes.values()) == {"failed"}


def test_the_sql_twin_agrees_to_the_row(frames: Frames, verdict: Verdict) -> None:
    """Seqs of checks that only know jobs are added for the reader; the twin has none there."""
    events, receipts, effects = (pa.table(frame.toArrow()) for frame in frames)
    theirs = oracle(events, receipts, effects, OPTIONS)
    by_seq = {row[0] for row in theirs if row[1] is not None}
    ours = {
        (each.check, who.seq if each.check in by_seq else None, who.job_id, who.delivery, who.offset, who.place)
        for each in verdict.results
        for who in each.offenders
    }
    assert ours == theirs
    assert len(theirs) == sum(result.count for result in verdict.results) >= 200


@pytest.mark.nightly
def test_the_answer_does_not_depend_on_how_it_is_read(frames: Frames, verdict: Verdict) -> None:
    events, receipts, effects = frames
    shuffled = (
        events.unionAll(events.filter("offset % 3 = 0"))
        .repartition(5, "attempt", "place")
        .sortWithinPartitions("event_at", ascending=False)
    )
    again = audit(
        shuffled, receipts.unionAll(receipts).repartition(3), effects.unionAll(effects).coalesce(1), options=OPTIONS
    )
    facts = {"seqs_sent", "effects"}
    assert again.results == verdict.results
    assert again.answer == verdict.answer
    assert {k: v for k, v in again.facts.items() if k not in facts} == {
        k: v for k, v in verdict.facts.items() if k not in facts
    }


@pytest.mark.nightly  # every day: tests/spark/test_audit_stores.py, by a real store
@pytest.mark.parametrize(("seed", "id_step"), [(1, 0), (2, 1_000)])
def test_no_false_alarm_on_a_clean_history(spark: SparkSession, seed: int, id_step: int) -> None:
    garden = clean(seed, lives=300, id_step=id_step)
    frames = garden.story.frames(spark)
    verdict = audit(*frames, options=OPTIONS)
    assert verdict.answer == "PASS", verdict.text()
    assert all(result.count == 0 for result in verdict.results)
    asked = {result.check for result in verdict.results if result.outcome == "ok"}
    assert asked == CHECKS.keys() - {"log_gap"}
    events, receipts, effects = (pa.table(frame.toArrow()) for frame in frames)
    assert oracle(events, receipts, effects, OPTIONS) == set()


def test_a_quick_audit_says_what_it_left_out_and_asks_when_a_sum_is_odd(spark: SparkSession) -> None:
    garden = Garden(Story(), random.Random(4))
    garden.life(n=20).accept().claim().ack()
    _plant(garden, "_lease_overlap")
    frames = garden.story.frames(spark)
    every = [each.id for each in CHECKS.values() if each.tier is Tier.EVERY]
    blind = audit(*frames, options=Options(drained=True, quick=True))
    assert (blind.answer, blind.skipped) == ("PASS", every)
    assert f"--quick left out {len(every)} checks: unfenced_effect, resurrected, " in blind.text()
    assert {each.check for each in blind.results if each.outcome == "not asked"} == {
        *every,
        *("out_of_turn", "slot_missing", "log_gap"),
    }
    _plant(garden, "_undone")
    suspicious = audit(*garden.story.frames(spark), options=Options(drained=True, quick=True))
    assert (named(suspicious), suspicious.skipped) == (garden.found, [])


def _plant(garden: Garden, kind: str) -> None:
    next(plant for plant in KINDS if plant.__name__ == kind)(garden)
