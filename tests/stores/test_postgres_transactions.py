"""Enqueueing in the caller's own transaction, with every driver that is supported, against a real server.

Committed means claimed by a worker, rolled back means never seen; keys hold inside a transaction and across them. Each
test runs with all drivers (`drivers.py`), plain SQL among them.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest

from forebay import Draft, Invalid, Job, KeyConflict, QueueSpec, State, Store, Want, open_store
from forebay.client import Forebay
from forebay.core.errors import BatchTooLarge, Unsupported, WrongQueueKind
from forebay.core.policy import AtMost, InOrder, Priority, Retained
from forebay.store.protocol import Query
from forebay.transactions import aenqueue_in, enqueue_in
from forebay_proof.servers.pgbouncer import PgBouncer
from tests.stores.drivers import WAYS, Call, Way

SECOND = timedelta(seconds=1)


@pytest.fixture
def url(cleared_url: str) -> str:
    with psycopg.connect(cleared_url) as connection:
        connection.execute("DROP TABLE IF EXISTS orders")
        connection.execute("CREATE TABLE orders (name text)")
    return cleared_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


def orders(url: str) -> int:
    with psycopg.connect(url) as connection:
        return len(connection.execute("SELECT FROM orders").fetchall())


def jobs(store: Store) -> list[Job]:
    return store.browse(Query(), 0, 1_000).jobs


def claimed(store: Store, queue: str = "default") -> list[int]:
    return [lease.job.id for lease in store.claim([Want(queue, 100)], "me", 10 * SECOND)]


def test_what_is_committed_is_claimed(way: Way, url: str, store: Store) -> None:
    ids = way(url, [Call({"to": "ada"}), Call({"to": "bob"})], True)
    assert orders(url) == 1
    assert claimed(store) == ids
    assert [(job.kind, job.payload) for job in jobs(store)] == [("send", {"to": "ada"}), ("send", {"to": "bob"})]


def test_what_is_rolled_back_was_never_there(way: Way, url: str, store: Store) -> None:
    way(url, [Call({"to": "ada"}), Call({"to": "bob"}, {"key": "k"}), Call(None, {"delay": 60})], False)
    assert orders(url) == 0
    assert jobs(store) == []
    assert claimed(store) == []
    [again] = way(url, [Call({"to": "eve"}, {"key": "k"})], True)
    assert claimed(store) == [again], "the key went with the job that was rolled back"


def test_a_key_is_one_job_inside_a_transaction_and_across_them(way: Way, url: str, store: Store) -> None:
    call = Call({"to": "ada", "n": 1}, {"key": "k"})
    first, second = way(url, [call, call], True)
    assert first == second
    assert way(url, [Call({"n": 1, "to": "ada"}, {"key": "k"})], True) == [first]
    assert [job.id for job in jobs(store)] == [first]


def test_a_key_means_the_same_in_a_transaction_and_outside(way: Way, url: str, store: Store) -> None:
    inside = way(url, [Call({"to": "ada"}, {"key": "a"})], True)
    outside = store.enqueue([Draft("send", {"to": "ada"}, key="a")])[0]
    assert (inside, outside.duplicate) == ([outside.id], True)
    first = store.enqueue([Draft("send", {"to": "ada"}, key="b")])[0]
    assert way(url, [Call({"to": "ada"}, {"key": "b"})], True) == [first.id]
    assert len(jobs(store)) == 2


def test_a_delay_is_kept(way: Way, url: str, store: Store) -> None:
    way(url, [Call(None, {"delay": 60})], True)
    [job] = jobs(store)
    assert (job.state, job.due_at - job.enqueued_at) == (State.WAITING, 60_000_000)


def test_workers_are_woken_by_the_commit(way: Way, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN forebay")
        way(url, [Call(), Call()], False)
        way(url, [Call(), Call()], True)
        assert [notice.payload for notice in listener.notifies(timeout=5, stop_after=1)] == ["default"]
        assert list(listener.notifies(timeout=0.1)) == []


def test_every_setting_arrives(url: str, store: Store) -> None:
    app = Forebay(url)

    @app.job(queue="mail", max_attempts=3)
    def send(to: str, copies: int = 1) -> None: ...

    store.put_spec(QueueSpec(name="mail", selection=Priority()))
    soon = datetime(2100, 1, 1, tzinfo=UTC)
    settings: dict[str, Any] = {
        "priority": 7,
        "deadline": soon,
        "expires_at": soon,
        "key": "k'\\",
        "tenant": "acme",
        "subject": "ünïcode",
        "meta": {"trace": "1"},
    }
    with psycopg.connect(url) as connection:
        job_id = send.using(**settings).enqueue_in(connection, "ada", copies=2)
    [lease] = store.claim([Want("mail", 5)], "me", SECOND)
    job = lease.job
    assert (job.id, job.queue, job.max_attempts, job.payload) == (job_id, "mail", 3, {"to": "ada", "copies": 2})
    assert (job.priority, job.key, job.tenant, job.subject, job.meta) == (7, "k'\\", "acme", "ünïcode", {"trace": "1"})
    assert job.deadline == job.expires_at == int(soon.timestamp()) * 1_000_000
    with psycopg.connect(url) as connection:
        send.using(run_at=soon).enqueue_in(connection, "ada")
    store.promote(1)
    assert [each.due_at for each in jobs(store) if each.id != job_id] == [job.deadline]


def test_queues_with_rules_take_the_job_in(url: str, store: Store) -> None:
    """Gates and priorities are core's business: the next process that reads it places the job."""
    store.put_spec(QueueSpec(name="capped", eligibility=AtMost(1), selection=Priority()))
    app = Forebay(url)
    with psycopg.connect(url) as connection:
        low = app.enqueue_in(connection, "k", queue="capped")
        high = app.enqueue_in(connection, "k", queue="capped", priority=5)
        assert claimed(store, "capped") == []
    first = claimed(store, "capped")
    assert len(first) == 1
    assert {job.id for job in jobs(store)} == {low, high}


def test_a_job_put_by_sql_keeps_its_place_in_its_line(url: str, store: Store) -> None:
    """It has its id when it is put, and is taken in after one that came later."""
    store.put_spec(QueueSpec(name="ordered", eligibility=InOrder()))
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT forebay.enqueue('k', queue => 'ordered', subject => 's')").fetchall()
    store.enqueue([Draft("k", queue="ordered", subject="s")])
    assert claimed(store, "ordered") == [found[0][0]]


def test_a_log_is_not_a_queue(url: str, store: Store) -> None:
    store.put_spec(QueueSpec(name="events", retention=Retained()))
    with psycopg.connect(url) as connection, pytest.raises(WrongQueueKind, match="events"):
        Forebay(url).enqueue_in(connection, "k", queue="events")


@pytest.mark.parametrize("other", [{"to": "bob"}, None])
def test_a_key_with_another_payload_is_a_conflict(url: str, store: Store, other: object) -> None:
    app = Forebay(url)
    first = app.enqueue("send", {"to": "ada"}, key="it's")
    app.close()
    with psycopg.connect(url) as connection, pytest.raises(KeyConflict) as conflict:
        app.enqueue_in(connection, "send", other, key="it's")
    assert (conflict.value.key, conflict.value.queue, conflict.value.job_id) == ("it's", "default", first.id)

    async def produce() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await app.aenqueue_in(connection, "send", other, key="it's")

    with pytest.raises(KeyConflict):
        asyncio.run(produce())
    assert [job.payload for job in jobs(store)] == [{"to": "ada"}]


def test_of_many_transactions_with_one_key_one_makes_the_job(url: str, store: Store) -> None:
    app, start = Forebay(url), Barrier(8)

    def produce(number: int) -> int:
        with psycopg.connect(url) as connection:
            start.wait()
            found = app.enqueue_in(connection, "send", None, key="k")
            if number % 4 == 0:
                connection.rollback()
            return found

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(produce, range(8)))
    [job] = jobs(store)
    assert {found for number, found in enumerate(ids) if number % 4} == {job.id}


def test_a_batch_goes_in_one_statement_and_in_order(url: str, store: Store) -> None:
    drafts = [Draft("k", number, queue="a" if number % 2 else "b") for number in range(1_000)]
    with psycopg.connect(url) as connection:
        ids = enqueue_in(connection, drafts)
        assert enqueue_in(connection, []) == []
        with pytest.raises(BatchTooLarge):
            enqueue_in(connection, drafts * 2)
    assert [job.payload for job in store.get(ids) if job] == list(range(1_000))


def test_no_worker_is_notified_when_that_is_not_wanted(url: str) -> None:
    app = Forebay(url)

    @app.job
    def send() -> None: ...

    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN forebay")
        with psycopg.connect(url) as connection:
            app.enqueue_in(connection, "k", notify=False)
            send.using(notify=False).enqueue_in(connection)
        assert list(listener.notifies(timeout=0.2)) == []


def test_a_worker_that_sleeps_wakes_up_at_the_commit(url: str, store: Store) -> None:
    with ThreadPoolExecutor(1) as threads:
        assert not store.wait(["default"], timedelta(milliseconds=200))
        sleeper = threads.submit(store.wait, ["default"], timedelta(seconds=30))
        with psycopg.connect(url) as connection:
            Forebay(url).enqueue_in(connection, "k")
        assert sleeper.result(20)


def test_a_wrong_call_is_refused_where_it_is_written_and_costs_nothing(url: str, store: Store) -> None:
    app = Forebay(url)

    @app.job
    def send(to: str) -> None: ...

    with psycopg.connect(url) as connection:
        with pytest.raises(Invalid):
            send.enqueue_in(connection)  # type: ignore[call-arg]
        with pytest.raises(Invalid):
            send.using(priority="high").enqueue_in(connection, "ada")  # type: ignore[arg-type]
        job_id = send.enqueue_in(connection, "ada")
    assert claimed(store) == [job_id], "the transaction went on"


@pytest.mark.parametrize("wrong", [None, "postgresql://somewhere/db", object()])
def test_what_is_no_connection_is_refused_with_what_would_be_one(wrong: object) -> None:
    app = Forebay("postgresql://nowhere/db")
    with pytest.raises(Invalid, match="psycopg, a Connection or Session of SQLAlchemy"):
        app.enqueue_in(wrong, "k")
    with pytest.raises(Invalid, match="asyncpg"):
        asyncio.run(app.aenqueue_in(wrong, "k"))


def test_the_other_colour_is_named(url: str) -> None:
    app = Forebay(url)
    with psycopg.connect(url) as connection, pytest.raises(Invalid, match="not asynchronous; call enqueue_in"):
        asyncio.run(app.aenqueue_in(connection, "k"))

    async def produce() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            app.enqueue_in(connection, "k")

    with pytest.raises(Invalid, match="is asynchronous; await aenqueue_in"):
        asyncio.run(produce())


@pytest.mark.parametrize("store_url", ["memory://", "redis://nowhere"])
def test_other_stores_have_no_transactions_to_share(store_url: str, url: str) -> None:
    app = Forebay(store_url)

    @app.job
    def send() -> None: ...

    with psycopg.connect(url) as connection:
        with pytest.raises(Unsupported, match="postgresql://"):
            send.enqueue_in(connection)
        with pytest.raises(Unsupported, match="after the commit"):
            app.enqueue_in(connection, "k")
    with pytest.raises(Unsupported):
        asyncio.run(send.aenqueue_in(None))
    with pytest.raises(Unsupported):
        asyncio.run(app.aenqueue_in(None, "k"))


def test_another_kind_of_database_is_refused() -> None:
    from sqlalchemy import create_engine

    app, engine = Forebay("postgresql://nowhere/db"), create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(Invalid, match="leads to the SQLite file ''"):
        app.enqueue_in(connection, "k")
    engine.dispose()


def test_a_database_without_our_schema_is_named(postgres_url: str) -> None:
    from sqlalchemy import create_engine

    app = Forebay(postgres_url)
    with psycopg.connect(postgres_url) as connection, pytest.raises(Invalid, match="no schema forebay"):
        app.enqueue_in(connection, "k")
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as other, pytest.raises(Invalid, match="forebay migrate"):
        app.enqueue_in(other, "k")
    engine.dispose()


def test_an_error_of_the_driver_stays_what_it_is(url: str) -> None:
    app = Forebay(url)
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT FROM nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            app.enqueue_in(connection, "k")


def test_an_asynchronous_batch(url: str, store: Store) -> None:
    async def produce() -> list[int]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            return await aenqueue_in(connection, [Draft("k", 1), Draft("k", 2)])

    ids = asyncio.run(produce())
    assert claimed(store) == ids


def test_the_rights_that_the_page_names_are_enough(url: str, store: Store) -> None:
    store.put_spec(QueueSpec(name="ranked", selection=Priority()))
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS producer")
        owner.execute("CREATE ROLE producer")
        owner.execute(
            "GRANT USAGE ON SCHEMA forebay TO producer; GRANT USAGE ON SEQUENCE forebay.job_id TO producer;"
            "GRANT SELECT ON forebay.queue, forebay.ledger_rule TO producer;"
            "GRANT INSERT ON forebay.run, forebay.inbox, forebay.ledger TO producer;"
            "GRANT SELECT, INSERT, UPDATE ON forebay.key TO producer"
        )
        with psycopg.connect(url) as connection:
            connection.execute("SET ROLE producer")
            ids = enqueue_in(connection, [Draft("k"), Draft("k", key="a"), Draft("k", key="a")])
            enqueue_in(connection, [Draft("k", queue="ranked", priority=3)])
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT FROM forebay.run")
        with psycopg.connect(url) as connection:
            connection.execute("SET ROLE producer")
            assert enqueue_in(connection, [Draft("k", key="b"), Draft("k")])
        owner.execute("DROP OWNED BY producer; DROP ROLE producer")
    assert len(set(ids)) == 2
    assert len(claimed(store)) == 2


def test_a_pooler_in_transaction_mode_is_as_good(url: str, store: Store, pgbouncer: PgBouncer) -> None:
    pooled = pgbouncer.url(url)
    for name in ("psycopg_connection", "psycopg_async", "sqlalchemy_session", "plain_sql"):
        WAYS[name](pooled, [Call(name), Call(name)], False)
        ids = WAYS[name](pooled, [Call(name)], True)
        assert claimed(store) == ids


def test_a_job_that_another_process_takes_in_can_be_found(url: str, store: Store) -> None:
    """It is moved out of the inbox in one transaction, which is not visible before its commit."""
    store.put_spec(QueueSpec(name="capped", eligibility=AtMost(1)))
    with psycopg.connect(url) as connection:
        (job_id,) = enqueue_in(connection, [Draft("mail", queue="capped")])
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as threads:
        assert other.execute("DELETE FROM forebay.inbox").rowcount == 1
        found = threads.submit(store.get, [job_id])
        with psycopg.connect(url, autocommit=True) as looking:
            while looking.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount == 0 and not found.done():
                pass
        other.rollback()
        (job,) = found.result()
    assert job is not None
    assert job.state is State.READY
