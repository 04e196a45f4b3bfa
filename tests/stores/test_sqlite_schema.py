"""The schema is its migrations, every poll is served by exactly one index, and an unknown schema is refused."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.core.errors import Invalid
from forebay.core.instant import hours
from forebay.core.job import Draft
from forebay.core.policy import AtMost, InOrder, KeepFor, LatestWins
from forebay.core.spec import QueueSpec
from forebay.store.sqlite.migrate import migrations
from forebay.store.sqlite.store import SqliteStore
from forebay.store.sqlite.tables import statements

SEARCHES = {
    "claim": ["job USING INTEGER PRIMARY KEY (rowid=?)", "job USING INDEX job_ready (queue=? AND lane=?)"],
    "make_ready": ["job USING INTEGER PRIMARY KEY (rowid=?)", "job USING INDEX job_due (due_at<?)"],
    "next_of_lane": ["job USING INDEX job_ready (queue=? AND lane=? AND rank>?)"],
    "heads": ["job USING INTEGER PRIMARY KEY (rowid=?)", "job USING INDEX job_line (line=?)"],
    "exposed": ["job USING INDEX job_line (line=?)"],
    "taken_lines": ["job USING INDEX job_line (line=?)"],
    "between": ["job USING INDEX job_line (line=? AND rowid>? AND rowid<?)"],
    "next_due": ["job USING INDEX job_due"],
    "expired": ["job USING INDEX job_expiring (expires_at>? AND expires_at<?)"],
    "kept": ["job USING INDEX job_kept (kept_until>? AND kept_until<?)"],
    "finished": ["job USING INDEX job_finished (state=? AND finished_at<?)"],
    "finished_in": ["job USING INDEX job_ended (state=? AND queue=? AND finished_at<?)"],
    "oldest_dead": ["job USING INDEX job_ended (state=? AND queue=?)"],
    "overdue": ["job USING INDEX job_lease (lease_until<?)"],
    "cancel_requested": ["job USING INDEX job_cancel_requested (owner=?)"],
    "next_lease": ["job USING INDEX job_lease"],
    "fresh": ["job USING INDEX job_fresh (queue=? AND subject=?)"],
    "oldest": ["job USING INDEX job_oldest (queue=?)"],
    "lowest": ["job USING INDEX job_lowest (queue=?)"],
    "oldest_plain": [
        "job USING INDEX job_ready (queue=? AND lane=? AND rank>? AND rank<?)",
        "job USING INTEGER PRIMARY KEY (rowid=?)",
        "job",
    ],
    "oldest_not_by_age": ["job USING INDEX job_not_by_age (queue=?)"],
    "key": ["key USING PRIMARY KEY (queue=? AND key=?)"],
    "sweep_keys": ["key USING PRIMARY KEY (queue=? AND key=?)", "key USING COVERING INDEX key_until (until<?)"],
    "keys_by_state": [
        "key USING INDEX key_until (until=? AND (queue,key)>(?,?))",
        "job USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "expired_keys": ["key USING COVERING INDEX key_until (until<?)"],
    "open_lanes": ["lane USING INDEX lane_open (queue=? AND cls=? AND (rank,id)>(?,?))"],
    "parked_lanes": ["lane USING INDEX lane_parked (at=? AND queue=? AND (turn,rank,id)>(?,?,?))"],
    "parked_of_class": ["lane USING INDEX lane_held (queue=? AND cls=?)"],
    "gates_with_parked": ["lane USING COVERING INDEX lane_parked (at=? AND queue=?)"],
    "classes_by_turn": ["class USING INDEX class_turn (queue=? AND turn>?)"],
    "opened_rates": ["gate USING COVERING INDEX gate_waking (wake_at>? AND wake_at<?)"],
    "page": ["job USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"],
    "page_dead": ["job USING INDEX job_dead (state=? AND rowid>? AND rowid<?)"],
    "entries": ["log_entry USING PRIMARY KEY (place=? AND entry>?)"],
    "oldest_entries": ["e USING PRIMARY KEY (place=? AND entry=?)", "q USING PRIMARY KEY (name=?)"],
}
SMALL_TABLES = {"queue", "schedule", "log_partition", "progress"}
"""A row a queue, a schedule, a partition of a log or a running job that reports: all of them are what is asked for."""

FOUND = {"half", "page", "idle", "held", "parked", "named", "fallen"}
"""What another part of the statement has found."""

SORTED = {"page_held", "deepest", "classes_of_turn"}
"""For people: of what runs, as few as workers hold, wherever their ids are; and the deepest of all queues, a few names
that are kept while the queues are read once: an index by depth would be written with every job. Classes with the same
turn are ordered by their first jobs: a claim keeps a page of them while it reads them."""


SCANNING = {"mark_all_sheds"}
"""Once, when a queue that has jobs begins to shed."""


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """20,000 jobs of all kinds, in all states."""
    store = SqliteStore(str(tmp_path_factory.mktemp("plans") / "jobs.db"))
    store.put_spec(QueueSpec(name="gated", eligibility=InOrder() & AtMost(5), retention=KeepFor(hours(1))))
    store.put_spec(QueueSpec(name="merging", merge=LatestWins()))
    for number in range(20):
        store.enqueue([Draft("k", key=f"{number}/{i}", delay=i % 2 * 10**9) for i in range(500)])
        store.enqueue([Draft("k", queue="gated", subject=f"s{i % 50}", expires_at=4 * 10**15) for i in range(400)])
        store.enqueue([Draft("k", queue="merging", subject=f"{number}/{i}") for i in range(100)])
    store.backend.session.writer._connection.execute("ANALYZE")
    yield store.backend.session.writer._connection
    store.close()


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    text = statements()[name]
    numbered = [int(number) for number in re.findall(r"\?(\d+)", text)]
    arguments = ["1"] * (max(numbered) if numbered else text.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", arguments)]


@pytest.mark.parametrize("name", SEARCHES)
def test_every_poll_is_served_by_exactly_one_index(connection: sqlite3.Connection, name: str) -> None:
    searches = [step.removeprefix("SEARCH ") for step in plan(connection, name) if step.startswith("SEARCH ")]
    assert searches == SEARCHES[name]


@pytest.mark.parametrize("name", statements())
def test_no_statement_scans_or_sorts(connection: sqlite3.Connection, name: str) -> None:
    for step in plan(connection, name):
        assert "TEMP B-TREE" not in step or name in SORTED
        if step.startswith("SCAN ") and name not in SCANNING:
            table = step.split()[1]
            assert (
                table in {"CONSTANT", "json_each"} | SMALL_TABLES | FOUND
                or "VIRTUAL TABLE" in step
                or "INDEX queue_paced" in step
                or "INDEX class_idle" in step
            ), step


def test_the_next_maintenance_reads_the_front_of_each_index(connection: sqlite3.Connection) -> None:
    steps = " ".join(plan(connection, "next_maintenance"))
    for index in ("job_due", "job_expiring", "job_kept", "gate_waking", "queue_over_dead_limit"):
        assert f"INDEX {index}" in steps


def test_every_statement_has_a_purpose() -> None:
    folder = Path(__file__).parents[2] / "src" / "forebay" / "store" / "sqlite"
    text = "".join((folder / file).read_text("utf-8") for file in ("jobs.sql", "queues.sql", "logs.sql"))
    purposes = re.findall(r"^-- name: \w+\n-- (.+)$", text, re.MULTILINE)
    assert len(purposes) == len(statements())


def test_the_schema_is_its_migrations(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    SqliteStore(str(path)).close()
    ours, bare = sqlite3.connect(path), sqlite3.connect(":memory:")
    for migration in migrations():
        bare.executescript(migration.text)
    schema = "SELECT type, name, sql FROM sqlite_schema WHERE name <> 'migration' ORDER BY type, name"
    assert ours.execute(schema).fetchall() == bare.execute(schema).fetchall()
    applied = ours.execute("SELECT number, name, checksum FROM migration").fetchall()
    assert applied == [(one.number, one.name, one.checksum) for one in migrations()]
    ours.close()
    bare.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("INSERT INTO migration VALUES (999, '0999_future.sql', 'x', 0)", "has schema 999"),
        ("UPDATE migration SET checksum = 'edited'", "is not the one in"),
    ],
)
def test_a_schema_we_do_not_know_is_refused(tmp_path: Path, change: str, reason: str) -> None:
    path = tmp_path / "jobs.db"
    SqliteStore(str(path)).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(change)
    other.close()
    with pytest.raises(Invalid, match=reason):
        SqliteStore(str(path))


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.store.sqlite import migrate

    path = tmp_path / "jobs.db"
    broken = migrate.Migration(2, "0002_broken.sql", "CREATE TABLE fine (x);\nCREATE TABLE fine (x);\n")
    monkeypatch.setattr(migrate, "migrations", lambda: (*migrations(), broken))
    with pytest.raises(Exception, match="fine already exists"):
        SqliteStore(str(path))
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    other.close()
    monkeypatch.undo()
    SqliteStore(str(path)).close()


def test_a_file_of_an_earlier_schema_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.store.sqlite import migrate

    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path))
    store.enqueue([Draft("k")])
    store.close()
    number = len(migrations()) + 1
    later = migrate.Migration(number, f"{number:04}_later.sql", "ALTER TABLE job ADD COLUMN later TEXT;\n")
    monkeypatch.setattr(migrate, "migrations", lambda: (*migrations(), later))
    again = SqliteStore(str(path))
    assert [job.kind for job in again.get([1]) if job is not None] == ["k"]
    again.close()
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT later FROM job").fetchall() == [(None,)]
        assert other.execute("SELECT max(number) FROM migration").fetchone() == (number,)
    other.close()
