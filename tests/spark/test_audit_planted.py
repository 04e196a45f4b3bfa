"""Lies planted into clean histories: each named with its seq and its job, none invented; and DuckDB agrees.

A round is one history, one audit and all kinds of lies (`lie_rounds`). One is played for every change, a thousand lies
every night; `make lies` plays as many as you like.
"""

import random

import pytest
from pyspark.sql import SparkSession

from forebay.spark.audit import CHECKS, AuditOptions, AuditVerdict, Tier, audit, suspects
from tests.spark.lie_rounds import PARTITIONS, Round, faults, grown, played, rounds
from tests.spark.lies import KINDS, lawful
from tests.spark.planted import Found, PlantedStory, clean
from tests.spark.story import Story

pytestmark = pytest.mark.timeout(600)
SUSPECTS = 600
"""More than there are in a round, and less than they have rows."""

NOTES = ("recovered", "redelivered", "effect_of_dead", "early_take_back")


@pytest.fixture(scope="module")
def round_of_all(spark: SparkSession) -> Round:
    return played(spark, grown(11, KINDS), 5, 2 * len(KINDS))


def named(verdict: AuditVerdict) -> set[Found]:
    return {(result.check, each.seq, each.job_id) for result in verdict.results for each in result.offenders}


def test_every_kind_of_promise_is_lied_about(round_of_all: Round) -> None:
    names = {kind.__name__ for kind in KINDS}
    assert len(names) == len(KINDS) >= 100
    assert round_of_all.lies >= 200
    assert {row[0] for row in round_of_all.offenders} == CHECKS.keys() - {"log_gap"}


def test_every_anomaly_is_found_and_nothing_else(round_of_all: Round) -> None:
    assert list(faults(round_of_all)) == []
    assert (round_of_all.verdict.answer, round_of_all.verdict.exit_code) == ("FAIL", 1)


def test_suspects_that_are_too_many_for_the_driver_are_judged_by_tasks(
    spark: SparkSession, round_of_all: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "MAX_DRIVER_ROWS", SUSPECTS)
    again = played(spark, grown(11, KINDS), 5, 2 * len(KINDS))
    assert again.verdict == round_of_all.verdict


def test_notes_and_what_gaps_may_have_caused_are_no_failures(round_of_all: Round) -> None:
    outcomes = {result.check: result.outcome for result in round_of_all.verdict.results if result.count}
    assert {outcomes.pop(note) for note in NOTES} == {"noted"}
    failed = {check for check, outcome in outcomes.items() if outcome == "failed"}
    assert failed == {"duplicated", "repeated_effect", "foreign_effect", "born_twice", "slot_twice", "conflict"}
    assert {outcome for check, outcome in outcomes.items() if check not in failed} == {"missing"}, "there are gaps"


@pytest.mark.nightly
def test_a_thousand_lies_in_one_part_or_two_hundred(spark: SparkSession) -> None:
    all_of_them = list(rounds(spark, 1_000, seed=7))
    assert sum(each.lies for each in all_of_them) >= 1_000
    assert {1, 200} <= {each.partitions for each in all_of_them} <= set(PARTITIONS)
    assert [(number, fault) for number, each in enumerate(all_of_them) for fault in faults(each)] == []


@pytest.mark.nightly  # every day: tests/spark/test_audit_stores.py, by a real store
@pytest.mark.parametrize(
    ("plants", "answer"), [((), "PASS"), (("_redelivered", "_taken_back_early"), "PASS"), (("_unsent",), "INVALID")]
)
def test_both_give_the_same_answer_where_no_promise_is_broken(
    spark: SparkSession, plants: tuple[str, ...], answer: str
) -> None:
    planted_story = clean(len(plants), jobs=300, id_step=1_000 * len(plants))
    for plant in (lawful, *(kind for kind in KINDS if kind.__name__ in plants)):
        plant(planted_story)
    each = played(spark, planted_story, 4, len(plants))
    assert list(faults(each)) == []
    assert each.verdict.answer == answer, each.verdict.text()
    asked = {result.check for result in each.verdict.results if result.outcome in {"ok", "noted", "missing"}}
    assert asked == CHECKS.keys() - {"log_gap"}


def test_a_quick_audit_names_what_it_left_out_unless_a_sum_is_not_0(spark: SparkSession) -> None:
    planted_story = PlantedStory(Story(), random.Random(4))
    planted_story.life(n=20).accept().claim().ack()
    _plant(planted_story, "_lease_overlap")
    _plant(planted_story, "_effects_swapped")
    frames = planted_story.story.frames(spark)
    every = [each.id for each in CHECKS.values() if each.tier is Tier.EVERY]
    blind = audit(*frames, options=AuditOptions(drained=True, quick=True))
    assert (blind.answer, blind.skipped) == ("PASS", every)
    assert f"--quick left out {len(every)} checks: unfenced_effect, foreign_effect, " in blind.text()
    assert {each.check for each in blind.results if each.outcome == "not run"} == {
        *every,
        *("out_of_turn", "slot_missing", "log_gap"),
    }
    _plant(planted_story, "_undone")
    suspicious = audit(*planted_story.story.frames(spark), options=AuditOptions(drained=True, quick=True))
    assert (named(suspicious), suspicious.skipped) == (planted_story.found, [])


def _plant(planted_story: PlantedStory, kind: str) -> None:
    next(plant for plant in KINDS if plant.__name__ == kind)(planted_story)
