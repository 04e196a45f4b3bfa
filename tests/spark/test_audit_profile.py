"""Suspects: all jobs but those whose history can break no promise, wherever the ledger begins to count."""

import random
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.audit import AuditOptions, audit
from forebay.spark.audit.profile import JobProfile, profile, suspects
from tests.spark.planted import KINDS, PlantedStory
from tests.spark.story import SECOND, START, Life, Story

Plant = Callable[[PlantedStory], None]
NO_JOB = {"_ledger_gap", "_conflict", "_slot_twice", "_out_of_turn", "_given_again"}
"""They are about records, slots and lines, or about seqs of a job with two receipts."""


def profiled(story: Story, spark: SparkSession, *, drained: bool = True) -> tuple[JobProfile, set[int]]:
    seen, noted = profile(*story.frames(spark), drained=drained)
    ids = {row.job_id for row in suspects(noted).collect()}
    noted.unpersist()
    return seen, ids


def test_plain_jobs_are_no_suspects_and_all_others_are(spark: SparkSession) -> None:
    story = Story()
    for at in range(3):
        Life(story, START + at, n=30).accept().claim().after(SECOND).ack()
    odd = [
        Life(story, START).accept().claim().after(1).retry().claim().ack(),
        Life(story, START).accept().after(1).cancel(),
        Life(story, START).accept().claim(),
        Life(story, START).accept(),
        Life(story, START).accept().claim().after(SECOND).extend().ack(),
        Life(story, START).accept(receipt=False).claim().effect(1).ack(),
    ]
    odd[-1].seqs = [story.seq()]
    odd[-1].effect(1)
    seen, ids = profiled(story, spark)
    assert ids == {life.first for life in odd}
    assert (seen.jobs, seen.ended, seen.enqueued, seen.receipted, seen.suspects) == (96, 94, 96, 95, 6)
    open_ = {odd[2].first, odd[3].first}
    assert profiled(story, spark, drained=False)[1] == ids - open_


def test_every_planted_kind_makes_a_suspect_of_its_job(spark: SparkSession) -> None:
    planted_story = PlantedStory(Story(), random.Random(3))
    for plant in KINDS:
        if plant.__name__ not in NO_JOB:
            plant(planted_story)
    _, ids = profiled(planted_story.story, spark)
    # A seq that became two jobs shows by its seq, not by the second job, which is plain.
    expected = {job for check, _, job in planted_story.found if check != "duplicated"}
    assert expected - ids == set()


@pytest.mark.parametrize("shift", [0, 2**41])
def test_offsets_that_fit_no_position_change_nothing(spark: SparkSession, shift: int) -> None:
    story = Story()
    Life(story, START, n=30).accept().claim().after(SECOND).ack()
    swapped = Life(story, START).accept().after(1)
    swapped.ack(effect=False, delivery=1, attempt=1).after(1).claim().effect(1)
    events, receipts, effects = story.frames(spark)
    verdict = audit(moved(events, shift), receipts, effects, options=AuditOptions(from_offset=shift))
    found = {result.check: [each.job_id for each in result.offenders] for result in verdict.results if result.count}
    assert found == {check: [swapped.first] for check in ("stale_settle", "resurrected", "delivery_step")}


def moved(events: DataFrame, shift: int) -> DataFrame:
    return events.withColumn("offset", F.col("offset") + F.lit(shift))
