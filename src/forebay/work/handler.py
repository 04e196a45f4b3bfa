"""A registered handler and its rules: queue, timeout, retries, where it runs; and the exceptions that it may raise."""

import asyncio
import inspect
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.breaker import Breaker
from forebay.core.errors import BlobDamaged, BlobFailed, BlobMissing, Invalid, SealBroken
from forebay.core.instant import Duration, from_seconds, micros
from forebay.core.job import Job
from forebay.core.outcome import Dropped, Failed, Failure, Outcome, Snoozed, Succeeded, is_duration
from forebay.core.payload import is_reference
from forebay.tracing import Spans
from forebay.work.context import Context
from forebay.work.redacting import RunningBatch, rules, running_job
from forebay.work.results import ResultInvalid, ResultType
from forebay.work.signature import PayloadMismatch, Signature
from forebay.work.trace import error_name, format_trace

_SEARCHED_LENGTH: Final = 8_000
"""Characters of a message or trace that are searched for secrets; known secrets are masked before the text is cut."""

DONE: Final = Succeeded()
"""The outcome of nearly every job; shared, to save an allocation."""

Where = Literal["loop", "thread", "process"]


class Drop(Exception):
    """Raised by a handler: a retry is useless, so the job becomes a dead letter at once."""


class Snooze(Exception):
    """Raised by a handler: run the job again after this many seconds, without charging an attempt."""

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {after}")
        self.after: Duration = micros(after) if isinstance(after, timedelta) else from_seconds("Snooze", after)


class RetryAfter(Exception):
    """Raised by a handler: it failed, and the next attempt begins after this many seconds instead of the backoff."""

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        super().__init__(reason or f"to be retried after {after}")
        self.after: Duration = micros(after) if isinstance(after, timedelta) else from_seconds("RetryAfter", after)


class EncodedResult(Struct, frozen=True):
    """The result of an async handler, encoded and stored off the event loop."""

    body: bytes


class Handler(Struct, frozen=True):
    """How jobs of one kind are run.

    retry_on  exceptions that are retried; None: all
    result    how results are encoded; None: they are not kept
    keep_for  how long finished jobs and their results are kept
    batch     how many jobs share one call at most
    """

    kind: str
    function: Callable[..., Any]
    signature: Signature
    queue: str = "default"
    where: Where = "thread"
    timeout: Duration | None = None
    max_attempts: int | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    drop_on: tuple[type[BaseException], ...] = ()
    breaker: Breaker | None = None
    result: ResultType | None = None
    keep_for: Duration = 0
    cost: int = 1
    batch: int = 1

    @property
    def keep_result(self) -> bool:
        return self.result is not None

    def encode_result(self, value: object) -> bytes | None:
        """The encoded result; None for no result. Raises `ResultInvalid` if it cannot be encoded."""
        if self.result is None or value is None:
            return None
        if isinstance(value, EncodedResult):
            return value.body
        return self.signature.kept(self.result.encode(value, self.signature.limit))

    def awaits_blobs(self, job: Job) -> bool:
        """Whether a run reads or writes the blob store, for which an event loop must not wait."""
        return is_reference(job.body) or (self.keep_result and self.signature.has_blobs)

    def succeeded(self, value: object) -> Succeeded:
        """The outcome of a handler that returned this value."""
        return Succeeded(self.encode_result(value), self.keep_for) if self.keep_for else DONE

    def outcome_of(self, error: BaseException, body: bytes = b"null") -> Outcome:
        """The outcome of a handler that raised; never raises itself."""
        if isinstance(error, Snooze) and is_duration(getattr(error, "after", None)):
            return Snoozed(error.after)
        if isinstance(error, RetryAfter) and is_duration(getattr(error, "after", None)):
            return Failed(self._described(error, body), error.after)
        if isinstance(error, (Drop, PayloadMismatch, BlobDamaged, ResultInvalid, *self.drop_on)) or (
            self.retry_on is not None and not isinstance(error, (SealBroken, BlobMissing, BlobFailed, *self.retry_on))
        ):
            return Dropped(self._described(error, body))
        return Failed(self._described(error, body))

    def secrets(self, body: bytes) -> Collection[str]:
        """The secrets in the payload, which no text about the job may contain."""
        try:
            return self.signature.secrets(body)
        except Exception:
            return ()

    def redact(self, text: str, body: bytes) -> str:
        """The text without secrets, those of the payload included."""
        return rules().text(text, self.secrets(body))

    def _described(self, error: BaseException, body: bytes) -> Failure:
        running = running_job.get()
        others = running.secrets if isinstance(running, RunningBatch) else ()
        return to_failure(error, {*self.secrets(body), *others})


def to_failure(error: BaseException, secrets: Collection[str] = ()) -> Failure:
    """An exception as it is stored: kind, message and the end of its trace, all redacted."""
    try:
        # The calls that led to a payload's refusal are all of this package.
        trace = "" if isinstance(error, PayloadMismatch) else format_trace(error)
    except BaseException:
        trace = ""
    message, trace = (rules().text(text, secrets, _SEARCHED_LENGTH) for text in (_message(error), trace))
    return Failure(error_name(error), message, trace[-4_000:])


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(str() of the exception failed)"


async def call_with_blob(handler: Handler, job: Job, context: Context | None) -> Any:
    """Run an async handler that needs the blob store; the event loop does not wait for the store."""
    arguments = await asyncio.to_thread(handler.signature.arguments, job, context)
    value = await handler.function(**arguments)
    body = await asyncio.to_thread(handler.encode_result, value)
    return None if body is None else EncodedResult(body)


def traced(handler: Handler, job: Job, spans: Spans) -> Handler:
    """The handler wrapped in a trace span for this job."""

    def failure(error: BaseException) -> Failure | None:
        outcome = handler.outcome_of(error, job.body)
        return outcome.error if isinstance(outcome, Failed | Dropped) else None

    return replace(handler, function=spans.around(handler.function, job, failure))


def executor_for(function: Callable[..., Any], isolate: bool) -> Where:
    if isolate:
        return "process"
    return "loop" if inspect.iscoroutinefunction(function) else "thread"


def check_function(kind: str, function: Callable[..., Any]) -> None:
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(kind, "a handler is a function or a coroutine function", "return instead of yield")
