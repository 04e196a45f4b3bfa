"""Batch handlers: `@fb.job(batch=100, wait=0.2)` gathers jobs of one kind for one call of the function.

Each job stays a run of its own on the event loop, with its lease, attempt, timeout, cancellation, verdict and fence: it
joins the open batch and waits for its own outcome. A batch starts when it is full, or `wait` after its first job. A job
that is stopped while it waits leaves the batch; one that is stopped later leaves its outcome behind. When no job is
left, an async function is cancelled.

Besides the list of calls the function may take provided values of the process. Each job brings them, as any handler
receives them, and they are the same for all. A value of one job has no place in a call that many jobs share.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from forebay.core.errors import Invalid
from forebay.core.instant import from_seconds, seconds
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import check_between
from forebay.work.context import Context
from forebay.work.hooks import Injected
from forebay.work.redacting import JobSecrets, RunningBatch, running_job
from forebay.work.signature import injectable, parameter_types, type_name

MAX_WAIT: Final = seconds(60)
DEFAULT_WAIT: Final = 0.2

T = TypeVar("T")


class Call(Generic[T]):
    """One job of a batch: its item, and its context."""

    __slots__ = ("ctx", "item")

    def __init__(self, item: T, ctx: Context) -> None:
        self.item = item
        self.ctx = ctx

    def __repr__(self) -> str:
        return f"Call(job={self.ctx.job.id}, attempt={self.ctx.attempt})"


class _Batch:
    """Jobs that were gathered, each with the future of its outcome. `values`: the injected ones, by parameter."""

    def __init__(self, loop: asyncio.AbstractEventLoop, values: Mapping[str, Any]) -> None:
        self.loop = loop
        self.values = values
        self.members: list[tuple[Call[Any], asyncio.Future[Any]]] = []
        self.running: list[JobSecrets | None] = []
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def left(self, _: object) -> None:
        """A job has ended. It leaves a batch that waits; a function is cancelled once all its jobs have ended."""
        if self.task is None:
            self.members = [(call, future) for call, future in self.members if not future.done()]
        elif all(future.done() for _, future in self.members):
            self.task.cancel()


class BatchGatherer:
    """Gathers calls for one function; `size` and `wait` bound each batch."""

    def __init__(self, kind: str, function: Callable[..., Any], size: int, wait: float) -> None:
        check_between("batch", size, 1, MAX_BATCH)
        self._kind = kind
        self._function = function
        self._size = size
        self._wait = from_seconds("wait", wait, MAX_WAIT) / 1_000_000
        self._open: _Batch | None = None

    async def join(self, item: Any, ctx: Context, values: Mapping[str, Any]) -> Any:
        """The outcome of this job, once its batch has run."""
        loop, batch = asyncio.get_running_loop(), self._open
        if batch is None or batch.loop is not loop:
            batch = self._open = _Batch(loop, values)
            batch.timer = loop.call_later(self._wait, self._start, batch)
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(batch.left)
        batch.members.append((Call(item, ctx), future))
        batch.running.append(running_job.get())
        if len(batch.members) >= self._size:
            self._start(batch)
        try:
            return await future
        finally:
            # What the function raised may quote the payloads of its other jobs.
            running_job.set(RunningBatch(batch.running))

    def _start(self, batch: _Batch) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        if self._open is batch:
            self._open = None
        batch.members = [(call, future) for call, future in batch.members if not future.done()]
        if batch.members:
            batch.task = batch.loop.create_task(self._run(batch))

    async def _run(self, batch: _Batch) -> None:
        running_job.set(RunningBatch(batch.running))
        calls = [call for call, _ in batch.members]
        outcomes: list[Any]
        try:
            if inspect.iscoroutinefunction(self._function):
                returned = await self._function(calls, **batch.values)
            else:
                returned = await asyncio.to_thread(self._function, calls, **batch.values)
            outcomes = self._outcomes(returned, len(calls))
        except asyncio.CancelledError:
            outcomes = [Invalid(self._kind, "its batch was cancelled", "let the function end")] * len(calls)
        except BaseException as error:
            outcomes = [error] * len(calls)
        for (_, future), outcome in zip(batch.members, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _outcomes(self, returned: Any, count: int) -> list[Any]:
        """What the function said of each job; None: all are done."""
        if returned is None:
            return [None] * count
        if not isinstance(returned, list) or len(returned) != count:
            what = f"it returned {_shown(returned)} for {count} calls"
            raise Invalid(self._kind, what, "return None, or a list with a result or an exception for each call")
        return returned


def gathered(
    kind: str, function: Callable[..., Any], options: dict[str, Any], providers: Mapping[Any, Injected]
) -> Callable[..., Any]:
    """The handler of one job of a batch: a coroutine function of its item. `wait` leaves the options."""
    if options.get("isolate"):
        raise Invalid(kind, "isolate and batch exclude each other", "a child process runs one job at a time")
    gatherer = BatchGatherer(kind, function, options["batch"], options.pop("wait", DEFAULT_WAIT))
    item, values = _parameters(kind, function, providers)

    async def join(item: Any, ctx: Context, **values: Any) -> Any:
        return await gatherer.join(item, ctx, values)

    join.__annotations__ = {"item": item, "ctx": Context, **values}
    named = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in join.__annotations__]
    join.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    join.__module__, join.__qualname__, join.__name__ = function.__module__, function.__qualname__, function.__name__
    return join


def _parameters(
    kind: str, function: Callable[..., Any], providers: Mapping[Any, Injected]
) -> tuple[Any, dict[str, Any]]:
    """The type in `calls: list[Call[T]]`, any JSON if it is not given; and the types of the values after it."""
    parameters = list(parameter_types(kind, function))
    remedy = "write def handler(calls: list[Call[Item]])"
    hint = parameters[0][1] if parameters else None
    calls = hint if hint is Any else next(iter(get_args(hint)), Any)
    if hint is not Any and (get_origin(hint) is not list or get_origin(calls) is not Call):
        what = f"is {hint}, not a list of calls" if parameters else "is missing"
        raise Invalid(kind, f"the first parameter of a batch handler {what}", remedy)
    values = {}
    for name, hint, optional in parameters[1:]:
        found = injectable(hint, providers)
        if name in ("item", "ctx") and found is not Context:
            raise Invalid(kind, f"its parameter {name!r} has a name of Call", "give it another name")
        if found is Context:
            raise Invalid(kind, f"its parameter {name!r} belongs to one job, and a batch has many", "use call.ctx")
        if found is not None and providers[found].scope == "job":
            what = f"its parameter {name!r} ({type_name(found)}) is made for each job, and a batch has many"
            raise Invalid(kind, what, 'take values of scope "process", or set call.ctx.state in a layer of around_job')
        if found is not None:
            values[name] = found
        elif not optional:
            what = f"nothing provides its parameter {name!r} ({type_name(hint)})"
            raise Invalid(kind, what, f"call fb.provide({type_name(hint)}, …) before, or take the list of Call alone")
    return next(iter(get_args(calls)), Any), values


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__
