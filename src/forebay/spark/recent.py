"""The rows of a lake that an incremental audit reads: new ones, and proven ones that are related to them.

The files are chosen by the statistics of the lake's log. `proof` reads them by Spark where they are many; `read_small`
reads them into this process, where they are few.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.spark.arrow import Numbers, distinct_numbers
from forebay.spark.audit.proven import Proven
from forebay.spark.audit.small_case import EvidenceRows
from forebay.spark.evidence import Evidence
from forebay.spark.lake import EVENTS as EVENTS_TABLE
from forebay.spark.lake import DataFile, Lake, LakeTable
from forebay.spark.lake_reader import Touched, read_rows
from forebay.spark.schemas import EVENTS

MAX_ROUNDS: Final = 8
"""Of finding related jobs and seqs. Nearly always two suffice; beyond the bound the audit reads everything."""

MAX_SMALL_ROWS: Final = 1_000_000
"""Audited without Spark."""

MAX_SEARCHED_ROWS: Final = 2_000_000
"""Of files that are searched without Spark, by round."""


def new_files(each: Evidence, proven: Proven) -> list[DataFile]:
    """Evidence that no earlier audit has read."""
    known = set(proven.evidence.get(each.name, []))
    return [file for file in each.files if file.partition["digest"] not in known]


def related_files(each: Evidence, proven: Proven, jobs: Numbers, seqs: Numbers) -> list[DataFile]:
    """Evidence that earlier audits have read, which may name these jobs or seqs."""
    by_job, by_seq = Touched.of("job_id", jobs), Touched.of("seq", seqs)
    known = set(proven.evidence.get(each.name, []))
    files = [file for file in each.kept if file.partition["digest"] in known]
    return [file for file in files if by_job.meets(file) or by_seq.meets(file)]


def files_before(table: LakeTable, end: int, jobs: Touched) -> list[DataFile]:
    """Files that may hold events of these jobs below an offset."""
    return [file for file in table.files if file.min_values["offset"] < end and jobs.meets(file)]


def read_small(
    lake: Lake, table: LakeTable, evidence: Sequence[Evidence], proven: Proven, carried: Sequence[DataFile]
) -> tuple[EvidenceRows, EvidenceRows] | None:
    """New rows, and related ones with the events of open jobs (`carried`); None if they are too many."""
    recent = [file for file in table.files if file.max_values["offset"] >= proven.end]
    unread = {each.name: new_files(each, proven) for each in evidence}
    counts = [file.rows for files in (recent, carried, *unread.values()) for file in files]
    if sum(counts) > MAX_SMALL_ROWS:
        return None
    events = read_rows(lake, EVENTS_TABLE, recent, EVENTS)
    events = events.filter(pc.greater_equal(events["offset"], proven.end))
    given = {each.name: read_rows(lake, each.name, unread[each.name], each.schema) for each in evidence}
    new = EvidenceRows(events, given.get("receipts"), given.get("effects"))
    related = _related(lake, evidence, proven, new)
    if related is None:
        return None
    known, jobs = related
    open_events = read_rows(lake, "proof", carried, EVENTS)
    jobs = np.setdiff1d(jobs, distinct_numbers(open_events["job_id"]))
    files = files_before(table, proven.end, Touched.of("job_id", jobs))
    if sum(file.rows for file in files) > MAX_SEARCHED_ROWS:
        return None
    earlier = read_rows(lake, EVENTS_TABLE, files, EVENTS, {"job_id": jobs})
    earlier = earlier.filter(pc.less(earlier["offset"], proven.end))
    related_rows = EvidenceRows(pa.concat_tables([open_events, earlier]), known.get("receipts"), known.get("effects"))
    return (new, related_rows) if new.count + related_rows.count <= MAX_SMALL_ROWS else None


def _related(
    lake: Lake, evidence: Sequence[Evidence], proven: Proven, new: EvidenceRows
) -> tuple[dict[str, pa.Table], Numbers] | None:
    """Earlier evidence of the jobs and seqs that are new, and of those that it names, until none is added; and all
    these jobs."""
    given = [each for each in (new.receipts, new.effects) if each is not None]
    jobs = distinct_numbers(*(each["job_id"] for each in (new.events, *given)))
    seqs = distinct_numbers(*(each["seq"] for each in given))
    for _ in range(MAX_ROUNDS):
        files = {each.name: related_files(each, proven, jobs, seqs) for each in evidence}
        if sum(file.rows for own in files.values() for file in own) > MAX_SEARCHED_ROWS:
            return None
        wanted = {"job_id": jobs, "seq": seqs}
        found = {each.name: read_rows(lake, each.name, files[each.name], each.schema, wanted) for each in evidence}
        size = len(jobs) + len(seqs)
        jobs = np.union1d(jobs, distinct_numbers(*(each["job_id"] for each in found.values())))
        seqs = np.union1d(seqs, distinct_numbers(*(each["seq"] for each in found.values())))
        if len(jobs) + len(seqs) == size:
            return found, jobs
    return None
