"""An audit that relies on an earlier one says what a whole audit says, wherever the history is cut and whatever comes
late; and it says how far it relies on it."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from forebay.spark.audit import AuditOptions
from forebay.spark.lake import Lake
from forebay.spark.landing import write_files
from forebay.spark.proof import audit_lake, events_to_read
from tests.command_result import Run
from tests.spark.cut_rounds import RUNNING, SMALL, cut_faults
from tests.spark.growing import Growing, same
from tests.spark.planted import PlantedStory, clean
from tests.spark.sample_stores import worked
from tests.spark.story import SECOND, START, Life, Story

pytestmark = pytest.mark.timeout(1800)
HOUR = 3_600 * SECOND


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1, SMALL),
        *(pytest.param(seed, SMALL, marks=pytest.mark.nightly) for seed in range(2, 11)),
        *(pytest.param(seed, RUNNING, marks=pytest.mark.nightly) for seed in range(1, 11)),
    ],
)
def test_wherever_a_history_is_cut_the_answer_is_that_of_a_whole_audit(
    spark: SparkSession, tmp_path: Path, seed: int, options: AuditOptions
) -> None:
    rng = random.Random(seed)
    planted_story = clean(seed, jobs=60)
    spread(planted_story, 40)
    growing = Growing(spark, tmp_path, planted_story.story.table(), *planted_story.story.evidence())
    last = growing.events["offset"][-1].as_py() + 1
    cuts = [*sorted(rng.sample(range(last // 3, last), 2)), last]
    answers, notes = [], set[tuple[object, ...]]()
    for number, cut in enumerate(cuts):
        growing.bring(cut)
        for name in ("receipts", "effects"):
            rows = growing.known(name)
            # In one part something is late: for jobs that were proven already it comes with the next.
            growing.give(name, rows if number != 1 else [row for row in rows if rng.random() < 0.97])
        ours, whole = growing.audits(options)
        notes = same(ours, whole, notes)
        assert growing.was_small == (options == SMALL)
        answers.append((ours.answer, None if ours.earlier is None else ours.earlier.end))
    assert [answer for answer, _ in answers[::2]] == ["PASS", "PASS"], answers
    assert [end for _, end in answers] == [None, cuts[0], cuts[1 if answers[1][0] == "PASS" else 0]]
    assert notes, "some of it should be worth a note"


def spread(planted_story: PlantedStory, jobs: int) -> None:
    """Jobs that take long, so that cuts go through them, with effects by several deliveries and redrives."""
    for number in range(jobs):
        life = planted_story.life(max_attempts=4).accept()
        gap = planted_story.rng.randrange(1_800) * SECOND
        match number % 5:
            case 0:
                life.claim().effect(1).after(1).retry(gap).claim().after(SECOND).ack()
            case 1:
                life.claim().after(1).die("Drop").after(gap).redrive().claim().after(SECOND).ack()
            case 2:
                life.after(gap).claim().after(SECOND).ack().after(gap).purge()
            case 3:
                life.claim().effect(1).after(1).die("Drop").after(gap).purge()
            case _:
                life.after(gap)


@pytest.mark.parametrize("small", [False, True], ids=["spark", "small"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))])
def test_lies_of_every_kind_are_found_wherever_they_are_cut(
    spark: SparkSession, tmp_path: Path, seed: int, small: bool
) -> None:
    played = cut_faults(spark, tmp_path, seed, before=seed > 1 or small, small=small)
    assert played.faults == []
    assert played.kinds > 40, "too few lies are planted after the cut: the round shows little"
    assert played.straddling > 20


def test_evidence_of_running_jobs_is_left_for_the_next_audit(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets 0 … 2 are a job that is done, 3 … 5 one that is accepted, claimed and done while the audit reads."""
    story = Story()
    for hour in range(2):
        Life(story, START + hour * HOUR, n=5).accept().claim().after(SECOND).ack()
    growing = Growing(spark, tmp_path, story.table(), *story.evidence())
    growing.bring(6)
    for name in ("receipts", "effects"):
        growing.give(name, growing.known(name))
    evidence = growing.evidence()
    for before, until, jobs, effects in ((None, 3, 5, 5), (3, 4, 10, 5), (4, 6, 10, 10)):
        verdict = audit_lake(growing.start, growing.lake, evidence, AuditOptions(), until=until)
        assert verdict.answer == "PASS", verdict.text()
        facts = {name: verdict.facts[name] for name in ("jobs", "seqs_sent", "effects", "with_a_receipt")}
        assert facts == {"jobs": jobs, "seqs_sent": jobs, "effects": effects, "with_a_receipt": jobs}
        assert (None if verdict.earlier is None else verdict.earlier.end) == before


@pytest.mark.nightly  # every day: gaps in a whole audit, tests/spark/test_audit_files.py
def test_a_gap_right_after_what_was_proven_is_found(spark: SparkSession, tmp_path: Path) -> None:
    story = Story()
    for hour in range(2):
        Life(story, START + hour * HOUR, n=5).accept().claim().after(SECOND).ack()
    growing = Growing(spark, tmp_path, story.table(), *story.evidence())
    growing.bring(3)
    for name in ("receipts", "effects"):
        growing.give(name, growing.known(name))
    assert growing.audits(AuditOptions())[0].answer == "PASS"
    growing.bring(6, without={3})
    ours, whole = growing.audits(AuditOptions())
    assert ours.earlier is not None
    same(ours, whole, set())
    assert [each.offset for each in ours.result("ledger_gap").offenders] == [3]


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("Spark was started")


def test_the_command_relies_on_an_earlier_audit_and_whole_does_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command. What was changed in the proven part afterwards is for --whole to find."""
    url = f"sqlite:///{tmp_path}/forebay.db"
    words = ("audit", "--lake", "lake", "--receipts", "receipts.ndjson", "--effects", "effects.ndjson", "--drained")
    worked(url, tmp_path, 30)
    first = run(*words, "--store", url)
    assert (first.code, "were proven by the audit of" in first.out) == (0, False)
    worked(url, tmp_path, 5, first=30)
    second = run(*words, "--store", url)
    assert second.code == 0, second.out
    assert "offsets 0 … 2 were proven by the audit of 20" in second.out
    assert "it checked 15 new events" in second.out
    with monkeypatch.context() as without:
        without.setattr("forebay.cli.spark_commands.spark_of", _refused)
        (first_again,) = run(*words, "--whole", "--json").json
        (verdict,) = run(*words, "--json").json
        with pytest.raises(AssertionError, match="Spark was started"):
            run(*words, "--master", "local[1]")
    assert (first_again["answer"], first_again["earlier"], first_again["facts"]) == ("PASS", None, verdict["facts"])
    assert (verdict["answer"], verdict["facts"]["jobs"], verdict["facts"]["effects"]) == ("PASS", 35, 35)
    assert (verdict["earlier"]["end"], verdict["earlier"]["new_events"]) == (6, 0)
    tables, asked = ["receipts", "effects"], AuditOptions(drained=True)
    assert [events_to_read(Lake.at("lake"), tables, asked, whole=whole) for whole in (False, True)] == [0, 105]
    plant(Lake.at("lake"))
    relying = run(*words, "--json")
    assert (relying.code, relying.json[0]["earlier"]["end"]) == (0, 6)
    whole = run(*words, "--whole", "--json")
    assert (whole.code, whole.json[0]["earlier"]) == (1, None)
    (found,) = [each for each in whole.json[0]["results"] if each["outcome"] == "failed"]
    assert (found["check"], found["count"]) == ("early_claim", 30)
    lake = Lake.at("lake").table("events")
    lake.commit([], removed=[file for file in lake.files if file.min_values["offset"] == 0])
    fewer = run(*words, "--json")
    assert "the earlier proof up to offset 5 is not used: the lake has " in fewer.err
    assert (fewer.code, json.loads(fewer.out)["earlier"]) == (2, None)


def plant(lake: Lake) -> None:
    """The claims of the first record of claims are said to be a second before they were due."""
    table = lake.table("events")
    changed = []
    for file in table.files:
        rows = pq.ParquetFile(f"{lake.uri}/events/{file.path}").read()
        at = rows["event_at"]
        first = pc.and_(pc.equal(rows["change"], "claimed"), pc.equal(rows["offset"], 1))
        if not pc.any(first).as_py():
            continue
        early = pc.subtract(at, pa.scalar(3_600 * 10**6, pa.duration("us")))
        rows = rows.set_column(rows.column_names.index("event_at"), "event_at", pc.if_else(first, early, at))
        days = pa.array([file.partition["day"]] * len(rows)).cast(pa.date32())
        changed += write_files(lake, "events", rows.append_column("day", days))
        table.commit(changed, removed=[file])
    assert len(changed) == 1
