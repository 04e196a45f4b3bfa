"""Jobs and rows of SQLAlchemy's sessions commit together: in one Postgres database, and elsewhere after the commit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from forebay import Context, Forebay, Invalid, State
from forebay.client import JobType
from forebay.contrib.sqlalchemy import aenqueue_with, enqueue_with
from forebay.transactions import database_of
from forebay.work.worker import Worker
from forebay_proof.servers.postgres import PostgresServer

Send = JobType[[str], None]


def send_on(url: str) -> Send:
    fb = Forebay(url)

    @fb.job
    def send(to: str) -> None: ...

    fb.backlog()
    return send


def sent(send: Send) -> list[str]:
    return sorted(str(job.payload["to"]) for job in send.app.jobs() if isinstance(job.payload, dict))


@pytest.fixture
def send(tmp_path: Path) -> Iterator[Send]:
    made = send_on(f"sqlite:///{tmp_path}/jobs.db")
    yield made
    made.app.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/shop.db")
    yield made
    made.dispose()


def test_elsewhere_jobs_follow_the_commit(send: Send, engine: Engine) -> None:
    with Session(engine) as session:
        assert enqueue_with(session, send, "ann") is None
        assert enqueue_with(session, send.using(priority=5), "bob") is None
        assert sent(send) == []
        session.commit()
        assert sent(send) == ["ann", "bob"]
        session.commit()
        enqueue_with(session, send, "cid")
        session.rollback()
        session.commit()
    assert sent(send) == ["ann", "bob"]


def test_elsewhere_a_savepoint_takes_its_jobs_with_it(send: Send, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        enqueue_with(session, send, "outside")
        kept = session.begin_nested()
        enqueue_with(session, send, "kept")
        undone = session.begin_nested()
        enqueue_with(session, send, "undone")
        undone.rollback()
        kept.commit()
        assert sent(send) == [], "a savepoint that is released is not the commit"
        lost = session.begin_nested()
        with session.begin_nested():
            enqueue_with(session, send, "inside what is undone")
        lost.rollback()
    assert sent(send) == ["kept", "outside"]


def test_elsewhere_a_session_that_is_closed_leaves_nothing(send: Send, engine: Engine) -> None:
    with Session(engine) as session:
        enqueue_with(session, send, "ann")
    with session.begin():
        session.execute(text("SELECT 1"))
    assert sent(send) == []


def test_a_wrong_call_is_an_error_before_the_commit(send: Send, engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(Invalid):
        enqueue_with(session, send, 5)  # type: ignore[arg-type]


def test_scoped_sessions(send: Send, engine: Engine) -> None:
    scoped = scoped_session(sessionmaker(engine))
    enqueue_with(scoped, send, "ann")
    scoped.commit()
    scoped.remove()
    assert sent(send) == ["ann"]


def test_in_one_database_a_job_is_part_of_the_transaction(postgres_url: str) -> None:
    send = send_on(postgres_url)
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        job_id = enqueue_with(session, send, "ann")
        assert job_id is not None
        assert send.app.get(job_id) is None
        session.commit()
        assert send.app.get(job_id) is not None
        enqueue_with(session, send, "bob")
        session.rollback()
    assert sent(send) == ["ann"]
    engine.dispose()
    send.app.close()


def test_another_database_of_the_same_server_is_elsewhere(postgres_url: str, postgres: PostgresServer) -> None:
    other = postgres.create_database()
    send = send_on(postgres_url)
    neighbour = Forebay(other)
    neighbour.backlog()
    engine = create_engine(other.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        assert enqueue_with(session, send, "ann") is None
        assert sent(send) == []
        session.commit()
        enqueue_with(session, send, "bob")
        session.rollback()
    assert sent(send) == ["ann"]
    assert list(neighbour.jobs()) == [], "a store that happens to be in the session's database"
    engine.dispose()
    send.app.close()
    neighbour.close()
    postgres.drop_database(other)


@pytest.mark.parametrize(
    ("store", "session", "joins"),
    [
        ("postgresql://db/shop", "postgresql+psycopg://app:s%40fe@DB:5432/shop", True),
        ("postgres://localhost/shop", "postgresql+asyncpg://127.0.0.1/shop", True),
        ("postgresql://db/shop", "postgresql+psycopg://other/shop", False),
        ("postgresql://db/shop", "postgresql+psycopg://db:5433/shop", False),
        ("postgresql://db/shop", "postgresql+psycopg://db/shop2", False),
        ("postgresql:///shop?host=/run/pg", "postgresql+psycopg:///shop?host=/run/pg", True),
        ("postgresql:///shop?host=/run/pg", "postgresql+psycopg:///shop?host=/run/other", False),
        ("postgresql://a,b:5433/shop", "postgresql+psycopg:///shop?host=a:5432&host=b:5433", True),
        ("postgresql://a,b:5433/shop", "postgresql+psycopg:///shop?host=a,b&port=5432,5433", True),
        ("postgresql://a,b/shop", "postgresql+psycopg:///shop?host=a&host=c", False),
        ("sqlite:///shop", "postgresql+psycopg:///shop", False),
    ],
)
def test_a_session_joins_the_database_of_the_store_alone(store: str, session: str, joins: bool) -> None:
    engine = make_url(session)
    assert (database_of(store) == database_of(engine.render_as_string(hide_password=False)) is not None) is joins


def test_in_one_sqlite_file_a_job_is_part_of_the_transaction(send: Send, engine: Engine, tmp_path: Path) -> None:
    own = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    with Session(own) as session:
        job_id = enqueue_with(session, send, "ann")
        assert job_id is not None
        assert send.app.get(job_id) is None
        session.commit()
        assert send.app.get(job_id) is not None
        enqueue_with(session, send, "bob")
        session.rollback()
        assert sent(send) == ["ann"]
        with session.begin(), session.begin_nested() as savepoint:
            enqueue_with(session, send, "cid")
            savepoint.rollback()
    assert sent(send) == ["ann"]
    own.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("store", ["the same database", "elsewhere"])
def test_async_sessions(driver: str, store: str, postgres_url: str, tmp_path: Path) -> None:
    same = store == "the same database"
    send = send_on(postgres_url if same else f"sqlite:///{tmp_path}/jobs.db")

    async def main() -> None:
        engine = create_async_engine(postgres_url.replace("postgresql://", f"postgresql+{driver}://"))
        async with AsyncSession(engine) as session:
            job_id = await aenqueue_with(session, send, "ann")
            assert (job_id is not None) is same
            await session.execute(text("SELECT 1"))
            assert sent(send) == []
            await session.commit()
            assert sent(send) == ["ann"]
            await aenqueue_with(session, send, "bob")
            await session.rollback()
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    assert sent(send) == ["ann"]
    send.app.close()


def test_a_handler_ends_its_job_in_its_own_session(postgres_url: str) -> None:
    fb = Forebay(postgres_url)
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (name text)"))
    settled: list[bool] = []

    @fb.job(max_attempts=1)
    def charge(name: str, ctx: Context) -> None:
        with Session(engine) as session:
            session.execute(text("INSERT INTO paid VALUES (:name)"), {"name": name})
            committed = ctx.settle_in(session.connection().connection.driver_connection)
            if name == "broken":
                raise RuntimeError
            session.commit()
        committed()
        settled.append(ctx.settled)

    ids = [fb.enqueue("charge", {"name": name}).id for name in ("whole", "broken")]
    worker = Worker(fb)
    worker.start()
    jobs = [fb.wait_for(job_id, 20) for job_id in ids]
    worker.drain(5)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM paid")).scalars().all() == ["whole"]
    assert settled == [True]
    assert (jobs[0], jobs[1] and jobs[1].state) == (None, State.DEAD)
    engine.dispose()
    fb.close()
