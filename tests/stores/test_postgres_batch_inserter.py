"""`BatchInserter` of the Postgres store: calls of many threads share a commit, and each gets its own receipts."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.policy import Priority
from forebay.core.spec import QueueSpec
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Receipt
from forebay.testing.clock import ManualClock
from forebay_proof.bench.lines import files_passed
from forebay_proof.conformance.racing import RacingCall
from tests.stores.tables import Tables
from tests.waiting import eventually


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url)
    yield store
    store.close()


class BlockedInserts:
    """While it is held, a put that has begun cannot end, and the others gather behind it."""

    def __init__(self, store: PostgresStore, tables: Tables) -> None:
        self._store = store
        self._connection = psycopg.connect(tables.url)
        self._connection.execute("LOCK TABLE forebay.run IN EXCLUSIVE MODE")

    def until_waiting(self, count: int) -> None:
        callers = self._store.backend.intake.inserter.callers
        eventually(lambda: callers.waiting == count and callers.led, f"{count} callers wait")

    def let_go(self) -> None:
        self._connection.close()


def commits(tables: Tables) -> int:
    found: int = tables.value("SELECT count(*) FROM forebay.call WHERE first_id > 0")
    return found


def together(store: PostgresStore, tables: Tables, *batches: list[Draft]) -> list[list[Receipt]]:
    """One call that cannot end yet, then these; the answers of these."""
    held = BlockedInserts(store, tables)
    first = RacingCall(lambda: store.enqueue([Draft("first")]))
    held.until_waiting(0)
    tasks = []
    for number, batch in enumerate(batches, 1):
        tasks.append(RacingCall(lambda batch=batch: store.enqueue(batch)))  # type: ignore[misc]
        held.until_waiting(number)
    held.let_go()
    assert [receipt.duplicate for receipt in first.result()] == [False]
    return [task.result() for task in tasks]


def test_calls_that_meet_share_one_commit(store: PostgresStore, tables: Tables) -> None:
    answers = together(store, tables, *[[Draft("k", n)] for n in range(20)])
    assert commits(tables) == 2
    ids = [receipt.id for (receipt,) in answers]
    assert ids == list(range(ids[0], ids[0] + 20))
    jobs = store.get(ids)
    assert [job.payload for job in jobs if job is not None] == list(range(20))
    assert tables.value("SELECT count(*) FROM forebay.run") == 2, "alike jobs of several callers are one run"


def test_every_caller_gets_the_receipts_of_its_own_drafts(store: PostgresStore, tables: Tables) -> None:
    sizes = [1, 3, 2]
    answers = together(store, tables, *[[Draft("k", [size, n]) for n in range(size)] for size in sizes])
    for size, receipts in zip(sizes, answers, strict=True):
        jobs = store.get([receipt.id for receipt in receipts])
        assert [job.payload for job in jobs if job is not None] == [[size, n] for n in range(size)]


def test_a_commit_is_no_larger_than_a_call_may_be(store: PostgresStore, tables: Tables) -> None:
    answers = together(store, tables, *[[Draft("k")] * 600 for _ in range(3)])
    assert commits(tables) == 4
    ids = [receipt.id for receipts in answers for receipt in receipts]
    assert len(set(ids)) == 1_800


def test_callers_of_several_queues_share_a_commit_too(store: PostgresStore, tables: Tables) -> None:
    store.put_spec(QueueSpec(name="ranked", selection=Priority()))
    answers = together(
        store, tables, [Draft("k", queue="ranked", priority=3)], [Draft("k")], [Draft("k", queue="ranked")]
    )
    assert commits(tables) == 2
    queues = [job.queue for receipts in answers for job in store.get([receipts[0].id]) if job is not None]
    assert queues == ["ranked", "default", "ranked"]


def test_a_spec_that_changes_meanwhile_refuses_no_draft(store: PostgresStore, tables: Tables, cleared_url: str) -> None:
    """The function refuses stamps of an old spec; everyone is taken in by the new one."""
    store.enqueue([Draft("k", queue="q")])
    other = PostgresStore(cleared_url)
    other.put_spec(QueueSpec(name="q", selection=Priority()))
    other.close()
    answers = together(store, tables, [Draft("k", queue="q", priority=9)], [Draft("k", queue="q")])
    ranks = tables.execute("SELECT last_id, rank FROM forebay.run WHERE queue = 'q' AND rank <= 0 ORDER BY last_id")
    assert dict(ranks) == {answers[0][0].id: -9, answers[1][0].id: 0}


def test_a_single_job_follows_a_spec_that_another_process_put(store: PostgresStore, tables: Tables) -> None:
    store.enqueue([Draft("k", queue="q")])
    with closing(PostgresStore(tables.url)) as other:
        other.put_spec(QueueSpec(name="q", selection=Priority()))
    (receipt,) = store.enqueue([Draft("k", queue="q", priority=9)])
    assert tables.value(f"SELECT rank FROM forebay.run WHERE last_id = {receipt.id}") == -9


def test_marks_of_transactions_are_swept_with_the_calls(store: PostgresStore, tables: Tables) -> None:
    """Each transaction that writes leaves a mark, for when its commit is in doubt; after ten minutes it is deleted."""
    store.put_spec(QueueSpec(name="q", selection=Priority()))
    store.enqueue([Draft("k")])
    marks = "SELECT count(*) FROM forebay.call WHERE first_id = 0"
    assert tables.value(marks) > 0
    store.promote(1)
    tables.execute("UPDATE forebay.call SET at = 1")
    store.promote(1)
    assert tables.value(f"{marks} AND at = 1") > 0, "it has swept a moment ago"
    store.backend.claims.trimmed_at = 0
    store.promote(1)
    assert tables.value("SELECT count(*) FROM forebay.call WHERE at = 1") == 0


def test_promotions_sweep_calls_as_fast_as_they_come(store: PostgresStore, tables: Tables) -> None:
    """However few jobs each promotes: by a worker's two hundred every half minute the table would grow for good."""
    tables.execute("INSERT INTO forebay.call SELECT gen_random_uuid(), i, 1 FROM generate_series(1, 25000) AS i")
    for _ in range(3):
        store.promote(200)
    assert tables.value("SELECT count(*) FROM forebay.call WHERE at = 1") == 0


def test_a_plain_job_passes_few_files(cleared_url: str) -> None:
    """As of the embedded store, in `tests/unit/test_bench.py`."""
    files = files_passed(cleared_url)
    assert "store/postgres/settling.py" in files
    assert len(files) <= 16, files


def test_a_call_from_within_a_keys_window_finds_the_key_that_a_later_call_could_forget(cleared_url: str) -> None:
    """It read the clock before the window ended, and reached the key after another process had swept it."""
    clock = ManualClock()
    draft = Draft("k", queue="q", key="once")
    with closing(PostgresStore(cleared_url, clock=clock)) as store:
        store.put_spec(QueueSpec(name="q", key_window=seconds(1)))
        (first,) = store.enqueue([draft])
        clock.advance(1_000_000)
        store.enqueue([Draft("k", queue="q", key="other")])
        with closing(PostgresStore(cleared_url, clock=ManualClock(clock.now() - 1))) as slow:
            (late,) = slow.enqueue([draft])
        assert (late.duplicate, late.id) == (True, first.id)
        (fresh,) = store.enqueue([draft])
        assert not fresh.duplicate
