"""The ledger of the SQLite store beside other threads and processes: one order of commits, and it is the offsets'."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from forebay.core.errors import ForebayError, KeyConflict
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Ack
from forebay.store.open import open_ledger
from forebay.store.protocol import Want
from forebay.store.sqlite.store import SqliteStore
from forebay.store.sqlite.unit_of_work import UnitOfWork
from forebay.testing.clock import ManualClock
from forebay_proof.checkers import ledger as violations
from forebay_proof.conformance.racing import race


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(path))
    yield store
    store.close()


def offsets(store: SqliteStore) -> list[int]:
    return [entry.offset for entry in store.ledger(-1, 1_000)]


def test_a_record_that_commits_late_is_not_behind_one_that_was_read(store: SqliteStore, path: Path) -> None:
    """A transaction that is held open has no offset that anyone could pass."""
    other, reader = SqliteStore(str(path)), open_ledger(f"sqlite:///{path}")
    inside, let_go = Event(), Event()

    def hold(unit: UnitOfWork) -> None:
        assert unit.builder is not None
        unit.builder.set_verb("pause", name="held")
        inside.set()
        assert let_go.wait(10)

    holder = Thread(target=lambda: store.backend.session.write(hold))
    holder.start()
    assert inside.wait(10)
    quick = Thread(target=lambda: other.enqueue([Draft("quick")]))
    quick.start()
    for _ in range(20):
        assert reader.ledger(-1, 10) == []
        assert reader.ledger_extent() == (0, 0)
    let_go.set()
    holder.join()
    quick.join()
    assert [(entry.offset, entry.record.verb) for entry in reader.ledger(-1, 10)] == [(0, "pause"), (1, "enqueue")]
    other.close()
    reader.close()


def test_a_call_that_fails_in_a_shared_transaction_takes_no_offset(store: SqliteStore) -> None:
    store.enqueue([Draft("first", key="taken")])

    def enqueue(number: int) -> None:
        drafts = [Draft("new"), Draft("other", key="taken")] if number % 2 else [Draft("new")]
        store.enqueue(drafts)

    answers = race(32, enqueue)
    assert [type(answer) for answer in answers if isinstance(answer, ForebayError)] == [KeyConflict] * 16
    assert offsets(store) == list(range(17))
    assert sum(entry.record.jobs for entry in store.ledger(-1, 1_000)) == 17


def test_a_commit_that_fails_leaves_no_record(store: SqliteStore) -> None:
    def explode(unit: UnitOfWork) -> None:
        assert unit.builder is not None
        unit.builder.set_verb("pause", name="q")
        unit.finish()
        raise RuntimeError("after the record was written")

    with pytest.raises(RuntimeError):
        store.backend.session.write(explode)
    assert store.ledger_extent() == (0, 0)
    store.enqueue([Draft("k")])
    assert offsets(store) == [0]


def test_another_process_sees_a_new_rule_at_its_next_call(store: SqliteStore, path: Path) -> None:
    script = (
        "import sys\n"
        "from forebay import Draft, open_store\n"
        "store = open_store(sys.argv[1])\n"
        "for line in sys.stdin:\n"
        "    store.enqueue([Draft(line.strip())])\n"
        "    print('done', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, f"sqlite:///{path}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        for kind, on in (("one", True), ("two", False), ("three", True)):
            store.put_ledger_rule(LedgerRule(on=on))
            child.stdin.write(f"{kind}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
    finally:
        child.communicate(timeout=30)
    reported = [job_range.kind for entry in store.ledger(-1, 10) for job_range in entry.record.ranges]
    assert reported == ["one", "three"]
    assert offsets(store) == [0, 1, 2, 3]


def test_processes_share_one_row_of_offsets(store: SqliteStore, path: Path) -> None:
    script = (
        "import sys\n"
        "from forebay import Draft, Want, open_store\n"
        "from forebay.core.instant import seconds\n"
        "from forebay.core.outcome import Ack\n"
        "store = open_store(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    store.enqueue([Draft('k'), Draft('k')])\n"
        "    store.settle([(one, Ack()) for one in store.claim([Want('default', 2)], sys.argv[2], seconds(60))])\n"
    )
    url = f"sqlite:///{path}"
    children = [subprocess.Popen([sys.executable, "-c", script, url, f"w{number}"]) for number in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    entries = store.ledger(-1, 1_000)
    assert [entry.offset for entry in entries] == list(range(len(entries)))
    assert violations(entries, drained=True) == []
    assert (
        sum(job_range.n for entry in entries for job_range in entry.record.ranges if job_range.change == "acked") == 120
    )


def test_a_busy_ledger_trims_itself_without_a_promote(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(str(path), clock=clock)
    store.put_ledger_rule(LedgerRule(keep=seconds(10).seconds * 1_000_000))
    for _ in range(300):
        store.enqueue([Draft("k")])
        clock.advance(1_000_000)
    first, following = store.ledger_extent()
    assert following == 300
    assert following - first <= 10 + 64
    with sqlite3.connect(path) as connection:
        held = connection.execute("SELECT min(entry), max(entry), count(*), sum(length(record)) FROM ledger").fetchone()
        (size,) = connection.execute("SELECT ledger_bytes FROM head").fetchone()
    connection.close()
    assert held == (first, 299, 300 - first, size)
    store.close()


def test_a_settle_of_a_lapsed_fence_is_not_recorded(store: SqliteStore) -> None:
    store.enqueue([Draft("k")])
    (lease,) = store.claim([Want("default", 1)], "w", seconds(60))
    store.settle([(lease, Ack())])
    before = store.ledger_extent()
    store.settle([(lease, Ack())])
    assert store.ledger_extent() == before
