"""Tasks with Forebay's own options, what a running one may do, and how a job looks as a `TaskResult`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.db import connections, transaction
from django.utils import timezone

from forebay.contrib.django.api import AnyResult, AnyTask, InvalidTask, TaskContext, TaskError, TaskResultStatus
from forebay.contrib.django.config import config
from forebay.core.errors import Unsupported
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.outcome import Failure
from forebay.core.payload import Json
from forebay.work.context import Context

STATUSES: Final[dict[State, Any]] = {
    State.WAITING: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_UNKNOWN: Final = "unknown"
"""The worker of an earlier attempt: a job names its present one only."""


class ReturnValueInvalid(TypeError):
    """A task returned what JSON cannot carry. It is not retried: that would only repeat its effects."""


_INVALID_RETURN: Final = f"{ReturnValueInvalid.__module__}.{ReturnValueInvalid.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForebayTask(AnyTask):
    """A task with options: `@task(max_attempts=3, timeout=60)`, `send.using(key="order-42").enqueue(…)`.

    max_attempts, timeout, result_ttl   as in `Forebay.job`; None: as OPTIONS of the backend say
    key, tenant, subject                as in `Draft`, for one enqueue
    """

    max_attempts: int | None = None
    timeout: float | None = None
    result_ttl: float | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None

    def using(self, **changes: Any) -> Any:
        """The same task with other values; those that are None stay as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForebayTaskContext(TaskContext):
    """What a task with `takes_context=True` gets first. `forebay` is the context of the job itself."""

    forebay: Context

    def progress(self, portion: float, note: str = "") -> None:
        """As `Context.progress`."""
        self.forebay.progress(portion, note)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """`with context.atomic():` what the ORM writes and the end of the job commit together, or not at all.

        The store has to be the project's Postgres database. What the task returns is not kept then, unless it is set
        inside the block by `context.forebay.set_result`.
        """
        found = config()
        if not found.joins or connections[found.DATABASE].vendor != "postgresql":
            remedy = "use the Postgres database of the project as the store, or make the effect idempotent"
            raise Unsupported("this store", "context.atomic()", remedy)
        with transaction.atomic(found.DATABASE, durable=True):
            yield
            connection = connections[found.DATABASE]
            connection.ensure_connection()
            committed = self.forebay.settle_in(connection.connection)
        committed()


def result_of(job: Job, task: AnyTask, alias: str, payload: Any, value: Json = None) -> AnyResult:
    """A job as Django shows it, with its payload and its result, which may be in the blob store.

    A store keeps no start of an attempt that has ended: its end is used in `started_at` and `last_attempted_at`.
    """
    ends = [error.at for error in job.errors] + ([job.finished_at] if job.finished_at else [])
    starts = [*ends, job.claimed_at] if job.claimed_at else ends
    attempts = [_UNKNOWN] * (job.attempt - 1) + [job.owner or _UNKNOWN] if job.attempt else []
    result = AnyResult(
        task=_as_enqueued(task, job),
        id=str(job.id),
        status=STATUSES[job.state],
        enqueued_at=to_datetime(job.enqueued_at),
        started_at=to_datetime(starts[0]) if starts else None,
        finished_at=to_datetime(job.finished_at) if job.finished_at else None,
        last_attempted_at=to_datetime(starts[-1]) if starts else None,
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=alias,
        errors=[task_error(error) for error in job.errors],
        worker_ids=attempts,
    )
    object.__setattr__(result, "_return_value", value)
    return result


def _as_enqueued(task: AnyTask, job: Job) -> AnyTask:
    """The task as it was when it was enqueued, as far as the settings still allow that."""
    later = job.due_at > job.enqueued_at and not job.attempt
    try:
        return replace(
            task, priority=job.priority, queue_name=job.queue, run_after=to_datetime(job.due_at) if later else None
        )
    except InvalidTask:
        return task


def task_error(error: Failure) -> TaskError:
    """The class of a return value that is not JSON is `TypeError`, as in the backends of Django."""
    kind = "TypeError" if error.kind == _INVALID_RETURN else error.kind
    name = kind if "." in kind else f"builtins.{kind}"
    return TaskError(exception_class_path=name, traceback=error.trace or f"{error.kind}: {error.message}\n")


def to_datetime(instant: Instant) -> datetime:
    moment = datetime.fromtimestamp(instant / 1_000_000, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
