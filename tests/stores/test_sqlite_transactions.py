"""On SQLite, too, jobs are enqueued in the caller's transaction, on the caller's own connection to the store's file."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker

from forebay import Forebay, Invalid, KeyConflict, QueueSpec, State, Store, Want, open_store
from forebay.core.errors import BatchTooLarge, QueueFull, Unsupported, WrongQueueKind
from forebay.core.instant import seconds
from forebay.core.job import Draft, Job
from forebay.core.policy import AtMost, Block, Bounded, InOrder, Priority, Retained
from forebay.store.protocol import Query
from forebay.transactions import aenqueue_in, enqueue_in
from forebay.work.worker import Worker
from tests.waiting import eventually

MINUTE = timedelta(minutes=1)
INSERT = "INSERT INTO orders VALUES ('mine')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def store(url: str, path: Path) -> Iterator[Store]:
    store = open_store(url)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (name text)")
    yield store
    store.close()


def orders(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return len(connection.execute("SELECT name FROM orders").fetchall())


def jobs(store: Store) -> list[Job]:
    return store.browse(Query(), 0, 1_000).jobs


def claimed(store: Store, queue: str = "default") -> list[int]:
    return [lease.job.id for lease in store.claim([Want(queue, 100)], "me", MINUTE)]


class Way(Protocol):
    """One transaction of a driver: a row, then the drafts."""

    def __call__(self, path: Path, drafts: list[Draft], commit: bool) -> list[int]: ...


def by_default(path: Path, drafts: list[Draft], commit: bool) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute(INSERT)
        ids = enqueue_in(connection, drafts)
        connection.commit() if commit else connection.rollback()
    return ids


def drafts_first(path: Path, drafts: list[Draft], commit: bool) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        cursor = connection.execute("SELECT 1")
        ids = enqueue_in(cursor, drafts)
        connection.execute(INSERT)
        connection.commit() if commit else connection.rollback()
    return ids


def begun_by_hand(path: Path, drafts: list[Draft], commit: bool) -> list[int]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = lambda _, row: {"dict": row}
        connection.text_factory = bytes
        connection.execute("BEGIN")
        connection.execute(INSERT)
        ids = enqueue_in(connection, drafts)
        assert connection.execute("SELECT 'a'").fetchone() == {"dict": (b"a",)}, "its settings are as they were"
        connection.execute("COMMIT" if commit else "ROLLBACK")
    return ids


def with_sqlalchemy(path: Path, drafts: list[Draft], commit: bool) -> list[int]:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.execute(text(INSERT))
        ids = enqueue_in(connection, drafts)
        connection.commit() if commit else connection.rollback()
    engine.dispose()
    return ids


def with_sessions(path: Path, drafts: list[Draft], commit: bool) -> list[int]:
    engine = create_engine(f"sqlite:///{path}")
    session = scoped_session(sessionmaker(engine))
    ids = enqueue_in(session, drafts[:1]) + enqueue_in(session(), drafts[1:])
    session.execute(text(INSERT))
    session.commit() if commit else session.rollback()
    session.remove()
    engine.dispose()
    return ids


@pytest.fixture(params=[by_default, drafts_first, begun_by_hand, with_sqlalchemy, with_sessions])
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


def test_what_is_committed_is_claimed(way: Way, path: Path, store: Store) -> None:
    ids = way(path, [Draft("send", {"to": "ada"}), Draft("send", {"to": "bob"}, delay=60_000_000)], True)
    assert orders(path) == 1
    assert [(job.id, job.payload, job.state) for job in jobs(store)] == [
        (ids[0], {"to": "ada"}, State.READY),
        (ids[1], {"to": "bob"}, State.WAITING),
    ]
    assert claimed(store) == ids[:1]
    (backlog,) = store.backlog(["default"])
    assert (backlog.waiting, backlog.ready, backlog.running) == (1, 0, 1)


def test_what_is_rolled_back_was_never_there(way: Way, path: Path, store: Store) -> None:
    first = way(path, [Draft("send", {"to": "ada"}, key="k"), Draft("send")], False)
    assert (orders(path), jobs(store)) == (0, [])
    assert [each.depth for each in store.backlog(["default"])] == [0]
    again = way(path, [Draft("send", {"to": "eve"}, key="k")], True)
    assert (claimed(store), again) == ([first[0]], first[:1]), "neither the key nor the id was taken"


def test_rules_of_the_queue_hold(path: Path, store: Store) -> None:
    store.put_spec(QueueSpec(name="mail", selection=Priority(), eligibility=AtMost(2)))
    store.put_spec(QueueSpec(name="line", eligibility=InOrder(per="subject")))
    store.put_spec(QueueSpec(name="log", retention=Retained(1)))
    with closing(sqlite3.connect(path)) as connection, connection:
        _, high, middle = enqueue_in(connection, [Draft("send", queue="mail", priority=n) for n in (1, 9, 5)])
        line = enqueue_in(connection, [Draft("send", queue="line", subject="a") for _ in range(2)])
        with pytest.raises(WrongQueueKind):
            enqueue_in(connection, [Draft("send", queue="log")])
    assert claimed(store, "mail") == [high, middle]
    assert claimed(store, "line") == line[:1]
    records = store.ledger(0, 100)
    assert [entry.record.verb for entry in records].count("enqueue") == 2


def test_an_error_leaves_the_transaction_as_it_was(path: Path, store: Store) -> None:
    store.put_spec(QueueSpec(name="full", capacity=Bounded(1, Block(timeout=seconds(30)))))
    store.enqueue([Draft("send", {"to": "ada"}, key="k")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(INSERT)
        with pytest.raises(KeyConflict):
            enqueue_in(connection, [Draft("send"), Draft("send", {"to": "eve"}, key="k")])
        with pytest.raises(QueueFull):
            enqueue_in(connection, [Draft("send", queue="full"), Draft("send", queue="full")])
        with pytest.raises(BatchTooLarge):
            enqueue_in(connection, [Draft("send")] * 1_001)
        assert connection.in_transaction
        enqueue_in(connection, [Draft("late")])
    assert orders(path) == 1
    assert [job.kind for job in jobs(store)] == ["send", "late"]


def test_an_error_leaves_no_transaction_where_none_was(path: Path, store: Store) -> None:
    store.enqueue([Draft("send", {"to": "ada"}, key="k")])
    for level in ("DEFERRED", None):
        with closing(sqlite3.connect(path, isolation_level=level)) as connection:
            with pytest.raises(KeyConflict):
                enqueue_in(connection, [Draft("send", {"to": "eve"}, key="k")])
            assert not connection.in_transaction
            store.enqueue([Draft("send")])


def test_a_savepoint_takes_its_jobs_with_it(path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        enqueue_in(connection, [Draft("kept")])
        connection.execute("SAVEPOINT mine")
        enqueue_in(connection, [Draft("undone")])
        connection.execute("ROLLBACK TO mine")
        enqueue_in(connection, [Draft("kept")])
    assert [job.kind for job in jobs(store)] == ["kept", "kept"]
    assert [each.ready for each in store.backlog(["default"])] == [2]


def test_the_store_is_opened_and_read_beside_an_open_transaction(url: str, path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(INSERT)
        enqueue_in(connection, [Draft("send")])
        second = open_store(url)
        assert jobs(second) == []
        second.close()


def test_without_a_transaction_the_job_is_there_at_once(path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ids = enqueue_in(connection, [Draft("send")])
        assert not connection.in_transaction
        assert claimed(store) == ids


def test_the_apps_forms_check_the_call_and_pass_the_layers(url: str, path: Path, store: Store) -> None:
    fb = Forebay(url)
    seen: list[str] = []

    @fb.around_enqueue
    def note(draft: Draft) -> Iterator[None]:
        seen.append(draft.kind)
        yield

    @fb.job
    def send(to: str) -> None: ...

    with closing(sqlite3.connect(path)) as connection, connection:
        with pytest.raises(Invalid):
            send.enqueue_in(connection, 5)  # type: ignore[arg-type]
        ids = [send.enqueue_in(connection, "ada"), fb.enqueue_in(connection, "send", {"to": "bob"}, priority=1)]
    assert [(job.id, job.priority) for job in jobs(store)] == [(ids[0], 0), (ids[1], 1)]
    assert seen == ["send", "send"]
    fb.close()


def test_a_worker_that_waits_notices_the_commit(url: str, path: Path) -> None:
    fb, ran = Forebay(url), threading.Event()

    @fb.job
    def send() -> None:
        ran.set()

    worker = Worker(fb)
    worker.start()
    try:
        eventually(lambda: fb.store.workers("", 10), "the worker is there")
        with closing(sqlite3.connect(path)) as connection, connection:
            send.enqueue_in(connection)
            assert not ran.wait(0.1)
        assert ran.wait(20)
    finally:
        worker.drain(5)
        fb.close()


def test_threads_that_enqueue_in_transactions_beside_a_store(path: Path, store: Store) -> None:
    def run(enqueue: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=lambda: [enqueue() for _ in range(25)])
        thread.start()
        return thread

    def inside() -> None:
        with closing(sqlite3.connect(path, timeout=60, isolation_level="IMMEDIATE")) as connection, connection:
            connection.execute(INSERT)
            enqueue_in(connection, [Draft("send"), Draft("send", delay=60_000_000)])

    threads = [run(inside), run(inside), run(lambda: store.enqueue([Draft("send")]))]
    for thread in threads:
        thread.join()
    assert (orders(path), len({job.id for job in jobs(store)})) == (50, 125)
    (backlog,) = store.backlog(["default"])
    assert (backlog.ready, backlog.waiting) == (75, 50)


def test_a_connection_to_something_else_is_refused(url: str, path: Path, store: Store, tmp_path: Path) -> None:
    fb = Forebay(url)
    with closing(sqlite3.connect(tmp_path / "other.db")) as stranger:
        with pytest.raises(Invalid, match="no tables"):
            enqueue_in(stranger, [Draft("send")])
        with pytest.raises(Invalid, match=r"SQLite file '.*other.db'"):
            fb.enqueue_in(stranger, "send")
        assert not stranger.in_transaction
    with pytest.raises(Invalid, match="NoneType does not lead to the file"):
        fb.enqueue_in(None, "send")
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = lambda _, row: {"dict": row}
        with pytest.raises(Invalid, match=r"call enqueue_in"):
            aenqueue_in(connection, [Draft("send")]).send(None)
        with pytest.raises(Unsupported, match="postgresql:// or sqlite:///"):
            Forebay("memory://").enqueue_in(connection, "send")
        assert enqueue_in(connection, []) == []
        assert fb.enqueue_in(connection, "send") == 1
