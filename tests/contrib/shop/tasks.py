"""Tasks as an application writes them."""

import asyncio
from typing import Any

from django.db import connection

from forebay import Drop, Snooze
from forebay.contrib.django import ForebayTaskContext
from tests.contrib.shop.models import Order
from tests.contrib.task_api import task as django_task
from tests.waiting import eventually

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


begun: list[str] = []
"""The runs of `end` and `aend` in one test."""


def _ending(how: str) -> Any:
    match how:
        case "drop":
            raise Drop("no use")
        case "raise":
            raise ValueError("out of stamps")
        case "snooze" if len(begun) == 1:
            raise Snooze(0.01)
        case "function":
            return lambda: None
        case "large":
            return "x" * 300_000
        case "none":
            return None
        case _:
            return how


@task(max_attempts=1, timeout=60.0, takes_context=True)
def end(context: ForebayTaskContext, how: str) -> Any:
    begun.append(how)
    if how == "hang" and len(begun) == 1:
        eventually(lambda: context.forebay.cancelled)
    return None if context.forebay.cancelled else _ending(how)


@task(max_attempts=1, timeout=60.0)
async def aend(how: str) -> Any:
    begun.append(how)
    if how == "hang" and len(begun) == 1:
        await asyncio.sleep(600)
    return _ending(how)


@task(max_attempts=1, timeout=0.5, takes_context=True)
def hang(context: ForebayTaskContext) -> None:
    eventually(lambda: context.forebay.cancelled)


@task(max_attempts=1, timeout=0.5)
async def ahang() -> None:
    await asyncio.sleep(600)
