"""Lies that are cut: a history with every kind of lie comes in two parts, and each job is cut at a random event.

The first part is proven; lies that DuckDB sees in it by itself are taken out before. Then the rest comes, with
evidence that is late. The incremental audit has to give the answer, the reasons, the facts and the offenders of a whole
audit, and DuckDB has to come to the same. With `before`, lies are left in the first part: that leaves no proof, so the
audit of the rest is a whole one, and finds them all. With `small`, they are such as need no Spark.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark.sql import SparkSession

from forebay.spark.audit import CHECKS, AuditOptions, AuditVerdict
from tests.spark.growing import Growing, findings, known, same
from tests.spark.lie_rounds import compared
from tests.spark.lies import KINDS
from tests.spark.oracle import Row, oracle
from tests.spark.planted import OPTIONS, PlantedStory, clean, events_of
from tests.spark.story import Story

Plant = Callable[[PlantedStory], None]
RUNNING = AuditOptions(
    dropped=OPTIONS.dropped, ordered=OPTIONS.ordered, schedules=OPTIONS.schedules, coverage=0.5, min_jobs=1
)
SMALL = replace(RUNNING, ordered={}, schedules={})
"""What an audit of few rows does not need Spark for."""

LIVES = 30


class CutRound(NamedTuple):
    """`kinds`: of lies that are in the second part. `straddling`: their jobs that have events in both."""

    kinds: int
    straddling: int
    faults: list[str]


class _Planted(NamedTuple):
    """What one call of a plant has added to a story."""

    jobs: range
    steps: slice
    receipts: slice
    effects: slice


def cut_faults(spark: SparkSession, place: Path, seed: int, *, before: bool = False, small: bool = False) -> CutRound:
    """One round. `before`: also with lies in the first part. `small`: the second audit has to do without Spark."""
    planted_story = clean(seed, LIVES, redrives=False)
    parts = [
        _Planted(range(1, planted_story.story.next_id), *(slice(0, len(each)) for each in _lists(planted_story.story)))
    ]
    lies = [part for plant in KINDS if (part := _plant(planted_story, plant)) is not None]
    parts += [part for part in lies if not (small and _needs_spark(planted_story, part))]
    options = SMALL if small else RUNNING
    whole = _Cut(planted_story, parts, seed, options)
    faults = list(_lies_before(spark, place / "before", whole)) if before else []
    kept, cut = parts, whole
    while bad := {_owner(kept, row) for row in cut.offenders_before()}:
        assert bad != {None}, cut.offenders_before()
        kept = [part for place, part in enumerate(kept) if place not in bad]
        cut = _Cut(planted_story, kept, seed, options)
    faults += _proven_then_lied(spark, place / "after", cut)
    late = {job for job in cut.straddling() if job >= kept[1].jobs.start}
    return CutRound(len(kept) - 1, len(late), faults)


def _plant(planted_story: PlantedStory, plant: Plant) -> _Planted | None:
    """None: it is about records that were not read, which have no place in a history that is cut."""
    story = planted_story.story
    unread, first, sizes = (
        (len(planted_story.gone), len(planted_story.torn)),
        story.next_id,
        [len(each) for each in _lists(story)],
    )
    schedules = dict(planted_story.schedules)
    plant(planted_story)
    if (len(planted_story.gone), len(planted_story.torn)) != unread or planted_story.schedules != schedules:
        return None
    added = (slice(size, len(each)) for size, each in zip(sizes, _lists(story), strict=True))
    return _Planted(range(first, story.next_id), *added)


def _needs_spark(planted_story: PlantedStory, part: _Planted) -> bool:
    """Whether the lie is about slots of schedules, or about an event that was read twice."""
    fired = any(step.verb == "fire" for step in planted_story.story.steps[part.steps])
    return fired or any(job in part.jobs for job, *_ in planted_story.altered)


def _lists(story: Story) -> tuple[list[Any], list[Any], list[Any]]:
    return story.steps, story.receipts, story.effects


def _owner(parts: list[_Planted], row: Row) -> int | None:
    """The place of the lie that an offender belongs to."""
    return next((place for place, part in enumerate(parts) if place and row[2] in part.jobs), None)


class _Cut:
    """The lies of some plants, each job cut at a random one of its records: `end` is the offset of the cut."""

    def __init__(self, planted_story: PlantedStory, parts: list[_Planted], seed: int, options: AuditOptions) -> None:
        self.options = options
        own = planted_story.story
        story = Story(
            [step for part in parts for step in own.steps[part.steps]],
            [row for part in parts for row in own.receipts[part.receipts]],
            [row for part in parts for row in own.effects[part.effects]],
        )
        jobs = {job for part in parts for job in part.jobs}
        altered = [each for each in planted_story.altered if each[0] in jobs]
        events, _ = events_of(PlantedStory(story, planted_story.rng, altered=altered))
        self.events, self.end = _reordered(events, seed)
        self.receipts, self.effects = story.evidence()

    def growing(self, spark: SparkSession, place: Path) -> Growing:
        place.mkdir()
        return Growing(spark, place, self.events, self.receipts, self.effects)

    def offenders_before(self) -> list[Row]:
        """What DuckDB finds in the first part that is not a note."""
        receipts = self.receipts.take(known(self.events, self.receipts, "receipts", self.end))
        effects = self.effects.take(known(self.events, self.effects, "effects", self.end))
        seen = self.events.filter(pc.less(self.events["offset"], self.end))
        _, rows = oracle(seen, receipts, effects, self.options)
        return [row for row in rows if self.options.weight(CHECKS[row[0]]) != "note"]

    def straddling(self) -> set[int]:
        """Jobs with events in both parts."""
        pairs = zip(self.events["job_id"].to_pylist(), self.events["offset"].to_pylist(), strict=True)
        sides = {(job, offset < self.end) for job, offset in pairs if job is not None}
        return {job for job, early in sides if early and (job, False) in sides}


def _reordered(events: pa.Table, seed: int) -> tuple[pa.Table, int]:
    """Records in another order, in which each job, line and schedule keeps its own; and the offset of the cut."""
    chains: dict[object, list[int]] = {}
    links: dict[object, object] = {}

    def root(key: object) -> object:
        while key in links:
            key = links[key]
        return key

    rows = events.select(["offset", "job_id", "queue", "subject", "tenant", "verb", "name"]).to_pylist()
    for row in rows:
        keys: list[object] = [("record", row["offset"])]
        keys += [("job", row["job_id"])] if row["job_id"] is not None else []
        keys += [("line", row["queue"], row["subject"], row["tenant"])] if row["queue"] in RUNNING.ordered else []
        keys += [("schedule", row["name"])] if row["verb"] == "fire" else []
        roots = {root(key) for key in keys}
        first = min(roots, key=str)
        links.update(dict.fromkeys(roots - {first}, first))
    for offset in sorted({row["offset"] for row in rows}):
        chains.setdefault(root(("record", offset)), []).append(offset)
    place: dict[int, float] = {}
    for name, offsets in chains.items():
        rng = random.Random(f"{seed} {name}")
        early = rng.randint(0, len(offsets))
        draws = sorted(rng.random() + (number >= early) for number in range(len(offsets)))
        place |= dict(zip(offsets, draws, strict=True))
    rank = {offset: number for number, offset in enumerate(sorted(place, key=place.__getitem__))}
    moved = [rank[row["offset"]] for row in rows]
    column = events.column_names.index("offset")
    events = events.set_column(column, events.schema.field(column), pa.array(moved, pa.int64()))
    return events.sort_by([("offset", "ascending"), ("place", "ascending")]), sum(at < 1 for at in place.values())


def _proven_then_lied(spark: SparkSession, place: Path, cut: _Cut) -> Iterator[str]:
    growing = cut.growing(spark, place)
    growing.bring(cut.end)
    for name in ("receipts", "effects"):
        growing.give(name, growing.known(name))
    first, _ = growing.audits(cut.options)
    if (first.answer, first.earlier) != ("PASS", None):
        yield f"the first part is {first.answer}: {first.text()}"
        return
    ours, whole = _the_rest(growing, cut.options)
    if ours.earlier is None or ours.earlier.end != cut.end:
        yield f"the second audit relies on {ours.earlier}, not on the proof up to {cut.end}"
    if growing.was_small != (cut.options == SMALL):
        yield f"the second audit {'did without' if growing.was_small else 'needed'} Spark"
    try:
        same(ours, whole, findings(whole, "noted"))
    except AssertionError as error:
        yield f"the incremental audit differs: {error}"
    yield from _judged_by_duckdb(whole, cut)


def _lies_before(spark: SparkSession, place: Path, cut: _Cut) -> Iterator[str]:
    growing = cut.growing(spark, place)
    growing.bring(cut.end)
    for name in ("receipts", "effects"):
        growing.give(name, growing.known(name))
    first, _ = growing.audits(cut.options)
    if first.answer == "PASS":
        yield "lies in the first part pass"
    ours, whole = _the_rest(growing, cut.options)
    if ours.earlier is not None:
        yield "an audit that did not pass has left a proof"
    if growing.was_small != (cut.options == SMALL):
        yield f"the audit of the rest {'did without' if growing.was_small else 'needed'} Spark"
    if ours != whole:
        yield "the audit of the rest is not a whole one"
    yield from _judged_by_duckdb(whole, cut)


def _the_rest(growing: Growing, options: AuditOptions) -> tuple[AuditVerdict, AuditVerdict]:
    growing.bring(growing.events["offset"][-1].as_py() + 1)
    for name in ("receipts", "effects"):
        growing.give(name, list(range(len(getattr(growing, name)))))
    return growing.audits(options)


def _judged_by_duckdb(verdict: AuditVerdict, cut: _Cut) -> Iterator[str]:
    answer, rows = oracle(cut.events, cut.receipts, cut.effects, cut.options)
    if verdict.answer != answer:
        yield f"the answer is {verdict.answer}, that of DuckDB is {answer}"
    yield from compared(verdict, Counter(rows))
