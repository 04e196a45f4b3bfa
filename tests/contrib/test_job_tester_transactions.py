"""Under a `JobTester` an enqueue in a transaction is in the tester's store after the commit, and never in the real one.

Sessions of SQLAlchemy and connections of Django call back after their commit. A connection of a driver does not, and is
refused.
"""

import asyncio
import sqlite3
import unittest
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from forebay import Context, Forebay, State
from forebay.client import JobType
from forebay.contrib.django import app
from forebay.contrib.sqlalchemy import aenqueue_with, enqueue_with
from forebay.core.errors import Unsupported
from forebay.testing import JobTester
from tests.contrib.shop import tasks
from tests.contrib.shop.models import Order
from tests.contrib.task_api import TaskResultStatus

PROJECTS = pytest.mark.parametrize("where", ["project", "one_file_project", "postgres_project"])


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def send(url: str) -> Iterator[JobType[[str], None]]:
    """A job of an app with a real store, in which no job may be."""
    fb = Forebay(url)

    @fb.job
    def send(to: str) -> None: ...

    fb.backlog()
    yield send
    assert list(fb.jobs()) == []
    fb.close()


def test_a_session_enqueues_into_the_tester_at_its_commit(url: str, send: JobType[[str], None]) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with JobTester(send.app) as jobs:
        with Session(engine) as session:
            assert enqueue_with(session, send, "ann") is None
            assert jobs.run_all() == 0
            session.commit()
            assert jobs.run_all() == 1
            enqueue_with(session, send, "bob")
            session.rollback()
            with session.begin_nested() as savepoint:
                enqueue_with(session, send, "cid")
                savepoint.rollback()
            session.commit()
        assert jobs.run_all() == 0
        jobs.assert_enqueued("send", 1, to="ann")
    engine.dispose()


def test_an_async_session_does_too(postgres_url: str) -> None:
    fb = Forebay(postgres_url)

    @fb.job
    def send(to: str) -> None: ...

    fb.backlog()

    async def test() -> None:
        engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
        with JobTester(fb) as jobs:
            async with AsyncSession(engine) as session:
                assert await aenqueue_with(session, send, "ann") is None
                assert jobs.enqueued() == []
                await session.commit()
                jobs.assert_enqueued("send", 1, to="ann")
                with pytest.raises(Unsupported, match=r"AsyncSession.*enqueue_with"):
                    await send.aenqueue_in(session, "bob")
        await engine.dispose()

    asyncio.run(test())
    assert list(fb.jobs()) == []
    fb.close()


def test_a_connection_without_a_hook_is_refused(url: str, send: JobType[[str], None]) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    path = url.removeprefix("sqlite:///")
    connected: Any = psycopg.connect(url) if url.startswith("postgres") else sqlite3.connect(path)
    with JobTester(send.app) as jobs, closing(connected) as driver, engine.begin() as core, Session(engine) as session:
        for given in (driver, core, session):
            with pytest.raises(
                Unsupported, match=r"a JobTester does not support .*enqueue_with\(session, …\).*real store"
            ):
                send.enqueue_in(given, "ann")
        assert jobs.enqueued() == []
    engine.dispose()


def test_a_handler_ends_its_job_with_its_own_session(url: str, send: JobType[[str], None]) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    fb, ends = send.app, []

    @fb.job(max_attempts=2, keep_result=True)
    def charge(broken: bool, ctx: Context) -> None:
        ends.append(ctx.attempt)
        with Session(engine) as session:
            committed = ctx.settle_in(session.connection().connection.driver_connection)
            if broken:
                raise RuntimeError("before the commit")
            session.commit()
        committed()
        raise RuntimeError("after the commit")

    with JobTester(fb) as jobs:
        whole, broken = (fb.enqueue("charge", {"broken": broken}) for broken in (False, True))
        jobs.crash_next("charge")
        jobs.advance(minutes=5)
        assert [job and job.state for job in fb.get_all([whole.id, broken.id])] == [State.DONE, State.DEAD]
        assert ends == [1, 1, 2]
    engine.dispose()


def test_a_transaction_of_the_store_needs_postgres(send: JobType[[str], None]) -> None:
    fb = send.app

    @fb.job(max_attempts=1)
    def ship(ctx: Context) -> None:
        with ctx.transaction():
            raise AssertionError

    @fb.job(max_attempts=1)
    async def aship(ctx: Context) -> None:
        async with ctx.transaction():
            raise AssertionError

    with JobTester(fb) as jobs:
        fb.enqueue("ship")
        fb.enqueue("aship")
        jobs.run_all()
        assert [str(error) for error in jobs.errors] == [
            "a JobTester does not support ctx.transaction(); test this with a worker on a Postgres store"
        ] * 2


def passes(case: type[unittest.TestCase]) -> None:
    """Run the tests of a class as a runner of Django does."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun > 0
    assert [text for _, text in (*result.errors, *result.failures)] == []


def real_jobs() -> list[str]:
    with closing(Forebay(app().url)) as fb:
        return [job.kind for job in fb.jobs()]


class InTestCase(TestCase):  # type: ignore[misc] # Django has no types
    __test__ = False

    def test_tasks_run_after_the_commit_that_the_test_calls(self) -> None:
        with JobTester(app()) as jobs:
            with self.captureOnCommitCallbacks(execute=True):
                Order.objects.create(item="tea")
                result = tasks.describe.enqueue("tea")
                assert result.id.startswith("on-commit-")
                assert jobs.run_all() == 0
            jobs.assert_enqueued("tests.contrib.shop.tasks.describe", 1)
            assert jobs.run_all() == 1
            result.refresh()
            assert (result.status, result.return_value["word"]) == (TaskResultStatus.SUCCESSFUL, "tea")

    def test_a_rollback_leaves_nothing(self) -> None:
        with JobTester(app()) as jobs:
            with self.captureOnCommitCallbacks(execute=True):
                with transaction.atomic():
                    tasks.shout.enqueue("lost")
                    transaction.set_rollback(True)
                tasks.shout.enqueue("kept")
            assert [each.args for each in jobs.enqueued()] == [{"args": ["kept"], "kwargs": {}}]

    def test_a_task_sees_the_rows_of_the_test(self) -> None:
        fb = app()

        @fb.job(kind="count_orders", keep_result=True)
        def count_orders() -> int:
            return len(Order.objects.all())

        Order.objects.create(item="tea")
        with JobTester(fb):
            assert count_orders.enqueue().result() == 1


class InTransactionTestCase(TransactionTestCase):  # type: ignore[misc]
    __test__ = False
    available_apps = ("tests.contrib.shop",)

    def test_tasks_run_after_the_commit(self) -> None:
        with JobTester(app()) as jobs:
            with transaction.atomic():
                result = tasks.add.enqueue(1, 2)
                assert jobs.enqueued() == []
            assert jobs.run_all() == 1
            result.refresh()
            assert result.return_value == 3
            with transaction.atomic():
                tasks.add.enqueue(1, 2)
                transaction.set_rollback(True)
            assert jobs.run_all() == 0

    def test_native_jobs_on_the_connection_do_too(self) -> None:
        fb = app()

        @fb.job(kind="note")
        def note(word: str) -> None: ...

        with JobTester(fb) as jobs:
            with transaction.atomic():
                assert note.enqueue_in(connection, "tea") == 0
                with connection.cursor() as cursor:
                    note.enqueue_in(cursor, "cake")
                assert jobs.enqueued() == []
            assert [each.args for each in jobs.enqueued()] == [{"word": "tea"}, {"word": "cake"}]
            note.enqueue_in(connection, "outside")
            jobs.assert_enqueued("note", 1, word="outside")

    def test_a_task_that_commits_its_own_end_is_done_once(self) -> None:
        if connection.vendor == "postgresql":
            with JobTester(app()) as jobs:
                result = tasks.ship.enqueue("tea", broken=False)
                jobs.crash_next(result.task.module_path)
                jobs.run_all()
                result.refresh()
                assert (result.status, result.return_value, Order.objects.count()) == ("SUCCESSFUL", "tea", 1)

    def test_an_async_task_uses_connections_of_its_own(self) -> None:
        with JobTester(app()) as jobs:
            result = tasks.aadd.enqueue(1, 2)
            jobs.run_all()
            assert jobs.errors == []
            result.refresh()
            assert result.return_value == 3

    def test_failing_tasks_are_retried_in_virtual_time(self) -> None:
        with JobTester(app()) as jobs:
            result = tasks.fail.enqueue("no stamps")
            jobs.advance(minutes=5)
            result.refresh()
            assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)

    def test_queues_of_the_settings_are_in_the_tester(self) -> None:
        with JobTester(app()) as jobs:
            assert {"default", "mail"} <= {spec.name for spec in jobs.store.specs()}


@PROJECTS
@pytest.mark.parametrize("case", [InTestCase, InTransactionTestCase])
def test_django(where: str, case: type[unittest.TestCase], request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    passes(case)
    assert real_jobs() == []
