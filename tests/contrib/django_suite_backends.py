"""What stands for the backends of Django in its own tests (`django_suite.py`)."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from forebay.contrib.django import ForebayBackend, app
from forebay.contrib.django.api import AnyResult, AnyTask
from forebay.work.options import Options
from forebay.work.worker import Worker


class Waiting(ForebayBackend):
    """No worker runs; `results` and `clear` are what the tests want of a dummy."""

    @property
    def results(self) -> list[AnyResult]:
        return [self.get_result(str(job.id)) for job in app().jobs()]

    def clear(self) -> None:
        app().close()
        for file in Path().glob("jobs.db*"):
            file.unlink()


class Immediate(ForebayBackend):
    """Each job has run when its enqueue returns, and its only attempt is the first."""

    def _job_options(self, task: AnyTask | None) -> dict[str, Any]:
        return {**super()._job_options(task), "max_attempts": 1}

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
