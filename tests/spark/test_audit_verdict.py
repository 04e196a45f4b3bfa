"""The verdict on small histories: what is too little, what an option makes of a finding, what people read."""

import re
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.errors import Invalid
from forebay.spark.audit import CHECKS, AuditOptions, AuditVerdict, Tier, audit
from forebay.spark.audit.bitsets import job_sums
from forebay.spark.audit.survey import conflicts, distinct_events, gaps, survey, with_sizes
from tests.spark.planted import DROPPED, KINDS, clean
from tests.spark.story import SECOND, START, Life, Story

MINUTE = 60 * SECOND


def judged(spark: SparkSession, story: Story, options: AuditOptions | None = None) -> AuditVerdict:
    return audit(*story.frames(spark), options=options)


@pytest.fixture(scope="module")
def good() -> Story:
    story = Story()
    Life(story, START, n=5).accept().claim().after(SECOND).ack()
    return story


@pytest.fixture(scope="module")
def frames(spark: SparkSession, good: Story) -> tuple[DataFrame, DataFrame, DataFrame]:
    return good.frames(spark)


def test_a_small_clean_history_passes(spark: SparkSession, good: Story) -> None:
    verdict = judged(spark, good)
    assert (verdict.answer, verdict.exit_code, verdict.reasons) == ("PASS", 0, [])
    assert verdict.facts["jobs"] == 5
    assert verdict.result("lost").outcome == "ok"
    assert verdict.result("early_claim").outcome == "ok"
    assert verdict.skipped == []
    assert verdict.result("unfinished").outcome == "not run"
    assert verdict.text().endswith("\nPASS")
    assert msgspec.json.decode(verdict.json())["answer"] == "PASS"


Frames = tuple[DataFrame, DataFrame, DataFrame]


def test_times_are_in_utc_wherever_the_audit_runs(good: Story, frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        verdict = audit(*frames)
    time.tzset()
    times = pc.min_max(good.table()["event_at"]).as_py()
    assert (verdict.facts["from"], verdict.facts["to"]) == (str(times["min"]), str(times["max"]))


def test_without_receipts_nothing_is_proven(frames: Frames) -> None:
    events, _, _ = frames
    verdict = audit(events)
    assert (verdict.answer, verdict.exit_code) == ("INVALID", 2)
    assert verdict.result("lost").outcome == "no evidence"
    assert verdict.result("repeated_effect").outcome == "no evidence"
    (reason,) = verdict.reasons
    assert "no receipts" in reason
    assert f"INVALID because {reason}" in verdict.text()


def test_no_events_and_no_receipts_are_named(frames: Frames) -> None:
    events, receipts, effects = frames
    verdict = audit(events.limit(0), receipts.limit(0), effects.limit(0))
    assert verdict.answer == "INVALID"
    assert [reason.split(":")[0] for reason in verdict.reasons] == [
        "there are no events",
        "0 jobs were accepted, at least 1 are required",
        "the receipts are empty",
    ]


def test_too_little_coverage_is_named(frames: Frames) -> None:
    events, receipts, effects = frames
    part = receipts.filter("seq < 3"), effects.filter("seq < 3").withColumn("effect_at", F.lit(None).cast("timestamp"))
    verdict = audit(events, *part, options=AuditOptions(min_jobs=6))
    assert verdict.answer == "INVALID"
    assert verdict.reasons == [
        "5 jobs were accepted, at least 6 are required",
        "3 of 5 enqueued jobs have a receipt, less than 90%",
        "effects have no effect_at: a repeated effect cannot be distinguished from a repeated line",
    ]
    assert audit(events, part[0], options=AuditOptions(coverage=0.5)).answer == "PASS"


@pytest.mark.nightly
def test_a_ledger_that_begins_late_or_was_off_proves_nothing_of_before(spark: SparkSession) -> None:
    story = Story()
    Life(story, START).accept().claim().after(SECOND).ack()
    Life(story, START + MINUTE).accept().claim().after(SECOND).ack()
    story.record(START + 2 * MINUTE, "put_ledger_rule", "off")
    events, receipts, effects = story.frames(spark)
    late = audit(events.filter("offset >= 2"), receipts, effects, options=AuditOptions(drained=True))
    assert late.answer == "INVALID"
    assert [each.seq for each in late.result("lost").offenders] == [0]
    assert (
        late.reasons[-1]
        == "records of the ledger are missing, which may be the cause of lost (1), unexpected (1), unborn (1)"
    )
    known = audit(events.filter("offset >= 2"), receipts, effects, options=AuditOptions(drained=True, from_offset=2))
    assert (known.answer, known.result("unborn").outcome) == ("INVALID", "not run")
    assert known.reasons[0].startswith("the ledger was switched off 1 times")
    assert all(result.count == 0 for result in known.results)


@pytest.mark.nightly
def test_options_turn_notes_into_failures(spark: SparkSession) -> None:
    story = Story()
    Life(story, START).accept().claim().effect(1).after(1).retry().claim().ack()
    for error in ("GaveUp", "Strange"):
        Life(story, START).accept().claim().after(1).die(error)
    frames = story.frames(spark)
    lenient = audit(*frames, options=None)
    assert lenient.answer == "PASS"
    assert {(r.check, r.count) for r in lenient.results if r.outcome == "noted"} == {
        *(("redelivered", 1), ("died_early", 2))
    }
    assert lenient.result("redelivered").offenders[0].note == "effects by deliveries 1, 2"
    strict = audit(*frames, options=AuditOptions(exactly_once=True, dropped=frozenset({"GaveUp"})))
    assert {r.check for r in strict.results if r.outcome == "failed"} == {"redelivered", "died_early"}
    assert [each.job_id for each in strict.result("died_early").offenders] == [3]


def test_every_check_runs_by_default(spark: SparkSession) -> None:
    """In one audit: that each kind makes a suspect of its own job, `test_audit_profile.py` shows."""
    planted = {
        "_unfenced": "unfenced_effect",
        "_swapped": "resurrected",
        "_attempt_beyond": "too_many_attempts",
        "_lease_overlap": "lease_overlap",
    }
    planted_story = clean(seed=5, jobs=2, redrives=False)
    for plant in (each for each in KINDS if each.__name__ in planted):
        plant(planted_story)
    verdict = audit(*planted_story.story.frames(spark))
    assert verdict.answer == "FAIL"
    assert {check: verdict.result(check).outcome for check in planted.values()} == dict.fromkeys(
        planted.values(), "failed"
    )


def test_allowed_oddities_are_notes_and_pass(spark: SparkSession) -> None:
    planted_story = clean(seed=5, jobs=2, redrives=False)
    for plant in (each for each in KINDS if each.__name__ in {"_effect_of_dead", "_taken_back_early"}):
        plant(planted_story)
    verdict = audit(*planted_story.story.frames(spark), options=AuditOptions(dropped=frozenset({DROPPED})))
    noted = {(r.check, r.offenders[0].seq, r.offenders[0].job_id) for r in verdict.results if r.outcome == "noted"}
    assert (verdict.answer, noted) == ("PASS", planted_story.found)


def test_effects_without_a_receipt_are_missing_evidence(spark: SparkSession) -> None:
    """Not a store that made up jobs: the file of one of four producers was not given."""
    story = Story()
    Life(story, START, n=40).accept().claim().after(SECOND).ack()
    events, receipts, effects = story.frames(spark)
    verdict = audit(events, receipts.filter("seq % 4 <> 3"), effects, options=AuditOptions(coverage=0.5))
    assert (verdict.answer, verdict.exit_code, verdict.result("unexpected").count) == ("INVALID", 2, 0)
    (reason,) = verdict.reasons
    assert reason.startswith("10 effects (seqs 3 … 39) have no receipt, and the ledger accepted their jobs")
    assert [each.seq for each in verdict.result("unreceipted").offenders] == list(range(3, 40, 4))


def test_slots_left_out_and_schedules_that_never_fired(spark: SparkSession) -> None:
    story = Story()
    for minute in (0, 1, 3):
        tick = START + minute * MINUTE
        Life(story, tick).accept(name="tick", tick=tick).claim().ack()
    events, _, _ = story.frames(spark)
    every = timedelta(minutes=1)
    verdict = audit(events, options=AuditOptions(schedules={"tick": every, "never": every}))
    notes = [each.note for each in verdict.result("slot_missing").offenders]
    assert sorted(notes, key=str) == [
        "never: it never fired",
        "tick: between 2030-03-17 17:47:40 and 2030-03-17 17:49:40",
    ]


def test_gaps_of_a_log_are_found(spark: SparkSession, frames: Frames) -> None:
    rows = [(part, offset) for part, offsets in ((0, [3, 4, 7, 7, 8]), (1, [0, 1])) for offset in offsets]
    log = spark.createDataFrame(rows, "partition int, offset long")
    verdict = audit(*frames, logs={"audit": log})
    (gap,) = verdict.result("log_gap").offenders
    assert (gap.offset, gap.note) == (5, "log audit, partition 0: entries are missing from here on")
    assert verdict.answer == "FAIL"


@pytest.mark.parametrize("cut", [False, True])
def test_missing_records_are_not_a_broken_promise_of_the_store(spark: SparkSession, cut: bool) -> None:
    """Between others or at the end. What they cannot have caused is a failure still."""
    story = Story()
    for minute in range(3):
        Life(story, START + minute * MINUTE).accept().claim().after(SECOND).ack()
    events, receipts, effects = story.frames(spark)
    left = events.filter("offset < 6" if cut else "offset NOT IN (3, 4)")
    verdict = audit(left, receipts, effects, options=AuditOptions(coverage=0.5), cut=cut)
    assert (verdict.answer, verdict.exit_code) == ("INVALID", 2)
    assert verdict.result("lost").outcome == "missing"
    assert [each.seq for each in verdict.result("lost").offenders] == [2 if cut else 1]
    follow = "lost (1), unexpected (1)" if cut else "lost (1), unexpected (1), unborn (1)"
    why = f"records of the ledger are missing, which may be the cause of {follow}"
    gap = "the ledger is not whole in 1 places, the first of them at offset 3"
    assert verdict.reasons == ([why] if cut else [gap, why])
    again = effects.withColumn("effect_at", F.expr("effect_at + INTERVAL 1 SECOND")).filter("seq = 0")
    worse = audit(left, receipts, effects.unionAll(again), options=AuditOptions(coverage=0.5), cut=cut)
    outcomes = {each.check: each.outcome for each in worse.results if each.count}
    assert worse.answer == "FAIL"
    assert (outcomes["repeated_effect"], outcomes["lost"]) == ("failed", "missing")


def test_a_torn_record_is_a_gap(frames: Frames) -> None:
    torn = frames[0].filter("NOT (change = 'claimed' AND place = 1)")
    extent = survey(torn)
    (gap,) = gaps(torn, extent).collect()
    assert (extent.ragged, gap.check, gap.offset, gap.note) == (1, "ledger_gap", 1, "4 jobs of 5")


def test_a_record_that_lost_its_last_places_is_a_gap_if_records_have_sizes(frames: Frames) -> None:
    events, receipts, effects = frames
    short = events.filter("NOT (change = 'claimed' AND place >= 3)")
    (gap,) = audit(short, receipts, effects).result("ledger_gap").offenders
    assert (gap.offset, gap.note) == (1, "3 jobs of 5")
    before = with_sizes(short.drop("places"))
    assert survey(before).ragged == 0, "events of records without it are read unchanged"
    both = before.unionByName(short)
    assert distinct_events(both).filter("place = 0").count() == survey(both).records
    assert conflicts(both).isEmpty(), "a copy without the size is a copy"


def test_the_text_names_offenders(spark: SparkSession) -> None:
    story = Story()
    Life(story, START, n=7).accept().claim().after(SECOND).ack(effect=False)
    text = judged(spark, story).text()
    assert "undone              I1    FAIL          7  the job was acked, and there is no effect" in text
    assert "  seq 0 job 1: acked, and there is no effect\n" in text
    assert "  … and 2 more" in text
    assert text.endswith("\nFAIL")


def test_words_hold_ids_at_their_edges(spark: SparkSession) -> None:
    """Bit 63 is the sign of a word; ids may be as large as a store can count."""
    story = Story()
    for first in (1, 63, 64, 127, 128, 2**62):
        story.next_id = first
        Life(story, START).accept().claim().after(SECOND).ack()
    sums = job_sums(*story.frames(spark))
    suspicions = {name: getattr(sums, name) for name in sums.__struct_fields__[5:]}
    assert (sums.jobs, sums.ended, sums.acked, sums.receipted) == (6, 6, 6, 6)
    assert not any(suspicions.values()), suspicions


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"from_offset": -1}, "from_offset: -1 is not an offset"),
        ({"coverage": 1.5}, "coverage: 1.5 is not a fraction"),
        ({"ordered": {"q": "color"}}, "ordered: queue 'q' by 'color'"),
        ({"schedules": {"s": timedelta(0)}}, "schedules: 's' every 0:00:00"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(Invalid) as refused:
        AuditOptions(**options)  # type: ignore[arg-type]
    assert str(refused.value).startswith(complaint)


def test_the_page_defines_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "audit.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.) \| (I\d+) \| (\*note:|\*INVALID:)?", page, re.MULTILINE)
    weights = {"failure": "", "note": "*note:", "doubt": "*INVALID:"}
    marks = {Tier.PROOF: "●", Tier.EVERY: "○"}
    assert rows == [(check.id, marks[check.tier], check.invariant, weights[check.weight]) for check in CHECKS.values()]
