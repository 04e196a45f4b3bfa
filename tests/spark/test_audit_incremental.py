"""An audit that relies on an earlier one says what a whole audit says, wherever the history is cut and whatever comes
late; and it says how far it relies on it."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from forebay.core.ledger import Trait
from forebay.spark.audit import Options, Verdict, audit
from forebay.spark.evidence import read_effects, read_receipts
from forebay.spark.frames import read_events
from forebay.spark.lake import Lake
from forebay.spark.landing import write_files
from forebay.spark.proof import LakeEvidence, audit_lake, interpreted
from tests.answer import Run
from tests.spark.ground import worked
from tests.spark.planted import OPTIONS, Garden, clean
from tests.spark.story import SECOND, START, Life, Story

pytestmark = pytest.mark.timeout(1800)
RUNNING = Options(
    dropped=OPTIONS.dropped, ordered=OPTIONS.ordered, schedules=OPTIONS.schedules, coverage=0.5, min_jobs=1
)
HOUR = 3_600 * SECOND


@dataclass
class Growing:
    """A lake that a history is brought into, part by part, and the evidence that is given so far."""

    spark: SparkSession
    place: Path
    story: Story
    end: int = 0
    given: set[tuple[str, int]] = field(default_factory=set)
    parts: int = 0

    def __post_init__(self) -> None:
        self.lake = Lake.of(self.place / "lake", "sqlite:////srv/jobs.db")
        self.events = self.story.table()
        self.receipts, self.effects = self.story.evidence()

    def bring(self, end: int, *, without: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Events up to an offset."""
        offsets = self.events["offset"]
        part = self.events.filter(pc.and_(pc.greater_equal(offsets, self.end), pc.less(offsets, end)))
        part = part.filter(pc.invert(pc.is_in(part["offset"], value_set=pa.array(sorted(without), pa.int64()))))
        files = write_files(self.lake, "events", part) if len(part) else []
        self.lake.table("events").commit(files, end)
        self.end = end

    def give(self, name: str, rows: list[int]) -> None:
        """Some rows of receipts or effects, as a file more."""
        rows = [row for row in rows if (name, row) not in self.given]
        self.given |= {(name, row) for row in rows}
        place = self.place / name
        place.mkdir(exist_ok=True)
        if rows:
            self.parts += 1
            pq.write_table(getattr(self, name).take(rows), place / f"{self.parts}.parquet")

    def known(self, name: str) -> list[int]:
        """Rows about jobs of which the ledger tells by now what they need."""
        if name == "receipts":
            seen = {job for job, at in self._at(None).items() if at < self.end}
            told = zip(self.receipts["job_id"].to_pylist(), self.receipts["answer"].to_pylist(), strict=True)
            return [row for row, (job, _) in enumerate(told) if job is None or job in seen]
        settled = self._at("settle")
        jobs = zip(self.effects["job_id"].to_pylist(), self.effects["delivery"].to_pylist(), strict=True)
        return [row for row, fence in enumerate(jobs) if settled.get(fence, self.end) < self.end]

    def _at(self, verb: str | None) -> dict[object, int]:
        found: dict[object, int] = {}
        columns = ("verb", "job_id", "delivery", "offset")
        for row in self.events.select(columns).to_pylist():
            if verb is None:
                found.setdefault(row["job_id"], row["offset"])
            elif row["verb"] == verb:
                found.setdefault((row["job_id"], row["delivery"]), row["offset"])
        return found

    def evidence(self) -> LakeEvidence:
        receipts = read_receipts(self.spark, [str(self.place / "receipts")], self.lake)
        effects = read_effects(self.spark, [str(self.place / "effects")], self.lake)
        return LakeEvidence(receipts, effects, {})

    def audits(self, options: Options) -> tuple[Verdict, Verdict]:
        """The incremental one, and the whole one, which leaves no proof."""
        evidence = self.evidence()
        assert evidence.receipts is not None
        assert evidence.effects is not None
        ours = audit_lake(self.spark, self.lake, evidence, options)
        events = read_events(self.spark, self.lake)
        with interpreted(self.spark, True):
            whole = audit(events, evidence.receipts.rows, evidence.effects.rows, options=options)
        return ours, whole


def findings(verdict: Verdict, *outcomes: str) -> set[tuple[object, ...]]:
    return {
        (each.check, who.seq, who.job_id, who.delivery, who.offset, who.place, who.note)
        for each in verdict.results
        if each.outcome in outcomes
        for who in each.offenders
    }


def same(ours: Verdict, whole: Verdict, before: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Everything but notes of what was not touched since `before`; the notes of the whole one."""
    assert (ours.answer, ours.reasons, ours.facts) == (whole.answer, whole.reasons, whole.facts)
    assert findings(ours, "failed", "missing") == findings(whole, "failed", "missing")
    notes = findings(whole, "noted")
    assert findings(ours, "noted") <= notes
    assert notes - findings(ours, "noted") <= before
    return notes


@pytest.mark.nightly  # every day: the lies below, at one cut
@pytest.mark.parametrize("seed", range(1, 11))
def test_wherever_a_history_is_cut_the_answer_is_that_of_a_whole_audit(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    garden = clean(seed, lives=60)
    spread(garden, 40)
    growing = Growing(spark, tmp_path, garden.story)
    last = growing.events["offset"][-1].as_py() + 1
    cuts = [*sorted(rng.sample(range(last // 3, last), 2)), last]
    answers, notes = [], set[tuple[object, ...]]()
    for number, cut in enumerate(cuts):
        growing.bring(cut)
        for name in ("receipts", "effects"):
            rows = growing.known(name)
            # In one part something is late: for jobs that were proven already it comes with the next.
            growing.give(name, rows if number != 1 else [row for row in rows if rng.random() < 0.97])
        ours, whole = growing.audits(RUNNING)
        notes = same(ours, whole, notes)
        answers.append((ours.answer, None if ours.earlier is None else ours.earlier.end))
    assert [answer for answer, _ in answers[::2]] == ["PASS", "PASS"], answers
    assert [end for _, end in answers] == [None, cuts[0], cuts[1 if answers[1][0] == "PASS" else 0]]
    assert notes, "some of it should be worth a note"


def spread(garden: Garden, lives: int) -> None:
    """Lives that take long, so that cuts go through them, with effects by several deliveries and second lives."""
    for number in range(lives):
        life = garden.life(lives=4).accept()
        gap = garden.rng.randrange(1_800) * SECOND
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


def test_lies_about_jobs_that_were_proven_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """Their first part is in the proof, the lie comes later: in events, or in evidence alone."""
    garden = clean(3, lives=10)
    story, later = garden.story, START + 2 * HOUR
    late_receipts, late_effects = tell_lies(garden, later)
    growing = Growing(spark, tmp_path, story)
    times = growing.events["event_at"].cast(pa.int64()).to_pylist()
    cut = min(offset for offset, at in zip(growing.events["offset"].to_pylist(), times, strict=True) if at >= later)
    growing.bring(cut)
    growing.give("receipts", [row for row in growing.known("receipts") if row not in late_receipts])
    growing.give("effects", [row for row in growing.known("effects") if row not in late_effects])
    first, _ = growing.audits(RUNNING)
    assert (first.answer, first.earlier) == ("PASS", None), first.text()
    growing.bring(growing.events["offset"][-1].as_py() + 1)
    for name in ("receipts", "effects"):
        growing.give(name, list(range(len(getattr(growing, name)))))
    ours, whole = growing.audits(RUNNING)
    assert ours.earlier is not None
    assert ours.earlier.end == cut
    same(ours, whole, findings(whole, "noted"))
    named = {(each.check, who.seq, who.job_id) for each in ours.results for who in each.offenders}
    assert garden.found <= named, garden.found - named


def tell_lies(garden: Garden, later: int) -> tuple[set[int], set[int]]:
    """Rows of receipts and of effects that come late."""
    story = garden.story

    def done(**options: object) -> Life:
        return Life(story, START, **options).accept().claim().after(SECOND).ack()  # type: ignore[arg-type]

    def then(life: Life) -> Life:
        life.at = later
        return life

    for life in (done(), done()):
        then(life).ack(effect=False)
        garden.expect(life, "ended_twice")
    again = then(done())
    again.claim()
    garden.expect(again, "resurrected")
    born = then(done())
    born.accept(told=False)
    garden.expect(born, "born_twice")
    stale = Life(story, START).accept().claim().after(1).retry(5).claim()
    then(stale).ack(delivery=1)
    garden.expect(stale, "stale_settle")
    overlap = Life(story, later - SECOND).accept().claim()
    then(overlap).claim().after(1).ack()
    garden.expect(overlap, "lease_overlap")
    waiting, quick = (Life(story, START, queue="lines").accept(traits=[Trait(subject="held")]) for _ in range(2))
    then(quick).claim().after(1).ack()
    garden.expect(quick, "out_of_turn")
    assert waiting.first < quick.first
    slot = Life(story, later, queue="cron").accept(name="tick", tick=START + 60 * SECOND).claim().ack()
    garden.expect(slot, "slot_twice")
    receipts, effects = len(story.receipts), len(story.effects)
    given_again, twice, unfenced, repeated, other = (done() for _ in range(5))
    own = set(range(len(story.effects)))
    seq = story.seq()
    story.told(seq, given_again.first, at=START - SECOND)
    garden.found.add(("lost", seq, given_again.first))
    second = Life(story, later).accept(told=False)
    second.seqs = twice.seqs
    story.told(twice.seqs[0], second.first, at=later)
    second.claim().ack()
    garden.expect(second, "duplicated")
    unfenced.effect(7, later)
    garden.expect(unfenced, "unfenced_effect")
    repeated.effect(1, later)
    garden.expect(repeated, "repeated_effect")
    seq = story.seq()
    story.effect(seq, other.first, 1, later)
    garden.found.add(("unexpected", seq, other.first))
    assert receipts < len(story.receipts)
    assert effects < len(own)
    late = {row for row, (_, _, _, at) in enumerate(story.receipts) if at >= later or at < START}
    return late, set(range(len(story.effects))) - own


def test_what_evidence_says_of_jobs_under_way_is_left_for_the_next_audit(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets 0 … 2 are a job that is done, 3 … 5 one that is accepted, claimed and done while the audit looks."""
    story = Story()
    for hour in range(2):
        Life(story, START + hour * HOUR, n=5).accept().claim().after(SECOND).ack()
    growing = Growing(spark, tmp_path, story)
    growing.bring(6)
    for name in ("receipts", "effects"):
        growing.give(name, growing.known(name))
    evidence = growing.evidence()
    for before, until, jobs, effects in ((None, 3, 5, 5), (3, 4, 10, 5), (4, 6, 10, 10)):
        verdict = audit_lake(spark, growing.lake, evidence, Options(), until=until)
        assert verdict.answer == "PASS", verdict.text()
        facts = {name: verdict.facts[name] for name in ("jobs", "seqs_sent", "effects", "with_a_receipt")}
        assert facts == {"jobs": jobs, "seqs_sent": jobs, "effects": effects, "with_a_receipt": jobs}
        assert (None if verdict.earlier is None else verdict.earlier.end) == before


@pytest.mark.nightly  # every day: gaps in a whole audit, tests/spark/test_audit_files.py
def test_a_gap_right_after_what_was_proven_is_found(spark: SparkSession, tmp_path: Path) -> None:
    story = Story()
    for hour in range(2):
        Life(story, START + hour * HOUR, n=5).accept().claim().after(SECOND).ack()
    growing = Growing(spark, tmp_path, story)
    growing.bring(3)
    for name in ("receipts", "effects"):
        growing.give(name, growing.known(name))
    assert growing.audits(Options())[0].answer == "PASS"
    growing.bring(6, without={3})
    ours, whole = growing.audits(Options())
    assert ours.earlier is not None
    same(ours, whole, set())
    assert [each.offset for each in ours.result("ledger_gap").offenders] == [3]


def test_the_command_relies_on_an_earlier_audit_and_whole_does_not(run: Run, tmp_path: Path) -> None:
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
    assert "it looked at 15 new events" in second.out
    (verdict,) = run(*words, "--json").json
    assert (verdict["answer"], verdict["facts"]["jobs"], verdict["facts"]["effects"]) == ("PASS", 35, 35)
    assert (verdict["earlier"]["end"], verdict["earlier"]["new_events"]) == (6, 0)
    plant(Lake.at("lake"))
    relying = run(*words, "--json")
    assert (relying.code, relying.json[0]["earlier"]["end"]) == (0, 6)
    whole = run(*words, "--whole", "--json")
    assert (whole.code, whole.json[0]["earlier"]) == (1, None)
    (found,) = [each for each in whole.json[0]["results"] if each["outcome"] == "failed"]
    assert (found["check"], found["count"]) == ("early_claim", 30)
    lake = Lake.at("lake").table("events")
    lake.commit([], removed=[file for file in lake.files if file.least["offset"] == 0])
    fewer = run(*words, "--json")
    assert "the earlier proof up to offset 5 is not relied on: the lake has " in fewer.err
    assert (fewer.code, json.loads(fewer.out)["earlier"]) == (1, None)


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
