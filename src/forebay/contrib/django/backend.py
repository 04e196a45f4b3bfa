"""`ForebayBackend`: enqueue, results and the handlers of Django's tasks.

A job's kind is the path of its task, its payload `{"args": […], "kwargs": {…}}`. If the store is the project's own
database, on Postgres or SQLite, an enqueue is made on the caller's connection: the job is there when the transaction
commits, and never if it rolls back. Any other store gets the job right after the commit (`transaction.on_commit`); its
result has a preliminary id until then.
"""

import json
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final
from uuid import uuid4

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone

from forebay.client import Forebay
from forebay.contrib.django.api import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)
from forebay.contrib.django.config import config
from forebay.contrib.django.project import app
from forebay.contrib.django.task import (
    STATUSES,
    ForebayTask,
    ForebayTaskContext,
    ReturnValueInvalid,
    result_of,
    task_error,
    to_datetime,
)
from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.limits import MAX_ID
from forebay.core.names import check_name
from forebay.core.outcome import Ack, Cancel, DeadLetter, Outcome, Release, Succeeded, Verdict
from forebay.core.payload import Json, decode_payload
from forebay.core.policy import Routing
from forebay.work.context import Context
from forebay.work.handler import EncodedResult
from forebay.work.run import Stop, outcome_of_stop

APP: Final = "forebay.contrib.django"
RESULT_TTL: Final = 86_400.0
_OPTIONS: Final = ("max_attempts", "timeout", "result_ttl")
_PRELIMINARY: Final = "on-commit-"
_ANY_DRAW: Final = 0.5
"""Of the delay of a retry, which no signal has."""

_tasks: dict[str, AnyTask] = {}


class ForebayBackend(BaseTaskBackend):
    """OPTIONS: `max_attempts`, `timeout` and `result_ttl` (a day) of tasks that say nothing else."""

    runs_on_forebay = True
    task_class = ForebayTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        super().validate_task(task)
        try:
            check_name("task", task.module_path)
            if task.module_path not in _tasks:
                self._register(task)
        except Invalid as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:
        self.validate_task(task)
        payload = _plain({"args": list(args), "kwargs": dict(kwargs)})
        result = AnyResult(
            task=task,
            id=f"{_PRELIMINARY}{uuid4().hex}",
            status=STATUSES[State.READY],
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        found = config()
        joins = found.joins and not app().store_replaced
        put = partial(self._put, result, payload, found.DATABASE if joins else None)
        if not joins and connections[found.DATABASE].in_atomic_block:
            transaction.on_commit(put, using=found.DATABASE)
        else:
            put()
        return result

    def _put(self, result: AnyResult, payload: dict[str, Json], database: str | None) -> None:
        """Enqueue now, in the transaction of the database if there is one; the result gets its id."""
        task, fb = result.task, app()
        chosen: dict[str, Any] = {"queue": task.queue_name, "priority": int(task.priority)}
        if isinstance(task, ForebayTask):
            given = {"key": task.key, "tenant": task.tenant, "subject": task.subject}
            chosen |= {name: value for name, value in given.items() if value is not None}
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            chosen["run_at"] = task.run_after if aware else timezone.make_aware(task.run_after)
        job = None
        if database is None:
            job_id = fb.enqueue(task.module_path, payload, **chosen).id
            job = fb.get(job_id)
        else:
            job_id = fb.enqueue_in(connections[database], task.module_path, payload, **chosen)
        object.__setattr__(result, "id", str(job_id))
        object.__setattr__(result, "enqueued_at", timezone.now() if job is None else to_datetime(job.enqueued_at))
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> AnyResult:
        number, fb = str(result_id), app()
        job = None
        if number.isascii() and number.isdigit() and int(number) <= MAX_ID:
            job = fb.get(int(number))
        task = None if job is None else _tasks.get(job.kind)
        if job is None or task is None:
            reason = "its transaction has not committed" if number.startswith(_PRELIMINARY) else "it is not kept"
            raise TaskResultDoesNotExist(f"{number}: {reason}")
        value = None if job.result_body is None else decode_payload(fb.codec.open(job.kind, job.result_body))
        return result_of(job, task, self.alias, fb.payload(job), value)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        if not apps.is_installed(APP):
            yield checks.Error(
                "the task backend of Forebay needs its app", f"add {APP!r} to INSTALLED_APPS", id="forebay.E001"
            )
        if unknown := sorted(set(self.options) - set(_OPTIONS)):
            reason = f"TASKS[{self.alias!r}]['OPTIONS'] has unknown options: {', '.join(unknown)}"
            yield checks.Error(reason, f"use {', '.join(_OPTIONS)}", id="forebay.E002")
            return
        try:
            decorate: Any = Forebay("memory://").job(kind="check", **self._job_options(None))
            decorate(_nothing)
            for queue in self.queues:
                check_name("queue", queue)
        except (Invalid, TypeError) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="forebay.E003")

    def _job_options(self, task: AnyTask | None) -> dict[str, Any]:
        """Of the task, else of the backend."""
        chosen = {"result_ttl": RESULT_TTL, **self.options}
        own = {name: getattr(task, name, None) for name in _OPTIONS}
        return chosen | {name: value for name, value in own.items() if value is not None}

    def _register(self, task: AnyTask) -> None:
        run = _runner(task, type(self))
        options = {name: value for name, value in self._job_options(task).items() if name in _OPTIONS}
        decorate: Any = app().job(kind=task.module_path, queue=task.queue_name, drop_on=ReturnValueInvalid, **options)
        decorate(run)
        _tasks[task.module_path] = task


def _plain(value: Any) -> Any:
    """The value as JSON gives it back; `TypeError` names a type that JSON does not have."""
    return json.loads(json.dumps(normalize_json(value)))


def _nothing() -> None:
    """A handler to check options with."""


def _runner(task: AnyTask, sender: type[ForebayBackend]) -> Callable[..., Any]:
    """The handler of a task: a coroutine function for an async one."""
    if iscoroutinefunction(task.func):

        async def arun(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
            async with _own_thread():
                result = await sync_to_async(_begin)(task, ctx, {"args": args, "kwargs": kwargs}, sender)
                try:
                    value = await task.func(*_leading(result, ctx), *args, **kwargs)
                    return await sync_to_async(_succeed)(result, value, ctx, sender)
                except BaseException as error:
                    await sync_to_async(_finish)(result, ctx, sender, error)
                    raise
                finally:
                    await sync_to_async(connections.close_all)()

        return _placed(arun, task)

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _begin(task, ctx, {"args": args, "kwargs": kwargs}, sender)
        try:
            return _succeed(result, task.func(*_leading(result, ctx), *args, **kwargs), ctx, sender)
        except BaseException as error:
            _finish(result, ctx, sender, error)
            raise

    return _placed(run, task)


@asynccontextmanager
async def _own_thread() -> AsyncIterator[None]:
    """A connection of the ORM belongs to a thread, and each async task gets its own one.

    The thread is not joined: it is idle by now. asgiref would join it in another thread, for which the virtual time of
    a `JobTester` does not wait.
    """
    context = ThreadSensitiveContext()
    async with context:
        try:
            yield
        finally:
            executor = SyncToAsync.context_to_thread_executor.pop(context, None)
            if executor is not None:
                executor.shutdown(wait=False)


def _placed(run: Callable[..., Any], task: AnyTask) -> Callable[..., Any]:
    run.__module__, run.__qualname__ = task.func.__module__, task.func.__qualname__
    return run


def _begin(task: AnyTask, ctx: Context, payload: dict[str, Any], sender: type[ForebayBackend]) -> AnyResult:
    result = result_of(ctx.job, task, task.backend, payload)
    task_started.send(sender, task_result=result)
    return result


def _leading(result: AnyResult, ctx: Context) -> tuple[ForebayTaskContext, ...]:
    return (ForebayTaskContext(task_result=result, forebay=ctx),) if result.task.takes_context else ()


def _succeed(result: AnyResult, value: Any, ctx: Context, sender: type[ForebayBackend]) -> Any:
    """The value, encoded here already: a task whose result cannot be kept has failed, and no signal says otherwise."""
    try:
        plain = _plain(value)
    except (TypeError, ValueError) as error:
        raise ReturnValueInvalid(str(error)) from error
    body = None if ctx.settled else app().registry[ctx.job.kind].encode_result(plain)
    object.__setattr__(result, "_return_value", plain)
    _finish(result, ctx, sender)
    return None if body is None else EncodedResult(body)


def _finish(result: AnyResult, ctx: Context, sender: type[ForebayBackend], error: BaseException | None = None) -> None:
    """Send `task_finished` once, unless the task runs again or another worker has it."""
    if result.status is not STATUSES[State.RUNNING]:
        return
    verdict = _verdict(ctx, error, result._return_value)
    match verdict:
        case Ack():
            state = State.DONE
        case DeadLetter(failure):
            state = State.DEAD
            result.errors.append(task_error(failure))
        case Cancel():
            state = State.CANCELLED
        case _:
            return
    object.__setattr__(result, "status", STATUSES[state])
    object.__setattr__(result, "finished_at", timezone.now())
    task_finished.send(sender, task_result=result)


def _verdict(ctx: Context, error: BaseException | None, value: Any) -> Verdict:
    """The worker's verdict on this run. If it has stopped the run it discards what comes after that, but for a plain
    task that was cancelled: its thread is waited for, and may still succeed or fail.
    """
    if ctx.settled:
        return Ack()
    if ctx.lost:
        return Release()
    handler = app().registry[ctx.job.kind]
    if handler.where == "loop":
        stopped = ctx.stop is not None and isinstance(error, CancelledError)
    else:
        stopped = ctx.stop is not None and (ctx.stop != Stop.CANCEL or (error is None and value is None))
    outcome: Outcome = Succeeded() if error is None else handler.outcome_of(error, ctx.job.body)
    if stopped:
        outcome = outcome_of_stop(ctx.stop, handler)
    return decide(ctx.job, outcome, Routing(), _ANY_DRAW)
