"""Substitutes for the backends of other suites in their own tests (`suites.py`): backends, a model, a command."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from forebay.contrib.django import ForebayBackend, app
from forebay.contrib.django.api import AnyResult, AnyTask
from forebay.contrib.django.project import queue_names
from forebay.core.job import Job, State
from forebay.work.options import Options
from forebay.work.worker import Worker


def clear() -> None:
    """Forget every job."""
    app().close()
    for file in Path().glob("jobs.db*"):
        file.unlink()


class Waiting(ForebayBackend):
    """No worker runs; `results` and `clear` are what the tests want of a dummy."""

    @property
    def results(self) -> list[AnyResult]:
        return [self.get_result(str(job.id)) for job in app().jobs()]

    def clear(self) -> None:
        clear()


class DatabaseBackend(ForebayBackend):
    """An attempt is the only one, as in the backends whose tests run here."""

    def _job_options(self, task: AnyTask | None) -> dict[str, Any]:
        return {**super()._job_options(task), "max_attempts": 1}


class Immediate(DatabaseBackend):
    """Each job has run when its enqueue returns."""

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:
        result = super().enqueue(task, args, kwargs)
        if result.id.isdigit():
            worker = Worker(app(), Options(queues=(task.queue_name,)))
            worker.start()
            with suppress(TimeoutError):
                app().wait_for(int(result.id), 20)
            worker.drain(5)
            result.refresh()
        return result


class Row(NamedTuple):
    """A job, as a row of the model of `django-tasks-db`."""

    id: str
    task_result: AnyResult

    @property
    def task(self) -> AnyTask:
        return self.task_result.task

    @property
    def worker_ids(self) -> list[str]:
        return self.task_result.worker_ids


class Rows:
    """The part of a query set that can be had from a store."""

    def __init__(self, keep: Callable[[Job], bool] = lambda _: True) -> None:
        self._keep = keep

    def _jobs(self) -> list[Job]:
        return [job for job in app().jobs() if self._keep(job)]

    def __iter__(self) -> Iterator[Row]:
        backend = DatabaseBackend("default", {})
        return (Row(str(job.id), backend.get_result(str(job.id))) for job in self._jobs())

    def count(self) -> int:
        return len(self._jobs())

    def get(self, id: str) -> Row:  # noqa: A002
        (found,) = Rows(lambda job: str(job.id) == id)
        return found

    def all(self) -> "Rows":
        return self

    def ready(self) -> "Rows":
        return Rows(lambda job: job.state is State.READY)

    def successful(self) -> "Rows":
        return Rows(lambda job: job.state is State.DONE)

    def failed(self) -> "Rows":
        return Rows(lambda job: job.state is State.DEAD)


class DBTaskResult:
    objects = Rows()


class Command(BaseCommand):
    """`db_worker`: a worker in this process until nothing is left, or the worker of `manage.py forebay`."""

    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--batch", action="store_true")
        parser.add_argument("--queue-name", default="default")
        parser.add_argument("--exclude-queues", default="")
        parser.add_argument("--no-startup-delay", dest="startup_delay", action="store_false")
        for name in ("--interval", "--worker-id", "--backend-name"):
            parser.add_argument(name)

    def handle(self, *, batch: bool, queue_name: str, exclude_queues: str, **_: Any) -> None:
        queues = queue_names() if queue_name == "*" else queue_name.split(",")
        queues = [queue for queue in queues if queue not in exclude_queues.split(",")]
        if not batch:
            if Path(sys.argv[0]).name != "manage.py":
                raise CommandError("a worker without an end needs a process of its own")
            call_command("forebay", "worker", "--queues", ",".join(queues))
            return
        worker = Worker(app(), Options(queues=tuple(queues)))
        worker.start()
        for job in app().jobs():
            if job.queue in queues and job.state in (State.READY, State.RUNNING):
                app().wait_for(job.id, 20)
        worker.drain(5)
