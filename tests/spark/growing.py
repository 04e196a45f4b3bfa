"""A lake that a history comes into part by part, and the verdict of an incremental audit beside that of a whole one."""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from forebay.spark.audit import AuditOptions, AuditVerdict, audit
from forebay.spark.evidence import read_effects, read_receipts
from forebay.spark.lake import Lake
from forebay.spark.lake_reader import read_events
from forebay.spark.landing import write_files
from forebay.spark.proof import LakeEvidence, audit_lake
from forebay.spark.session import tuned


@dataclass
class Growing:
    """A lake that a history is brought into, part by part, and the evidence that is given so far. `was_small`: our
    last audit did not need Spark."""

    spark: SparkSession
    place: Path
    events: pa.Table
    receipts: pa.Table
    effects: pa.Table
    end: int = 0
    given: set[tuple[str, int]] = field(default_factory=set)
    parts: int = 0
    starts: int = 0
    was_small: bool = False

    def __post_init__(self) -> None:
        self.lake = Lake.of(self.place / "lake", "sqlite:////srv/jobs.db")

    def start(self) -> SparkSession:
        self.starts += 1
        return self.spark

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
        return known(self.events, getattr(self, name), name, self.end)

    def evidence(self) -> LakeEvidence:
        receipts = read_receipts(self.start, [str(self.place / "receipts")], self.lake)
        effects = read_effects(self.start, [str(self.place / "effects")], self.lake)
        return LakeEvidence(receipts, effects, {})

    def audits(self, options: AuditOptions) -> tuple[AuditVerdict, AuditVerdict]:
        """The incremental one, and the whole one, which leaves no proof."""
        evidence = self.evidence()
        before = self.starts
        ours = audit_lake(self.start, self.lake, evidence, options)
        self.was_small = self.starts == before
        events = read_events(self.spark, self.lake)
        with tuned(self.spark, 0):
            whole = audit(events, *(each.rows(self.spark) for each in evidence.tables), options=options)
        return ours, whole


def known(events: pa.Table, rows: pa.Table, name: str, end: int) -> list[int]:
    """Rows of receipts or effects about jobs of which the ledger has what they need below an offset."""
    if name == "receipts":
        seen = {job for job, at in _first(events, None).items() if at < end}
        return [row for row, job in enumerate(rows["job_id"].to_pylist()) if job is None or job in seen]
    settled = _first(events, "settle")
    fences = zip(rows["job_id"].to_pylist(), rows["delivery"].to_pylist(), strict=True)
    return [row for row, fence in enumerate(fences) if settled.get(fence, end) < end]


def _first(events: pa.Table, verb: str | None) -> dict[object, int]:
    """By job, or by fence where a verb is given: the offset of its first event."""
    found: dict[object, int] = {}
    for row in events.select(["verb", "job_id", "delivery", "offset"]).to_pylist():
        if verb is None:
            found.setdefault(row["job_id"], row["offset"])
        elif row["verb"] == verb:
            found.setdefault((row["job_id"], row["delivery"]), row["offset"])
    return found


def findings(verdict: AuditVerdict, *outcomes: str) -> set[tuple[object, ...]]:
    return {
        (each.check, offender.seq, offender.job_id, offender.delivery, offender.offset, offender.place, offender.note)
        for each in verdict.results
        if each.outcome in outcomes
        for offender in each.offenders
    }


def same(ours: AuditVerdict, whole: AuditVerdict, before: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Everything but notes of what was not touched since `before`; the notes of the whole one."""
    assert (ours.answer, ours.reasons, ours.facts) == (whole.answer, whole.reasons, whole.facts)
    assert findings(ours, "failed", "missing") == findings(whole, "failed", "missing")
    notes = findings(whole, "noted")
    assert findings(ours, "noted") <= notes
    assert notes - findings(ours, "noted") <= before
    return notes
