"""The exact checks of suspects: Spark collects their entries, `exact_checks` judges them.

To a suspect belong all its events, receipts and effects; all evidence of the seqs in these; and the events of the jobs
that this evidence names. Few of them are taken to the driver, where they are judged sooner than Spark has planned the
first of many joins. More than `MAX_DRIVER_ROWS` are judged by tasks, job by job and then seq by seq, by the same
functions.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, TypeVar

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from forebay.spark.arrow import arrow_schema
from forebay.spark.audit.exact_checks import (
    EFFECT,
    EVENT,
    RECEIPT,
    EvidenceRow,
    Finding,
    Mention,
    Rules,
    check_job,
    check_seq,
)
from forebay.spark.audit.findings import FINDINGS
from forebay.spark.schemas import schema_of

MAX_DRIVER_ROWS: Final = 500_000
_BATCH_ROWS: Final = 10_000
Keep = Callable[[DataFrame], DataFrame]
_Row = TypeVar("_Row", EvidenceRow, Mention)

ENTRIES: Final = schema_of("""
job_id long
part int!
offset long
place int
change string
queue string
delivery int
attempt int
max_attempts int
at long
due_at long
next_at long
lease_until long
error_kind string
seq long
worker string
""")
_MENTIONS: Final = schema_of("""
seq long
job_id long
answer string
known bool
accepted bool
named bool
queue string
""")
_JUDGED: Final = StructType(
    [*_MENTIONS.fields, *schema_of("check string\ndelivery int\noffset long\nplace int\nnote string").fields]
)
"""A mention, or a finding: one that has a check."""

_COLUMNS: Final[dict[int, dict[str, str]]] = {
    EVENT: {"at": "event_at"},
    RECEIPT: {"change": "answer", "at": "sent_at"},
    EFFECT: {"at": "effect_at"},
}
"""By part: what is called otherwise in its table."""


class Suspects(Struct, frozen=True):
    """`jobs`: their ids; None: all jobs are suspects. `seqs`: seqs that are suspects by themselves."""

    jobs: DataFrame | None
    count: int
    seqs: DataFrame | None


def examine(
    events: DataFrame,
    receipts: DataFrame | None,
    effects: DataFrame | None,
    suspects: Suspects,
    rules: Rules,
    keep: Keep,
) -> list[Finding] | DataFrame:
    """The findings: on the driver, or as rows of FINDINGS. `keep` persists what is read twice."""
    happened, evidence = _entries(events, EVENT), _of_evidence(receipts, effects)
    if suspects.jobs is not None and suspects.count <= MAX_DRIVER_ROWS:
        entries = _taken(happened, evidence, suspects.jobs, suspects.seqs)
        if entries is not None:
            return judge(entries, rules)
    return _distributed(*_related(happened, evidence, suspects), rules, keep)


def judge(entries: Iterable[EvidenceRow], rules: Rules) -> list[Finding]:
    """All findings in these entries, of which every job and every seq is whole."""
    by_job: dict[int | None, list[EvidenceRow]] = {}
    for each in entries:
        by_job.setdefault(each.job_id, []).append(each)
    unplaced = by_job.pop(None, [])
    found: list[Finding] = []
    by_seq: dict[int, list[Mention]] = {}
    for each in unplaced:
        by_seq.setdefault(each.seq or 0, []).append(Mention(each.seq or 0, None, each.change))
    for job_id, own in by_job.items():
        for one in check_job(job_id or 0, own, rules):
            if isinstance(one, Mention):
                by_seq.setdefault(one.seq, []).append(one)
            else:
                found.append(one)
    for seq, mentions in by_seq.items():
        found += check_seq(seq, mentions, rules)
    return found


def entries_of(table: pa.Table, part: int) -> Iterator[EvidenceRow]:
    """Rows of events, receipts or effects that are on the driver already."""

    def column(name: str) -> Iterable[Any]:
        own = _COLUMNS[part].get(name, name)
        if name == "part" or own not in table.column_names:
            return repeat(part if name == "part" else None, len(table))
        values = table[own].cast(pa.int64()) if pa.types.is_timestamp(table[own].type) else table[own]
        found: list[Any] = values.to_pylist()
        return found

    return map(EvidenceRow._make, zip(*map(column, EvidenceRow._fields), strict=True))


def _taken(
    happened: DataFrame, evidence: DataFrame | None, jobs: DataFrame, seqs: DataFrame | None
) -> Iterator[EvidenceRow] | None:
    """The entries of suspects on the driver; None if they are too many."""
    spark = happened.sparkSession
    ids = jobs.toArrow()["job_id"]
    tables = []
    if evidence is not None:
        theirs = semi_join(evidence, _ids(spark, "job_id", ids), "job_id").select("seq")
        shared = (theirs if seqs is None else theirs.unionAll(seqs)).distinct().toArrow()["seq"]
        tables.append(semi_join(evidence, _ids(spark, "seq", shared), "seq").limit(MAX_DRIVER_ROWS + 1).toArrow())
        ids = pa.chunked_array([*ids.chunks, *tables[0]["job_id"].drop_null().chunks], pa.int64())
    chosen = _ids(spark, "job_id", ids.unique())
    tables.append(semi_join(happened, chosen, "job_id").limit(MAX_DRIVER_ROWS + 1).toArrow())
    if sum(map(len, tables)) > MAX_DRIVER_ROWS:
        return None
    return (entry for table in tables for entry in _rows(table, EvidenceRow))


def _related(happened: DataFrame, evidence: DataFrame | None, suspects: Suspects) -> tuple[DataFrame, DataFrame | None]:
    if suspects.jobs is None:
        return happened, evidence
    if evidence is None:
        return semi_join(happened, suspects.jobs, "job_id"), None
    seqs = semi_join(evidence, suspects.jobs, "job_id").select("seq")
    shared = (seqs if suspects.seqs is None else seqs.unionAll(suspects.seqs)).distinct()
    own = semi_join(evidence, shared, "seq")
    jobs = suspects.jobs.unionAll(own.select("job_id").filter(F.col("job_id").isNotNull())).distinct()
    return semi_join(happened, jobs, "job_id"), own


def _distributed(happened: DataFrame, evidence: DataFrame | None, rules: Rules, keep: Keep) -> DataFrame:
    """Rows of a job, then mentions of a seq, come to one task, side by side."""
    placed = F.col("job_id").isNotNull()
    entries = happened.filter(placed)
    if evidence is not None:
        entries = entries.unionAll(evidence.filter(placed))
    by_job = entries.repartition("job_id").sortWithinPartitions("job_id")
    judged = by_job.mapInArrow(partial(_judge_jobs, rules), _JUDGED)
    judged = keep(judged)
    found = judged.filter(F.col("check").isNotNull()).select(*FINDINGS.names)
    if evidence is None:
        return found
    mentions = judged.filter(F.col("check").isNull()).select(*_MENTIONS.names)
    unplaced = [F.col("seq"), F.col("job_id"), F.col("change"), *(F.lit(False),) * 3, F.lit(None).cast("string")]
    by_seq = mentions.unionAll(evidence.filter(~placed).select(*unplaced))
    by_seq = by_seq.repartition("seq").sortWithinPartitions("seq")
    return found.unionAll(by_seq.mapInArrow(partial(_judge_seqs, rules), FINDINGS))


def _judge_jobs(rules: Rules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in _rows(batch, EvidenceRow))
    judged = (one for job_id, own in groupby(rows, itemgetter(0)) for one in check_job(job_id or 0, list(own), rules))
    yield from _batches((one._asdict() for one in judged), arrow_schema(_JUDGED))


def _judge_seqs(rules: Rules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in _rows(batch, Mention))
    judged = (one for seq, own in groupby(rows, itemgetter(0)) for one in check_seq(seq, list(own), rules))
    yield from _batches((one._asdict() for one in judged), arrow_schema(FINDINGS))


def _batches(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    ready: list[dict[str, Any]] = []
    for row in rows:
        ready.append(row)
        if len(ready) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(ready, schema)
            ready = []
    yield pa.RecordBatch.from_pylist(ready, schema)


def _rows(table: pa.Table | pa.RecordBatch, kind: type[_Row]) -> Iterator[_Row]:
    columns = [table[name].to_pylist() for name in kind._fields]
    return map(kind._make, zip(*columns, strict=True))


def semi_join(rows: DataFrame, chosen: DataFrame, by: str) -> DataFrame:
    """The rows of those that were chosen."""
    return rows.join(chosen, by, "left_semi").select(*rows.columns)


def _ids(spark: SparkSession, name: str, ids: pa.ChunkedArray) -> DataFrame:
    return F.broadcast(spark.createDataFrame(pa.table({name: ids})))


def _of_evidence(receipts: DataFrame | None, effects: DataFrame | None) -> DataFrame | None:
    parts = [] if receipts is None else [_entries(receipts, RECEIPT)]
    parts += [] if effects is None else [_entries(effects, EFFECT)]
    return reduce(DataFrame.unionAll, parts) if parts else None


def _entries(rows: DataFrame, part: int) -> DataFrame:
    """As ENTRIES; what these rows do not have is null. Instants become microseconds."""
    types = dict(rows.dtypes)

    def column(name: str) -> Column:
        own = _COLUMNS[part].get(name, name)
        if own not in types:
            return F.lit(None)
        return F.unix_micros(own) if types[own] == "timestamp" else F.col(own)

    known = {"part": F.lit(part)}
    return rows.select(
        *(known.get(each.name, column(each.name)).cast(each.dataType).alias(each.name) for each in ENTRIES)
    )
