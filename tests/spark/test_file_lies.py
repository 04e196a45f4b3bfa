"""Each kind of lie about the files of a lake by itself, through the command: named, and DuckDB says the same of the
rows that the lake still has. A file that cannot be read proves nothing."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from forebay.spark.audit import AuditVerdict
from forebay.spark.lake import DataFile, Lake
from forebay.spark.lake_reader import read_rows
from forebay.spark.landing import _bound, write_files
from forebay.spark.schemas import EVENTS
from tests.command_result import Run
from tests.spark.cut_rounds import SMALL
from tests.spark.lie_rounds import compared
from tests.spark.oracle import oracle
from tests.spark.planted import DROPPED, clean
from tests.spark.test_audit_files import STORE, shares, written

pytestmark = pytest.mark.timeout(300)
Lie = Callable[[Lake, random.Random], object]


def in_order(lake: Lake) -> list[DataFile]:
    return sorted(lake.table("events").files, key=lambda file: int(file.min_values["offset"]))


def stated(file: DataFile, **fields: str) -> DataFile:
    """As a writer states it: instants as text."""
    bounds = [{name: _bound(value, "") for name, value in own.items()} for own in (file.min_values, file.max_values)]
    return replace(file, min_values=bounds[0], max_values=bounds[1], **fields)


def missing(lake: Lake, rng: random.Random) -> None:
    lake.table("events").commit([], removed=[rng.choice(in_order(lake)[1:-1])])


def first_missing(lake: Lake, rng: random.Random) -> None:
    lake.table("events").commit([], removed=in_order(lake)[:1])


def last_missing(lake: Lake, rng: random.Random) -> None:
    lake.table("events").commit([], removed=in_order(lake)[-1:])


def doubled(lake: Lake, rng: random.Random) -> None:
    file = rng.choice(in_order(lake))
    copy = stated(file, path=f"{Path(file.path).parent}/{uuid4().hex}.parquet")
    shutil.copy(f"{lake.uri}/events/{file.path}", f"{lake.uri}/events/{copy.path}")
    lake.table("events").commit([copy])


def late(lake: Lake, rng: random.Random) -> None:
    file = rng.choice(in_order(lake)[:-1])
    lake.table("events").commit([], removed=[file])
    lake.table("events").commit([stated(file)])


def altered_copy(lake: Lake, rng: random.Random) -> None:
    """The same events in a second file, of which one is a millisecond later."""
    rows = read_rows(lake, "events", [rng.choice(in_order(lake))], EVENTS)
    wrong = rng.randrange(len(rows))
    chosen = pa.array(number == wrong for number in range(len(rows)))
    later = pc.add(rows["event_at"], pa.scalar(1_000, pa.duration("us")))
    at = rows.column_names.index("event_at")
    rows = rows.set_column(at, rows.schema.field(at), pc.if_else(chosen, later, rows["event_at"]))
    lake.table("events").commit(write_files(lake, "events", rows))


def truncated(lake: Lake, rng: random.Random) -> None:
    path = Path(f"{lake.uri}/events/{rng.choice(in_order(lake)).path}")
    path.write_bytes(path.read_bytes()[: -rng.randrange(1, 60)])


def gone(lake: Lake, rng: random.Random) -> None:
    Path(f"{lake.uri}/events/{rng.choice(in_order(lake)).path}").unlink()


SEEN: dict[Lie, tuple[int, str]] = {
    missing: (2, "ledger_gap"),
    first_missing: (2, "the ledger starts at offset "),
    last_missing: (2, "the lake is not whole: events end at offset "),
    doubled: (0, ""),
    late: (0, ""),
    altered_copy: (1, "conflict"),
}
"""The exit code, and the check or the reason that names the lie."""


def a_lake(place: Path, seed: int) -> tuple[Lake, pa.Table, pa.Table]:
    story = clean(seed, jobs=40).story
    lake = Lake.of(place / "lake", STORE)
    events = story.table()
    files = [file for part in shares(events) for file in write_files(lake, "events", part)]
    lake.table("events").commit(files, pc.max(events["offset"]).as_py() + 1)
    receipts, effects = story.evidence()
    written(place / "receipts", receipts, 2)
    written(place / "effects", effects, 2)
    return lake, receipts, effects


WORDS = ("audit", "--lake", "lake", "--receipts", "receipts", "--effects", "effects", "--dropped", DROPPED, "--json")
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 11))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lie", SEEN, ids=lambda lie: lie.__name__)
def test_files_that_can_be_read(run: Run, tmp_path: Path, lie: Lie, seed: int) -> None:
    lake, receipts, effects = a_lake(tmp_path, seed)
    lie(lake, random.Random(seed))
    answer = run(*WORDS, "--coverage", "0.5")
    verdict = msgspec.json.decode(answer.out, type=AuditVerdict)
    code, named = SEEN[lie]
    found = {each.check for each in verdict.results if each.count} | {""}
    assert (answer.code, named in found or any(each.startswith(named) for each in verdict.reasons)) == (code, True)
    left = read_rows(lake, "events", lake.table("events").files, EVENTS)
    agreed, rows = oracle(left, receipts, effects, SMALL, cut=lie is last_missing)
    assert (verdict.answer, list(compared(verdict, Counter(rows)))) == (agreed, [])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lie", [truncated, gone], ids=lambda lie: lie.__name__)
def test_a_file_that_cannot_be_read_proves_nothing(run: Run, tmp_path: Path, lie: Lie, seed: int) -> None:
    lake, *_ = a_lake(tmp_path, seed)
    lie(lake, random.Random(seed))
    answer = run(*WORDS)
    assert (answer.code, answer.out) == (3, "")
    assert any(Path(file.path).name in answer.err for file in in_order(lake)), answer.err
