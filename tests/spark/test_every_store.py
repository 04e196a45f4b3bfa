"""One command, any store: the ledger goes into a lake, the tables follow, and the audit passes."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from forebay.spark.lake import Lake
from forebay.spark.tables import TABLES
from tests.answer import Run
from tests.spark.ground import opened, worked

JOBS = 40


@pytest.fixture(params=["journal", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite is the store of all other tests."""
    match request.param:
        case "journal":
            return f"memory://{tmp_path}/journal"
        case _:
            found: str = request.getfixturevalue("postgres_url")
            return found


def test_a_lake_of_any_store_passes_the_audit(run: Run, url: str, tmp_path: Path) -> None:
    worked(url, tmp_path, JOBS)
    words = ["--lake", "lake", "--receipts", "receipts.ndjson", "--effects", "effects.ndjson", "--drained"]
    with opened(url) as owner:
        first = run("audit", "--store", url, *words, "--every-check", "--json")
        assert owner.ledger_extent()[1] == Lake.at("lake").contents().end == 3
    verdict = json.loads(first.out)
    assert (first.code, verdict["answer"], verdict["facts"]["jobs"]) == (0, "PASS", JOBS)
    contents = Lake.at("lake").contents()
    assert contents.tables.keys() == TABLES.keys()
    assert (contents.event_count, contents.tables["jobs"].rows) == (3 * JOBS, JOBS)
    assert (urlsplit(url).password or "no password") not in (tmp_path / "lake" / "lake.json").read_text()
