"""What is the embedded store's own: its file, its locks, its group commits, its failures and its memory.

The contract is checked in `test_conformance.py`, the schema and the plans in `test_sqlite_schema.py`.
"""

import sqlite3
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from forebay import open_store
from forebay.core.clock import Signal
from forebay.core.errors import Closed, ForebayError, Invalid, KeyConflict, StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.lease import Settled
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, Fair, LatestWins, Priority, Until
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Store, Want
from forebay.store.sqlite import unit_of_work
from forebay.store.sqlite.store import SqliteStore
from forebay.testing.clock import ManualClock
from forebay_proof.conformance.racing import RacingCall, race

LEASE = seconds(60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(path))
    yield store
    store.close()


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """As another process in the middle of a transaction would."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        other.close()


def commits(store: SqliteStore) -> list[str]:
    """Every COMMIT of the writing connection from now on."""
    seen: list[str] = []
    store.backend.session.writer._connection.set_trace_callback(
        lambda text: seen.append(text) if text == "COMMIT" else None
    )
    return seen


def together(store: SqliteStore, calls: list[Callable[[], Any]]) -> list[Any]:
    """The calls share one group commit: none leads before all have arrived."""
    with store.backend.session.writer._busy:
        tasks = [RacingCall(call) for call in calls]
        while store.backend.session.writer.callers.waiting < len(calls):
            pass
    return [_outcome(task) for task in tasks]


def _outcome(task: "RacingCall[Any]") -> Any:
    try:
        return task.result()
    except ForebayError as error:
        return error


def test_a_url_names_a_file_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, file in (
        ("sqlite:///jobs.db", tmp_path / "jobs.db"),
        (f"sqlite:///{tmp_path}/with%20space%3F.db", tmp_path / "with space?.db"),
    ):
        store = open_store(url)
        store.enqueue([Draft("k")])
        store.close()
        assert file.is_file()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://host/jobs.db", "names a host"),
        ("sqlite:///jobs.db?timeout=5", "has options"),
        ("sqlite:///.", "is a directory"),
        ("sqlite:///no/such/jobs.db", "does not exist"),
        ("sqlite:////dev/null", "not a regular file"),
        ("mysql:///jobs", "no store has the scheme"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        open_store(url)


def test_files_are_for_their_owner_only(store: SqliteStore, path: Path) -> None:
    store.enqueue([Draft("k")])
    for file in (path, path.with_name("jobs.db-wal"), path.with_name("jobs.db-shm")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreFailed, match="not a SQLite database"):
        SqliteStore(str(path))
    assert path.read_bytes() == b"not a database at all" * 100


def test_a_damaged_database_is_a_store_failure(path: Path) -> None:
    store = SqliteStore(str(path))
    for _ in range(20):
        store.enqueue([Draft("k", "x" * 500)] * 100)
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(StoreFailed, match="damaged"):  # noqa: PT012
        broken = SqliteStore(str(path))
        try:
            broken.browse(Query(), 0, 1_000)
        finally:
            broken.close()


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(Invalid, match="belongs to another program"):
        SqliteStore(str(path))
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    other.close()


def test_a_file_is_shared_with_an_application_that_says_so(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    SqliteStore(str(path), shared=True).close()
    shared = SqliteStore(str(path))
    assert shared.enqueue([Draft("send")])[0].id == 1
    shared.close()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM theirs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE TABLE queue (x)", "names of the store: queue"),
        ("PRAGMA application_id = 7", "belongs to another program"),
    ],
)
def test_a_file_that_cannot_be_shared_is_left_alone(path: Path, statement: str, reason: str) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(statement)
        before = other.execute("SELECT name FROM sqlite_schema").fetchall()
    with pytest.raises(Invalid, match=reason):
        SqliteStore(str(path), shared=True)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == before


def test_every_answer_is_synced(store: SqliteStore) -> None:
    settings = {
        name: store.backend.session.writer._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "busy_timeout")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 0}


def test_calls_that_meet_share_one_commit(store: SqliteStore) -> None:
    seen = commits(store)
    answers = together(store, [lambda: store.enqueue([Draft("k")])] * 16)
    assert len({receipts[0].id for receipts in answers}) == 16
    assert len(seen) == 1


def test_verdicts_and_the_next_claim_share_one_commit(store: SqliteStore) -> None:
    store.enqueue([Draft("k")] * 20)
    leases = store.claim([Want("default", 10)], "me", seconds(9))
    seen = commits(store)
    answers, following = store.settle_and_claim(
        [(lease, Ack()) for lease in leases], [Want("default", 10)], "me", seconds(9)
    )
    assert (answers, len(following)) == ([Settled.APPLIED] * 10, 10)
    assert len(seen) == 1


def test_a_call_that_fails_harms_no_other_of_its_group(store: SqliteStore) -> None:
    first = store.enqueue([Draft("k", 1, key="x")])[0].id
    good = [lambda: store.enqueue([Draft("k")])] * 5
    bad = [lambda: store.enqueue([Draft("lost"), Draft("k", 2, key="x")])] * 3
    answers = together(store, [*good[:2], *bad, *good[2:]])
    errors = [answer for answer in answers if isinstance(answer, KeyConflict)]
    ids = [answer[0].id for answer in answers if not isinstance(answer, KeyConflict)]
    assert len(errors) == 3
    assert ids == list(range(first + 1, first + 6))
    assert [job.id for job in store.browse(Query(), 0, 100).jobs] == [first, *ids]
    assert store.backlog(["default"])[0].ready == 6


def test_when_the_disk_is_full_nothing_is_acknowledged_and_later_it_goes_on(store: SqliteStore) -> None:
    store.enqueue([Draft("k")])
    writer = store.backend.session.writer._connection
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages + 8}")
    large = [Draft("k", "x" * 100_000)]
    answers = together(store, [lambda: store.enqueue(large)] * 4)
    assert all(isinstance(answer, StoreFailed) for answer in answers)
    assert "disk is full" in str(answers[0])
    assert store.backlog(["default"])[0].ready == 1
    writer.execute("PRAGMA max_page_count = 1000000")
    assert store.enqueue(large)[0].id == 2


class _Refusing:
    """A connection whose commits fail, as those of a dying disk do."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, text: str, *arguments: Any) -> Any:
        if text == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self._connection.execute(text, *arguments)


def test_when_the_commit_fails_everything_in_it_fails(store: SqliteStore) -> None:
    store.put_spec(QueueSpec(name="fair", share=Fair()))
    store.enqueue([Draft("k", queue="fair", tenant=tenant) for tenant in "ab" for _ in range(4)])
    writer = store.backend.session.writer
    real = writer._connection
    writer._connection = _Refusing(real)  # type: ignore[assignment]
    calls = [lambda: store.enqueue([Draft("k")]), lambda: store.claim([Want("fair", 8)], "w", LEASE)]
    answers = together(store, calls)
    assert [type(answer) for answer in answers] == [StoreFailed, StoreFailed]
    writer._connection = real
    assert [backlog.depth for backlog in store.backlog(["default", "fair"])] == [0, 8]
    assert len(store.claim([Want("fair", 8)], "w", LEASE)) == 8


def test_a_writer_waits_for_another_process_and_a_reader_does_not(store: SqliteStore, path: Path) -> None:
    (receipt,) = store.enqueue([Draft("k")])
    with locked(path) as other:
        waiting = RacingCall(lambda: store.enqueue([Draft("k")]))
        assert store.get([receipt.id])[0] is not None
        assert store.backlog(["default"])[0].ready == 1
        assert not waiting.ends_within(0.05)
        other.rollback()
        assert waiting.result()[0].id == receipt.id + 1


def test_a_lock_that_is_not_let_go_is_an_error_and_later_it_goes_on(store: SqliteStore, path: Path) -> None:
    store.backend.session.database._patience = 0.02
    with locked(path), pytest.raises(StoreFailed, match=r"locked by another process for 0\.02 s"):
        store.enqueue([Draft("k")])
    assert store.enqueue([Draft("k")])[0].id == 1


def test_readers_do_not_see_what_is_not_committed(store: SqliteStore, path: Path) -> None:
    with locked(path) as other:
        other.execute("INSERT INTO queue (name, paused_until) VALUES ('q', 7258118400000000)")
        assert store.backlog() == []


def test_opening_twice_at_once_is_fine(path: Path) -> None:
    stores = [store for store in race(8, lambda _: SqliteStore(str(path))) if isinstance(store, SqliteStore)]
    assert len(stores) == 8
    ids = [store.enqueue([Draft("k")])[0].id for store in stores]
    assert ids == list(range(1, 9))
    for store in stores:
        store.close()


def test_two_stores_of_one_file_hand_out_every_job_once(path: Path) -> None:
    stores = [SqliteStore(str(path)) for _ in range(2)]
    ids = [receipt.id for receipt in stores[0].enqueue([Draft("k")] * 200)]

    def work(number: int) -> list[int]:
        got: list[int] = []
        while leases := stores[number % 2].claim([Want("default", 3)], f"w{number}", LEASE):
            got += [lease.job.id for lease in leases]
        return got

    claimed = race(4, work)
    assert sorted(job_id for batch in claimed if isinstance(batch, list) for job_id in batch) == ids
    for store in stores:
        store.close()


def test_a_spec_put_elsewhere_holds_here_at_once(path: Path) -> None:
    here, there = SqliteStore(str(path)), SqliteStore(str(path))
    here.enqueue([Draft("k", priority=1)])
    there.put_spec(QueueSpec(name="default", share=Fair(by="kind")))
    here.enqueue([Draft(kind) for kind in "aabb"])
    leases = here.claim([Want("default", 3, None)], "w", LEASE)
    assert sorted(lease.job.kind for lease in leases) == ["a", "b", "k"]
    here.close()
    there.close()


def test_waiting_notices_other_processes(path: Path) -> None:
    here, there = SqliteStore(str(path)), SqliteStore(str(path))
    waiter = RacingCall(lambda: here.wait(["default"], timedelta(seconds=20)))
    assert not waiter.ends_within(0.05)
    there.enqueue([Draft("k")])
    assert waiter.result(patience=5) is True
    here.close()
    there.close()


def test_a_waiter_polls_the_file_often_while_jobs_come_and_seldom_when_none_do(path: Path) -> None:
    ranges: list[int] = []

    class Passing(ManualClock):
        def wait(self, signal: Signal, duration: int) -> None:
            ranges.append(duration)
            self.advance(duration)

    store = SqliteStore(str(path), clock=Passing())
    assert not store.wait(["default"], timedelta(seconds=1))
    elapsed = list(accumulate(ranges))
    assert max(job_range for job_range, at in zip(ranges, elapsed, strict=True) if at <= 20_000) <= 2_500
    assert max(ranges) == 40_000
    assert len(ranges) < 100
    ranges.clear()
    assert not store.wait(["default"], timedelta(seconds=1))
    assert min(ranges[:-1]) == 40_000, "nothing has changed since"
    store.close()


def test_closing_wakes_waiters_and_refuses_new_ones(store: SqliteStore) -> None:
    waiter = RacingCall(lambda: store.wait(["default"], timedelta(seconds=20)))
    assert not waiter.ends_within(0.05)
    store.close()
    waiter.result(patience=5)
    for verb in (lambda: store.enqueue([Draft("k")]), store.backlog, lambda: store.wait(["q"], timedelta(0))):
        with pytest.raises(Closed):
            verb()
    store.close()


def test_closing_leaves_nothing_of_the_file_in_use(tmp_path: Path) -> None:
    """The last connection to a file removes its log by name: a later store at that path would lose its own."""
    log = tmp_path / "jobs.db-wal"
    for _ in range(5):
        store = SqliteStore(str(tmp_path / "jobs.db"))
        waiters = [RacingCall(partial(store.wait, ["default"], timedelta(seconds=20))) for _ in range(8)]
        assert not waiters[-1].ends_within(0.02)
        assert log.exists()
        store.close()
        assert not log.exists()
        for waiter in waiters:
            waiter.result(patience=5)


def test_closing_while_this_thread_reads_does_not_hang(store: SqliteStore) -> None:
    with store.backend.session.read() as (connection, _):
        started = monotonic()
        store.close()
        assert monotonic() - started < 5
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_removed_jobs_are_remembered_up_to_a_bound(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_of_work, "SETTLE_MEMORY", 50)
    settlements = []
    for _ in range(30):
        store.enqueue([Draft("k")] * 10)
        done = [(lease, Ack()) for lease in store.claim([Want("default", 10)], "w", LEASE)]
        store.settle(done)
        settlements += done
    assert store.settle(settlements[-50:]) == [Settled.APPLIED] * 50
    assert store.settle(settlements[:50]) == [Settled.STALE] * 50
    counts = [
        store.backend.session.writer._connection.execute(f"SELECT count(*) FROM removed_{half}").fetchone()[0]
        for half in (0, 1)
    ]
    assert sum(counts) <= 100


def test_time_never_goes_back_over_a_reopening(path: Path) -> None:
    late = ManualClock(1_800_000_000_000_000)
    store = SqliteStore(str(path), clock=late)
    store.enqueue([Draft("k")])
    store.close()
    early = ManualClock(1_700_000_000_000_000)
    store = SqliteStore(str(path), clock=early)
    start = store.now()
    assert start >= late.now()
    early.advance(5)
    assert store.now() == start + 5
    store.close()


def test_a_process_follows_the_clock_that_is_ahead(path: Path) -> None:
    ahead, behind = ManualClock(1_800_000_000_000_000), ManualClock(1_700_000_000_000_000)
    first, second = SqliteStore(str(path), clock=behind), SqliteStore(str(path), clock=ahead)
    second.enqueue([Draft("k")])
    (lease,) = first.claim([Want("default", 1)], "w", seconds(10))
    assert lease.until >= ahead.now() + 10_000_000
    assert first.overdue(10) == []
    behind.advance(10_000_001)
    assert [late.fence for late in first.overdue(10)] == [lease.fence]
    first.close()
    second.close()


def test_a_gate_that_opens_for_many_lets_all_of_them_in(store: SqliteStore) -> None:
    store.put_spec(QueueSpec(name="q", eligibility=Until("go")))
    ids = [receipt.id for receipt in store.enqueue([Draft("k", queue="q")] * 700)]
    assert store.claim([Want("q", 1_000)], "w", LEASE) == []
    store.set_gate("until/go", 1_000)
    assert store.wait(["q"], timedelta(0)) is True
    got: list[int] = []
    while leases := store.claim([Want("q", 50)], "w", LEASE):
        got += [lease.job.id for lease in leases]
    assert got == ids


def test_a_flood_of_expired_jobs_is_buried_in_steps_and_never_handed_out(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(str(path), clock=clock)
    for _ in range(6):
        store.enqueue([Draft("late", expires_at=clock.now() + 10)] * 1_000)
    good = store.enqueue([Draft("good")])[0].id
    clock.advance(10)
    claims = [store.claim([Want("default", 5)], "w", LEASE) for _ in range(3)]
    assert [lease.job.id for leases in claims for lease in leases] == [good]
    assert store.backlog(["default"])[0].dead == 6_000
    store.close()


def test_an_interrupted_leader_wakes_the_others(store: SqliteStore) -> None:
    def interrupted(_: unit_of_work.UnitOfWork) -> None:
        raise KeyboardInterrupt

    calls: list[Callable[[], Any]] = [
        lambda: store.backend.session.write(interrupted),
        lambda: store.enqueue([Draft("k")]),
    ]
    with store.backend.session.writer._busy:
        tasks = [RacingCall(call) for call in calls]
        while store.backend.session.writer.callers.waiting < len(calls):
            pass
    errors = []
    for task in tasks:
        with pytest.raises((KeyboardInterrupt, StoreFailed)) as caught:
            task.result()
        errors.append(type(caught.value))
    assert sorted(error.__name__ for error in errors) == ["KeyboardInterrupt", "StoreFailed"]
    assert store.enqueue([Draft("k")])[0].id == 1


def test_ids_are_never_used_again(path: Path) -> None:
    store = SqliteStore(str(path))
    (receipt,) = store.enqueue([Draft("k")])
    store.cancel([receipt.id])
    store.close()
    store = SqliteStore(str(path))
    assert store.enqueue([Draft("k")])[0].id == receipt.id + 1
    store.close()


def test_newer_work_moves_its_lane_ahead_of_more_than_one_page_of_others(store: SqliteStore) -> None:
    gates = AtMost(1, per="tenant")
    store.put_spec(QueueSpec(name="q", selection=Priority(), merge=LatestWins(), eligibility=gates))
    store.enqueue([Draft("k", queue="q", tenant=f"t{number}", subject=f"s{number}") for number in range(40)])
    (receipt,) = store.enqueue([Draft("k", queue="q", tenant="t39", subject="s39", priority=5)])
    assert receipt.merged
    assert [lease.job.id for lease in store.claim([Want("q", 1)], "w", LEASE)] == [receipt.id]


def test_a_claim_of_many_lanes_hands_out_each_job_once_and_in_order(store: SqliteStore) -> None:
    """More lanes than a page of lanes has, and more jobs in each than a page of jobs."""
    store.put_spec(QueueSpec(name="q", eligibility=AtMost(100, per="tenant")))
    drafts = [Draft("k", queue="q", tenant=f"t{number % 50}") for number in range(600)]
    ids = [receipt.id for receipt in store.enqueue(drafts)]
    got: list[int] = []
    for size in (1, 7, 20, 300, 300):
        got += [lease.job.id for lease in store.claim([Want("q", size)], "w", LEASE)]
    assert got == ids


def test_classes_with_equal_turns_share_though_they_are_more_than_a_page(store: SqliteStore) -> None:
    store.put_spec(QueueSpec(name="q", share=Fair()))
    for _ in range(4):
        store.enqueue([Draft("k", queue="q", tenant=f"t{number}") for number in range(300)])
    served: Counter[str | None] = Counter()
    for _ in range(9):
        served.update(lease.job.tenant for lease in store.claim([Want("q", 100)], "w", LEASE))
    assert set(served.values()) == {3}


@pytest.mark.parametrize("weights", [{}, {"t3": 2, "t17": 5, "t40": 3}])
@pytest.mark.parametrize("seed", range(4))
def test_more_classes_than_a_page_start_in_the_order_of_memory(
    store: SqliteStore, seed: int, weights: dict[str, int]
) -> None:
    """With the same turn the class with the first job is next, wherever its name is; one of them has no name."""
    random = Random(seed)
    stores: list[Store] = [store, MemoryStore(clock=ManualClock())]
    for each in stores:
        each.put_spec(QueueSpec(name="q", share=Fair(weights=weights)))
    tenants = [None if number == 0 else f"t{number}" for number in range(50)]
    for _ in range(6):
        drafts = [Draft("k", queue="q", tenant=tenant) for tenant in random.sample(tenants, 40)]
        for each in stores:
            each.enqueue(drafts)
        count = random.randrange(1, 40)
        started, expected = ([lease.job.id for lease in each.claim([Want("q", count)], "w", LEASE)] for each in stores)
        assert started == expected
