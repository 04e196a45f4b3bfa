"""The task backend as an application uses it: enqueue, transactions, results, errors, the context, connections."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings
from django.utils.safestring import mark_safe

from forebay.contrib.django import app
from forebay.contrib.django.api import AnyResult
from forebay.core.errors import BlobMissing, PayloadInvalid, Unsupported
from forebay.core.job import State
from forebay.core.limits import PAYLOAD_BYTES
from forebay.work.options import Options
from forebay.work.worker import Worker
from tests.contrib.shop import tasks
from tests.contrib.shop.models import Order
from tests.contrib.task_api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("project")
BOTH = pytest.mark.parametrize("where", ["project", "postgres_project"])


@contextmanager
def working(**options: Any) -> Iterator[Worker]:
    worker = Worker(app(), Options(queues=("default", "mail"), **options))
    worker.start()
    try:
        yield worker
    finally:
        worker.drain(5)


def ended(result: AnyResult) -> AnyResult:
    """The result once its job has ended."""
    app().wait_for(int(result.id), 20)
    result.refresh()
    return result


def run(result: AnyResult) -> AnyResult:
    with working():
        return ended(result)


@BOTH
def test_a_task_runs_with_its_arguments(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    before = datetime.now(UTC)
    result = tasks.add.enqueue(1, 2, 3, named=4)
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1, 2, 3], {"named": 4})
    assert (result.attempts, result.is_finished, result.started_at) == (0, False, None)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    run(result)
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 10, 1)
    assert result.enqueued_at is not None
    assert result.started_at is not None
    assert result.finished_at is not None
    assert before <= result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.add.get_result(result.id).return_value == 10


@BOTH
def test_async_tasks_use_the_orm_and_close_their_connections(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)

    async def enqueue() -> AnyResult:
        # In a thread of this test: the one that asgiref shares has the connection of the test before.
        async with ThreadSensitiveContext():
            result: AnyResult = await tasks.aadd.aenqueue(2, second=3)
            assert (await tasks.aadd.aget_result(result.id)).status is TaskResultStatus.READY
            await sync_to_async(connections.close_all)()
        return result

    assert run(asyncio.run(enqueue())).return_value == 5


def test_a_failing_task_is_retried_and_keeps_its_errors() -> None:
    seen: list[tuple[str, str]] = []
    receivers = [
        (signal, lambda name=name, task_result=None, **_: seen.append((name, task_result.status.value)))
        for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished))
    ]
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False)
    try:
        result = run(tasks.fail.enqueue("no stamps"))
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert result.errors[0].traceback.endswith("ValueError: no stamps\n")
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert seen == [("enqueued", "READY"), ("started", "RUNNING"), ("started", "RUNNING"), ("finished", "FAILED")]


def test_a_result_that_is_not_json_fails_at_once_and_says_why() -> None:
    result = run(tasks.return_function.enqueue())
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


@BOTH
def test_large_arguments_and_results_are_kept_in_the_blob_store(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue(where)
    text = "ab" * PAYLOAD_BYTES
    with pytest.raises(PayloadInvalid):
        tasks.shout.enqueue(text)
    with override_settings(FOREBAY=settings.FOREBAY | {"BLOBS": f"file://{tmp_path}/blobs"}):
        result = run(tasks.shout.enqueue(text))
        assert (result.status, result.args, result.return_value) == (TaskResultStatus.SUCCESSFUL, [text], text.upper())
        job = app().get(int(result.id))
        assert job is not None
        assert max(len(job.body), len(job.result_body or b"")) < 1_000
        assert {path.stat().st_size for path in (tmp_path / "blobs").glob("*-*/*")} > {len(text) + 2}
    with pytest.raises(BlobMissing, match="this process has no blob store"):
        tasks.shout.get_result(result.id)


def test_arguments_are_plain_json_or_refused() -> None:
    assert tasks.add.enqueue(mark_safe("<b>")).args == ["<b>"]
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.add.enqueue(datetime.now(UTC))
    assert len(list(app().jobs())) == 1


def test_a_task_may_take_its_context() -> None:
    result = run(tasks.describe.enqueue("half"))
    assert result.return_value == {"id": result.id, "attempt": 1, "word": "half"}


def test_priority_queue_key_and_run_after_reach_the_job() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    low = tasks.add.enqueue(1)
    high = tasks.add.using(priority=50).enqueue(2)
    mail = tasks.add.using(queue_name="mail", run_after=later, key="order-1", tenant="acme").enqueue(3)
    assert tasks.add.using(queue_name="mail", key="order-1", run_after=later).enqueue(3).id == mail.id
    job = app().get(int(mail.id))
    assert job is not None
    assert (job.queue, job.state, job.key, job.tenant) == ("mail", State.WAITING, "order-1", "acme")
    assert default_task_backend.get_result(mail.id).task.run_after == later
    from forebay import Want

    leases = app().store.claim([Want("default", 2)], "a test", timedelta(seconds=30))
    assert [lease.job.id for lease in leases] == [int(high.id), int(low.id)]


def test_wrong_tasks_are_refused() -> None:
    with pytest.raises(InvalidTask, match="'nowhere' is not valid"):
        tasks.add.using(queue_name="nowhere")
    with pytest.raises(InvalidTask, match="aware"):
        tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(TaskResultMismatch):
        tasks.describe.get_result(tasks.add.enqueue(1).id)
    for missing in ("123", "x", "9" * 40, "-1", "²"):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(missing)


def test_elsewhere_a_job_waits_for_the_commit() -> None:
    with transaction.atomic():
        Order.objects.create(item="book")
        result = tasks.add.enqueue(1, 2)
        assert result.enqueued_at is None
        assert not list(app().jobs())
        with pytest.raises(TaskResultDoesNotExist, match="has not committed"):
            result.refresh()
    assert run(result).return_value == 3


def rolled_back() -> None:
    tasks.add.enqueue(1, 2)
    raise RuntimeError


def test_elsewhere_a_rollback_leaves_no_job() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        rolled_back()
    assert not list(app().jobs())


@pytest.mark.parametrize("where", ["one_file_project", "postgres_project"])
def test_a_job_is_part_of_a_transaction_in_the_same_database(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    with transaction.atomic():
        kept = tasks.add.enqueue(1, 2)
        assert kept.id.isdigit()
        assert app().get(int(kept.id)) is None
        with pytest.raises(RuntimeError), transaction.atomic():
            rolled_back()
    assert [str(job.id) for job in app().jobs()] == [kept.id]
    assert run(kept).return_value == 3


@pytest.mark.parametrize("broken", [False, True])
def test_an_effect_and_the_end_of_its_job_are_one_commit(postgres_project: None, broken: bool) -> None:
    result = tasks.ship.using(max_attempts=1).enqueue("book", broken)
    with working():
        job = app().wait_for(int(result.id), 20) if not broken else failed_once(int(result.id))
    assert job is not None
    orders = list(Order.objects.values_list("item", "details"))
    if broken:
        assert (orders, job.errors[0].message) == ([], "the lorry broke down")
    else:
        assert (orders, job.state, job.result) == ([("book", {"by": "task"})], State.DONE, "book")


def failed_once(job_id: int) -> Any:
    eventually(lambda: bool((found := app().get(job_id)) and found.errors))
    return app().get(job_id)


def test_a_lost_lease_rolls_the_effect_back(postgres_project: None) -> None:
    from forebay import LeaseLost, Want
    from forebay.contrib.django import ForebayTaskContext
    from forebay.contrib.django.task import result_of
    from forebay.core.outcome import Ack
    from forebay.work.context import Context

    result = tasks.ship.enqueue("book", False)
    store = app().store
    (lease,) = store.claim([Want("default", 1)], "a test", timedelta(seconds=30))
    ctx = Context(lease, None, lambda: store)
    shown = result_of(lease.job, tasks.ship, "default", lease.job.payload)
    context = ForebayTaskContext(task_result=shown, forebay=ctx)
    store.settle([(lease, Ack())])
    with pytest.raises(LeaseLost), context.atomic():
        Order.objects.create(item=result.id)
    assert ctx.lost
    assert not ctx.settled
    assert not Order.objects.exists()


@pytest.mark.parametrize("where", ["one_file_project", "project"])
def test_one_commit_needs_the_postgres_database_of_the_project(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    from forebay.contrib.django import ForebayTaskContext
    from forebay.work.context import Context

    (lease,) = _claimed(tasks.ship.enqueue("book", False))
    context = ForebayTaskContext(task_result=None, forebay=Context(lease))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"context\.atomic"), context.atomic():
        Order.objects.create(item="never")
    assert not Order.objects.exists()


def _claimed(result: AnyResult) -> Any:
    from forebay import Want

    return app().store.claim([Want("default", 1)], "a test", timedelta(seconds=30))


def test_a_connection_that_broke_is_replaced_before_the_next_task(postgres_project: None) -> None:
    with working(concurrency=1):
        first = ended(tasks.database_session.enqueue()).return_value
        eventually(lambda: not sessions(first), "CONN_MAX_AGE is 0: the connection is closed", 20)
        assert ended(tasks.database_session.enqueue()).return_value != first


def sessions(pid: Any) -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return int(cursor.fetchone()[0])


def native_session() -> int:
    return int(tasks.database_session.func())


def test_native_jobs_leave_no_connection_behind(postgres_project: None) -> None:
    session = app().job(kind="native_session", keep_result=True)(native_session)
    try:
        with working(concurrency=1):
            pid = session.enqueue().result(20)
            eventually(lambda: not sessions(pid), "the connection is closed", 20)
    finally:
        del app().registry["native_session"]


def test_options_of_the_backend_count_where_a_task_has_none() -> None:
    handlers = app().registry
    assert handlers[tasks.fail.module_path].max_attempts == 2
    assert handlers[tasks.fail.module_path].timeout == 20_000_000
    assert handlers[tasks.add.module_path].max_attempts is None
    assert handlers[tasks.add.module_path].keep_for == 86_400_000_000


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_follow_the_settings(use_tz: bool) -> None:
    with override_settings(USE_TZ=use_tz):
        moment = datetime(2035, 1, 1, tzinfo=UTC) if use_tz else datetime(2035, 1, 1)  # noqa: DTZ001
        result = tasks.add.using(run_after=moment).enqueue(1)
        found = default_task_backend.get_result(result.id)
        assert found.enqueued_at is not None
        assert (found.enqueued_at.tzinfo is not None) is use_tz
        assert found.task.run_after == moment
