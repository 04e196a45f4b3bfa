"""Incremental audits: how far a lake is proven, and which rows the next audit reads. An hourly audit costs the hour.

An audit that passes records in the lake's table `proof` the offset up to which everything is proven, the digests of its
evidence, its totals, the last slot of each schedule, and all events of jobs that are still open. One commit replaces
the earlier proof of the same scope (a digest of the options), with the offset as Delta's application transaction.

The next audit of the same scope reads new events and new evidence, and related rows, selected by the statistics of the
lake's files: all earlier events of the same jobs, all earlier evidence of these jobs and of their seqs, until none is
added; the events of open jobs; the last slots. All other rows are as they were when they were proven, so the answer is
that of a whole audit. An earlier proof is not used if the number of events below its offset has changed.

While jobs run, the evidence and the ledger are never of the same moment. An audit that follows them judges the events
below an offset that the lake had reached some time before the evidence was read, and leaves out evidence about later
acceptances and claims; the next audit reads it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from forebay.core.ledger import Change
from forebay.spark.arrow import Numbers, arrow_schema, distinct_numbers
from forebay.spark.audit.case import AuditCase
from forebay.spark.audit.cells_verdict import doubts, in_cells, not_judged
from forebay.spark.audit.checks import CHECKS, AuditOptions
from forebay.spark.audit.proven import NOTHING, EarlierAudit, Proven
from forebay.spark.audit.small_case import SmallCase
from forebay.spark.audit.suspects import semi_join
from forebay.spark.audit.verdict import AuditVerdict
from forebay.spark.evidence import Evidence, StartSpark
from forebay.spark.lake import EVENTS as EVENTS_TABLE
from forebay.spark.lake import Conflict, DataFile, Lake, LakeTable
from forebay.spark.lake_reader import Touched, read_events, read_file, read_files, touched
from forebay.spark.landing import write_file, write_rows
from forebay.spark.recent import MAX_ROUNDS, files_before, new_files, read_small, related_files
from forebay.spark.schemas import EVENTS
from forebay.spark.session import FEW, stage, tuned
from forebay.store.clock import SystemClock

PROOF: Final = "proof"
_REVISION: Final = 4
"""Of the checks and of the contents of a proof: proofs of another revision are not used."""

_MAX_NEW: Final = 3_000_000
"""Events. With more new ones the audit is a whole one: the driver holds the ids of their jobs."""

_FIRED: Final = "verb = 'fire' AND tick IS NOT NULL"


class LakeEvidence(Struct, frozen=True):
    """The evidence of one audit. `doubts`, `absent`, `cut`: see `forebay.spark.audit.audit`."""

    receipts: Evidence | None
    effects: Evidence | None
    logs: Mapping[str, DataFrame]
    doubts: Sequence[str] = ()
    cut: bool = False

    @property
    def tables(self) -> list[Evidence]:
        return [each for each in (self.receipts, self.effects) if each is not None]

    @property
    def absent(self) -> list[str]:
        return [] if self.receipts is None else self.receipts.absent


def audit_lake(
    start: StartSpark,
    lake: Lake,
    evidence: LakeEvidence,
    options: AuditOptions,
    *,
    whole: bool = False,
    until: int | None = None,
    by_spark: bool = False,
    note: Callable[[str], object] | None = None,
) -> AuditVerdict:
    """The verdict on a lake, or on its events below the offset `until`. Unless `whole`, it relies on the proof of an
    earlier audit, if there is one. Spark is started where there is much to read, or if `by_spark`. `note` is called
    with a line for the user."""
    table, cells = lake.table(EVENTS_TABLE), lake.cells()
    evidence = replace(evidence, cut=evidence.cut or table.dropped > 0)
    coverage = {} if cells is None else {number: table.coverage(number) for number in cells.names}
    if cells is not None:
        if cells.unread:
            return not_judged(cells, coverage)
        late = list(doubts(cells, coverage))
        evidence = replace(evidence, doubts=[*evidence.doubts, *late], cut=evidence.cut or bool(late))
    scope = _scope(options, (each.name for each in evidence.tables))
    proven = NOTHING if whole else _relied_on(lake, table, evidence, scope, note)
    verdict = None
    if until is None and not by_spark:
        verdict = _audit_small(lake, table, evidence, options, proven, scope)
    if verdict is None:
        verdict = _LakeAudit(start(), lake, table, evidence, until).verdict(options, proven, scope)
    return verdict if cells is None else in_cells(verdict, cells, coverage)


def _relied_on(
    lake: Lake, table: LakeTable, evidence: LakeEvidence, scope: str, note: Callable[[str], object] | None
) -> Proven:
    proven = _read_proof(lake, scope)
    reason = _why_not_relied_on(lake, table, evidence, proven) if proven.end else None
    if reason is None:
        return proven
    if note is not None:
        note(f"the earlier proof up to offset {proven.end - 1} is not used: {reason}")
    return NOTHING


def _audit_small(
    lake: Lake, table: LakeTable, evidence: LakeEvidence, options: AuditOptions, proven: Proven, scope: str
) -> AuditVerdict | None:
    """Without Spark; None if that is not possible, or there are too many rows."""
    if options.quick or options.ordered or options.schedules or evidence.logs or proven.held_back:
        return None
    rows = read_small(lake, table, evidence.tables, proven, _carried(lake, scope) if proven.end else [])
    case = None if rows is None else SmallCase.of(proven, *rows, options)
    if case is None:
        return None
    verdict = case.verdict(evidence.doubts, evidence.absent, evidence.cut)
    if verdict.answer == "PASS":
        digests = {each.name: _digests(each, proven) for each in evidence.tables}
        carried = [] if options.drained else _write_open(lake, case.open_events(), scope)
        _record(lake, scope, case.proven(_now(), table.rows + table.dropped, digests), carried)
    return verdict


def _scope(options: AuditOptions, evidence: Iterable[str]) -> str:
    """The scope of a proof. Options that judge totals are not part of it: totals are carried over."""
    settings = {
        "revision": _REVISION,
        "checks": sorted(CHECKS),
        "evidence": sorted(evidence),
        "drained": options.drained,
        "exactly_once": options.exactly_once,
        "dropped": None if options.dropped is None else sorted(options.dropped),
        "ordered": dict(sorted(options.ordered.items())),
        "schedules": {name: every.total_seconds() for name, every in sorted(options.schedules.items())},
        "from_offset": options.from_offset,
    }
    return hashlib.blake2b(msgspec.json.encode(settings), digest_size=10).hexdigest()


def _read_proof(lake: Lake, scope: str) -> Proven:
    tables = lake.tables([PROOF])
    for file in tables[PROOF].files if tables else []:
        if file.partition == _partition(scope, "proof"):
            with lake.files(PROOF).open_input_file(file.path) as opened:
                (content,) = pq.ParquetFile(opened).read(["proof"])["proof"].to_pylist()
            return msgspec.json.decode(content, type=Proven)
    return NOTHING


def events_to_read(lake: Lake, evidence: Sequence[str], options: AuditOptions, *, whole: bool) -> int:
    """About how many events an audit will read: those after its proof, or all. `evidence`: the tables it is given."""
    proven = NOTHING if whole else _read_proof(lake, _scope(options, evidence))
    return sum(file.rows for file in lake.table(EVENTS_TABLE).files if file.max_values["offset"] >= proven.end)


class _LakeAudit:
    """One audit of a lake as it was when that began."""

    def __init__(
        self, spark: SparkSession, lake: Lake, table: LakeTable, evidence: LakeEvidence, until: int | None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._table = table
        self._evidence = evidence
        self._until = until
        self._related: dict[str, DataFrame] = {}
        self._kept: list[DataFrame] = []
        self._new_rows: dict[int, int] = {}

    def verdict(self, options: AuditOptions, proven: Proven, scope: str) -> AuditVerdict:
        try:
            with tuned(self._spark, self._new_rows_from(proven.end)), stage(self._spark, "audit: related rows"):
                earlier = self._earlier_audit(proven, scope) if proven.end else None
            events = self._new_rows_from(0 if earlier is None else proven.end)
            given = (
                0 if earlier is not None else sum(file.rows for each in self._evidence.tables for file in each.files)
            )
            with tuned(self._spark, events + given, few=events <= FEW), self._case(earlier, options) as case:
                verdict = case.verdict()
                if verdict.answer == "PASS" and case.proves():
                    with stage(self._spark, "audit: proof"):
                        self._record(case, earlier, scope, drained=options.drained)
        finally:
            for frame in self._kept:
                frame.unpersist()
        return verdict

    def _new_rows_from(self, end: int) -> int:
        """Events from an offset on."""
        if end not in self._new_rows:
            self._new_rows[end] = _count_new(self._lake, self._table, end)
        return self._new_rows[end]

    def _case(self, earlier: EarlierAudit | None, options: AuditOptions) -> AuditCase:
        given, since = self._evidence, 0 if earlier is None else earlier.proven.end
        spark, proven = self._spark, None if earlier is None else earlier.proven
        rows = {
            each.name: each.rows(spark) if proven is None else self._evidence_rows(each, proven)
            for each in given.tables
        }
        if self._until is not None:
            rows = {name: self._known_at(self._until, name, each) for name, each in rows.items()}
        return AuditCase(
            self._events(since),
            rows.get("receipts"),
            rows.get("effects"),
            dict(given.logs),
            options,
            given.doubts,
            given.absent,
            given.cut,
            earlier,
        )

    def _events(self, since: int) -> DataFrame:
        """The judged events from an offset on."""
        rows = read_events(self._spark, self._lake, since, self._table)
        return rows if self._until is None else rows.filter(F.col("offset") < self._until)

    def _known_at(self, end: int, name: str, rows: DataFrame) -> DataFrame:
        """Evidence without rows about acceptances or claims from this offset on."""
        later = read_events(self._spark, self._lake, end, self._table)
        change, by = (Change.ACCEPTED, ["job_id"]) if name == "receipts" else (Change.CLAIMED, ["job_id", "delivery"])
        return rows.join(later.filter(F.col("change") == change).select(*by), by, "left_anti").select(*rows.columns)

    def _earlier_audit(self, proven: Proven, scope: str) -> EarlierAudit | None:
        """Rows related to new ones; None if the search does not end."""
        new_events = self._events(proven.end)
        new = [self._new_evidence(each, proven) for each in self._evidence.tables]
        unsent = F.lit(None).cast("long").alias("seq")
        jobs, seqs = _numbers([new_events.select("job_id", unsent), *new])
        for _ in range(MAX_ROUNDS):
            found = self._find_related(proven, jobs, seqs)
            more_jobs, more_seqs = _numbers(found.values())
            size = len(jobs) + len(seqs)
            jobs, seqs = np.union1d(jobs, more_jobs), np.union1d(seqs, more_seqs)
            if len(jobs) + len(seqs) == size:
                break
        else:
            return None
        carried = _carried(self._lake, scope)
        parts = self._slots(proven, new_events)
        if carried:
            parts.append(read_files(self._spark, self._lake, PROOF, carried, EVENTS))
            jobs = np.setdiff1d(jobs, _numbers([parts[-1].select("job_id", unsent)])[0])
        files = files_before(self._table, proven.end, Touched.of("job_id", jobs))
        if files:
            parts.append(self._earlier_events(proven.end, self._ids("job_id", jobs), files))
        events = self._keep(reduce(DataFrame.unionAll, parts)) if parts else None
        self._related = found
        if proven.held_back:
            found = {name: self._known_at(proven.end, name, rows) for name, rows in found.items()}
        return EarlierAudit(proven, events, found.get("receipts"), found.get("effects"))

    def _record(self, case: AuditCase, earlier: EarlierAudit | None, scope: str, *, drained: bool) -> None:
        """After an audit that passed."""
        digests = {
            each.name: _digests(each, None if earlier is None else earlier.proven) for each in self._evidence.tables
        }
        end = self._table.end if self._until is None else self._until
        rows = self._table.rows + self._table.dropped - self._new_rows_from(end)
        proven = case.proven(_now(), rows, digests, held_back=self._until is not None)
        _record(self._lake, scope, proven, [] if drained else self._write_open(case, earlier, scope))

    def _write_open(self, case: AuditCase, earlier: EarlierAudit | None, scope: str) -> list[DataFile]:
        """All events of jobs that have no end."""
        jobs = case.open_jobs()
        if earlier is None:
            end = self._table.end if self._until is None else self._until
            rows = self._earlier_events(end, jobs, files_before(self._table, end, touched(jobs, "job_id")))
        else:
            rows = self._events(earlier.proven.end)
            rows = semi_join(rows if earlier.events is None else earlier.events.unionAll(rows), jobs, "job_id")
        return write_rows(self._lake, PROOF, rows.coalesce(1), scope, _partition(scope, "events"))

    def _new_evidence(self, each: Evidence, proven: Proven) -> DataFrame:
        """Evidence that no earlier audit has read."""
        return read_files(self._spark, self._lake, each.name, new_files(each, proven), each.schema)

    def _evidence_rows(self, each: Evidence, proven: Proven) -> DataFrame:
        """New rows, and related ones."""
        new, related = self._new_evidence(each, proven), self._related.get(each.name)
        return new if related is None else new.unionAll(related)

    def _find_related(self, proven: Proven, jobs: Numbers, seqs: Numbers) -> dict[str, DataFrame]:
        """Evidence that earlier audits have read, of these jobs or these seqs, by table; empty if there is none."""
        touched = {each.name: related_files(each, proven, jobs, seqs) for each in self._evidence.tables}
        if not any(touched.values()):
            return {}
        chosen = self._ids("job_id", jobs).withColumn("by_job", F.lit(True))
        sent = self._ids("seq", seqs).withColumn("by_seq", F.lit(True))
        found = {}
        for each in self._evidence.tables:
            rows = read_files(self._spark, self._lake, each.name, touched[each.name], each.schema)
            rows = rows.join(chosen, "job_id", "left").join(sent, "seq", "left")
            found[each.name] = self._keep(rows.filter("by_job OR by_seq").select(*each.schema.names))
        return found

    def _earlier_events(self, end: int, jobs: DataFrame, files: Sequence[DataFile]) -> DataFrame:
        """Events of these jobs below an offset, from these files."""
        rows = read_files(self._spark, self._lake, EVENTS_TABLE, files, EVENTS).filter(F.col("offset") < end)
        return semi_join(rows, jobs, "job_id")

    def _ids(self, name: str, numbers: Numbers) -> DataFrame:
        return self._spark.createDataFrame(pa.table({name: pa.array(numbers, pa.int64())}))

    def _slots(self, proven: Proven, new_events: DataFrame) -> list[DataFrame]:
        """The last slot of each schedule; of schedules that now took one that is not later, all of them."""
        if not proven.slots:
            return []
        rows = [(name, slot.tick, slot.offset) for name, slot in proven.slots.items()]
        last = self._spark.createDataFrame(rows, "name string, tick long, offset long")
        found = [_as_fires(last.withColumn("tick", F.timestamp_micros("tick")))]
        fired = new_events.filter(_FIRED).groupBy("name").agg(F.min(F.unix_micros("tick")).alias("tick")).collect()
        known = {row["name"]: row["tick"] for row in fired if row["name"] in proven.slots}
        back = [name for name, tick in known.items() if tick <= proven.slots[name].tick]
        if back:
            files = [
                file
                for file in self._table.files
                if file.min_values["offset"] < proven.end and "tick" in file.max_values
            ]
            before = read_files(self._spark, self._lake, EVENTS_TABLE, files, EVENTS).filter(_FIRED)
            before = before.filter((F.col("offset") < proven.end) & F.col("name").isin(*back))
            found.append(_as_fires(before.select("name", "tick", "offset").distinct()))
        return found

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame


def _as_fires(slots: DataFrame) -> DataFrame:
    """Slots as events that move no job."""
    known = {"place": F.lit(0), "event_at": F.col("tick"), "verb": F.lit("fire"), "day": F.to_date("tick")}
    known |= {name: F.col(name) for name in slots.columns}
    return slots.select(*(known.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in EVENTS))


def _why_not_relied_on(lake: Lake, table: LakeTable, evidence: LakeEvidence, proven: Proven) -> str | None:
    """Why a whole audit is better."""
    new = _count_new(lake, table, proven.end)
    if new > _MAX_NEW:
        return f"{new:,} events are new, more than {_MAX_NEW:,}"
    below = table.rows + table.dropped - new
    if below != proven.rows:
        return f"the lake has {below:,} events below it, {proven.rows:,} were there"
    for each in evidence.tables:
        kept = {file.partition["digest"] for file in each.kept}
        if not kept.issuperset(proven.evidence.get(each.name, [])):
            return f"{each.name} that it was given are not in the lake any more"
    return None


def _count_new(lake: Lake, table: LakeTable, end: int) -> int:
    """Events from an offset on. Files are counted by their statistics, but for those that begin before it."""
    new = [file for file in table.files if file.max_values["offset"] >= end]
    mixed = [file for file in new if file.min_values["offset"] < end]
    offsets = StructType([EVENTS["offset"]])
    batches = (batch for file in mixed for batch in read_file(lake, EVENTS_TABLE, file.path, offsets))
    rows = sum(file.rows for file in new) - sum(file.rows for file in mixed)
    return rows + sum(int(np.count_nonzero(batch["offset"].to_numpy() >= end)) for batch in batches)


def _record(lake: Lake, scope: str, proven: Proven, carried: list[DataFile]) -> None:
    """`carried`: files of the events of open jobs. If another audit committed first, its proof is kept."""
    _create(lake)
    table = lake.table(PROOF)
    header = pa.table({"proof": [msgspec.json.encode(proven).decode()]})
    path = f"{scope}/{uuid4().hex}.parquet"
    added = [write_file(lake.files(PROOF), path, header, _partition(scope, "proof")), *carried]
    removed = [file for file in table.files if file.partition["scope"] == scope]
    try:
        table.commit(added, removed=removed, apps={f"audit/{scope}": proven.end})
    except Conflict:
        lake.discard(PROOF, added)


def _create(lake: Lake) -> None:
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(EVENTS)])
    lake.create(
        PROOF,
        pa.schema([*schema, *(pa.field(name, pa.string()) for name in ("proof", "scope", "content"))]),
        ["scope", "content"],
    )


def _write_open(lake: Lake, events: pa.Table, scope: str) -> list[DataFile]:
    path = f"{scope}/{uuid4().hex}.parquet"
    return [write_file(lake.files(PROOF), path, events, _partition(scope, "events"))] if len(events) else []


def _carried(lake: Lake, scope: str) -> list[DataFile]:
    """The files of the events of jobs that were open."""
    return [file for file in lake.table(PROOF).files if file.partition == _partition(scope, "events")]


def _digests(each: Evidence, proven: Proven | None) -> list[str]:
    own = {file.partition["digest"] for file in each.files}
    return sorted(own.union([] if proven is None else proven.evidence.get(each.name, [])))


def _now() -> str:
    return datetime.fromtimestamp(SystemClock().now() / 1e6, UTC).isoformat(timespec="seconds")


def _partition(scope: str, content: str) -> dict[str, str]:
    return {"scope": scope, "content": content}


def _numbers(frames: Iterable[DataFrame]) -> tuple[Numbers, Numbers]:
    """All values of `job_id` and of `seq`, each once, on the driver: plans that hold each other would grow with every
    round."""
    columns = ("job_id", "seq")
    parts = [frame.select(*columns) for frame in frames]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    table = reduce(DataFrame.unionAll, parts).toArrow()
    return distinct_numbers(table["job_id"]), distinct_numbers(table["seq"])
