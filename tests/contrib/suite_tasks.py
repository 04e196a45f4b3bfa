"""The tasks that the tests of `django-tasks-db` name; the archive of that package does not have them."""

import sys
from collections.abc import Callable
from threading import Event
from typing import Any

from django.tasks import TaskContext, task

ERROR = "This task failed"


@task()
def noop_task(*args: Any, **kwargs: Any) -> None: ...


@task()
async def noop_task_async(*args: Any, **kwargs: Any) -> None: ...


@task()
def calculate_meaning_of_life() -> int:
    return 42


@task()
def failing_task_value_error() -> None:
    raise ValueError(f"{ERROR} due to ValueError")


@task()
def failing_task_system_exit() -> None:
    raise SystemExit(f"{ERROR} due to SystemExit")


@task()
def failing_task_keyboard_interrupt() -> None:
    raise KeyboardInterrupt(f"{ERROR} due to KeyboardInterrupt")


@task()
def complex_exception() -> None:
    raise ValueError(ValueError("This task failed"))


@task()
def complex_return_value() -> Callable[[], bool]:
    return lambda: True


@task()
def exit_task() -> None:
    sys.exit(1)


@task()
def hang() -> None:
    Event().wait(300)


@task()
def sleep_for(seconds: float) -> None:
    Event().wait(seconds)


@task(takes_context=True)
def get_task_id(context: TaskContext) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
def test_context(context: TaskContext, attempt: int) -> None:
    assert isinstance(context, TaskContext)
    assert context.attempt == attempt
