"""The signals of the task API: `task_finished` is sent once, when a task has ended and not when it runs again."""

from collections.abc import Iterator
from typing import Any

import pytest

from forebay.contrib.django import app
from forebay.contrib.django.api import AnyResult
from forebay.core.job import State
from forebay.testing import JobTester
from forebay.work.options import Options
from forebay.work.worker import Worker
from tests.contrib.shop import tasks
from tests.contrib.task_api import task_finished, task_started
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("project")
PLAIN_AND_ASYNC = pytest.mark.parametrize("task", [tasks.end, tasks.aend], ids=["plain", "async"])


@pytest.fixture(autouse=True)
def signals() -> Iterator[list[str]]:
    """What was sent: the names of statuses, with the last error of a failure."""
    seen: list[str] = []

    def receive(task_result: AnyResult, **_: Any) -> None:
        last = task_result.errors[-1:] if task_result.status.value == "FAILED" else []
        seen.append(" ".join([task_result.status.value, *(each.exception_class_path for each in last)]))

    tasks.begun.clear()
    for signal in (task_started, task_finished):
        signal.connect(receive)
    yield seen
    for signal in (task_started, task_finished):
        signal.disconnect(receive)


def started() -> Worker:
    worker = Worker(app(), Options(queues=("default",), concurrency=2))
    worker.start()
    return worker


@PLAIN_AND_ASYNC
@pytest.mark.parametrize(
    ("how", "sent"),
    [
        ("well", ["RUNNING", "SUCCESSFUL"]),
        ("none", ["RUNNING", "SUCCESSFUL"]),
        ("raise", ["RUNNING", "FAILED builtins.ValueError"]),
        ("drop", ["RUNNING", "FAILED forebay.work.handler.Drop"]),
        ("function", ["RUNNING", "FAILED builtins.TypeError"]),
        ("large", ["RUNNING", "FAILED forebay.work.results.ResultInvalid"]),
        ("snooze", ["RUNNING", "RUNNING", "SUCCESSFUL"]),
    ],
)
def test_the_last_signal_says_what_the_result_says(signals: list[str], task: Any, how: str, sent: list[str]) -> None:
    with JobTester(app()) as jobs:
        result = task.enqueue(how)
        jobs.advance(minutes=1)
        result.refresh()
    assert signals == sent
    assert sent[-1].startswith(result.status.value)


@pytest.mark.parametrize("task", [tasks.hang, tasks.ahang], ids=["plain", "async"])
def test_a_task_that_takes_too_long_has_failed(signals: list[str], task: Any) -> None:
    worker = started()
    result = task.enqueue()
    job = app().wait_for(int(result.id), 20)
    worker.drain(5)
    assert job is not None
    assert job.state is State.DEAD
    eventually(lambda: signals == ["RUNNING", "FAILED forebay.Timeout"], f"{signals}")


@PLAIN_AND_ASYNC
def test_a_task_that_is_cancelled_has_failed(signals: list[str], task: Any) -> None:
    worker = started()
    result = task.enqueue("hang")
    eventually(lambda: signals == ["RUNNING"] and tasks.begun == ["hang"])
    app().cancel(int(result.id))
    app().wait_for(int(result.id), 20)
    worker.drain(5)
    result.refresh()
    assert result.status.value == "FAILED"
    assert signals == ["RUNNING", "FAILED"]


@PLAIN_AND_ASYNC
def test_a_task_that_is_drained_has_not_ended(signals: list[str], task: Any) -> None:
    worker = started()
    result = task.enqueue("hang")
    eventually(lambda: signals == ["RUNNING"] and tasks.begun == ["hang"])
    worker.drain(0)
    worker = started()
    app().wait_for(int(result.id), 20)
    worker.drain(5)
    assert signals == ["RUNNING", "RUNNING", "SUCCESSFUL"]


@PLAIN_AND_ASYNC
def test_a_task_whose_lease_is_lost_has_not_ended(signals: list[str], task: Any) -> None:
    worker = started()
    task.enqueue("hang")
    eventually(lambda: signals == ["RUNNING"] and tasks.begun == ["hang"])
    worker.pool.mark_lost([lease.fence for lease in worker.pool.held()])
    eventually(lambda: worker.pool.idle)
    worker.drain(5)
    assert signals == ["RUNNING"]
