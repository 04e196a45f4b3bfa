"""Lies by the file: files of a lake that are missing, doubled, late or damaged, and evidence that is there twice."""

from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.spark.audit import AuditVerdict
from forebay.spark.lake import DataFile, Lake
from forebay.spark.landing import write_files
from tests.command_result import Run
from tests.spark.lie_rounds import compared
from tests.spark.oracle import oracle
from tests.spark.planted import DROPPED, OPTIONS, clean
from tests.spark.story import Story

pytestmark = pytest.mark.timeout(300)
STORE = "sqlite:////srv/jobs.db"
FILES = 14
MISSING, DOUBLED, LAST = (3, 7, 8), (2, 5), FILES - 1
ASKED = ("--drained", "--dropped", DROPPED, "--ordered", "lines:subject", "--ordered", "tenants:tenant")


def story() -> Story:
    return clean(seed=5, jobs=60).story


def shares(events: pa.Table) -> list[pa.Table]:
    """The events by ranges of offsets."""
    ends = [1 + (number + 1) * pc.max(events["offset"]).as_py() // FILES for number in range(FILES)]
    starts = [0, *ends]
    within = [
        pc.and_(pc.greater_equal(events["offset"], start), pc.less(events["offset"], end))
        for start, end in zip(starts, ends, strict=False)
    ]
    return [events.filter(own) for own in within]


def written(directory: Path, table: pa.Table, files: int) -> None:
    """Evidence as its writers leave it: lines of JSON in several files."""
    directory.mkdir()
    for number in range(files):
        lines = (msgspec.json.encode(row).decode() for row in table.to_pylist()[number::files])
        (directory / f"{number}.ndjson").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def parts(tmp_path: Path) -> list[pa.Table]:
    """A clean history whose lake has files missing, its last one too, and others twice; the later ones came first."""
    events = story().table()
    parts = shares(events)
    lake = Lake.of(tmp_path / "lake", STORE)
    kept = [number for number in range(FILES) if number not in (*MISSING, LAST)]
    for batch in (kept[len(kept) // 2 :], kept[: len(kept) // 2], DOUBLED):
        files: list[DataFile] = [file for number in batch for file in write_files(lake, "events", parts[number])]
        lake.table("events").commit(files)
    lake.table("events").commit([], pc.max(events["offset"]).as_py() + 1)
    for name, table in zip(("receipts", "effects"), story().evidence(), strict=True):
        written(tmp_path / name, table, 4)
    (tmp_path / "receipts" / "copy.ndjson").write_bytes((tmp_path / "receipts" / "2.ndjson").read_bytes())
    return [parts[number] for number in kept]


def test_files_of_a_lake_that_are_missing_doubled_or_late(run: Run, parts: list[pa.Table], tmp_path: Path) -> None:
    words = ("audit", "--lake", "lake", "--receipts", "receipts", "--effects", "effects", *ASKED, "--json")
    answer = run(*words, "--schedule", "tick=1m")
    verdict = msgspec.json.decode(answer.out, type=AuditVerdict)
    assert (answer.code, verdict.answer) == (2, "INVALID"), answer.err
    events = pa.concat_tables(parts)
    offsets = set(events["offset"].to_pylist())
    gaps = {number + 1 for number in offsets if number + 1 not in offsets and number < max(offsets)}
    assert {each.offset for each in verdict.result("ledger_gap").offenders} == gaps
    assert len(gaps) == 2, "two files in a row are one gap"
    assert any(
        reason.startswith(f"the lake is not whole: events end at offset {max(offsets)}") for reason in verdict.reasons
    )
    assert f"receipts: {tmp_path}/receipts/copy.ndjson is a copy of {tmp_path}/receipts/2.ndjson" in verdict.reasons
    agreed, rows = oracle(events, *story().evidence(), OPTIONS)
    assert (agreed, list(compared(verdict, Counter(rows)))) == ("INVALID", [])
    assert {each.outcome for each in verdict.results if each.check in ("lost", "unborn", "ledger_gap")} == {"missing"}
    file = next((tmp_path / "lake" / "events").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-20])
    damaged = run(*words)
    file.unlink()
    gone = run(*words)
    assert [(each.code, each.out, file.name in each.err) for each in (damaged, gone)] == [(3, "", True)] * 2, (
        damaged.err + gone.err
    )
