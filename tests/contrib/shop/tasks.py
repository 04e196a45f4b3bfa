"""Tasks as an application writes them."""

from typing import Any

from django.db import connection

from forebay.contrib.django import ForebayTaskContext
from tests.contrib.shop.models import Order
from tests.contrib.task_api import task as django_task

task: Any = django_task
"""The decorator has no types for the options of its backend's tasks."""


@task()
def add(first: int, second: int = 0, *more: int, **named: int) -> int:
    return first + second + sum(more) + sum(named.values())


@task()
async def aadd(first: int, second: int) -> int:
    order = await Order.objects.acreate(item="counted")
    await order.adelete()
    return first + second


@task(priority=5, queue_name="mail", max_attempts=2, timeout=20.0)
def fail(message: str) -> None:
    raise ValueError(message)


@task()
def shout(text: str) -> str:
    return text.upper()


@task()
def return_function() -> Any:
    return lambda: None


@task(takes_context=True)
def describe(context: ForebayTaskContext, word: str) -> dict[str, Any]:
    context.progress(0.5, word)
    return {"id": context.task_result.id, "attempt": context.attempt, "word": word}


@task(takes_context=True)
def ship(context: ForebayTaskContext, item: str, broken: bool) -> str:
    with context.atomic():
        Order.objects.create(item=item, details={"by": "task"})
        context.forebay.set_result(item)
        if broken:
            raise RuntimeError("the lorry broke down")
    return item


@task()
def database_session() -> int:
    """The server's process behind this thread's connection; 0 on SQLite."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        found: int = cursor.fetchone()[0]
        return found
