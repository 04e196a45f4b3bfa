"""A registered function and its rules: which queue, how long, what to retry, where it runs."""

import inspect
from collections.abc import Callable, Collection
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.breaker import Breaker
from forebay.core.errors import Invalid, SealBroken
from forebay.core.instant import Span
from forebay.core.job import Job
from forebay.core.outcome import Dropped, Failed, Failure, Outcome, Snoozed, Succeeded, is_span
from forebay.core.payload import decode_payload
from forebay.tracing import Spans
from forebay.work.errors import Drop, Snooze
from forebay.work.redacting import rules
from forebay.work.results import ResultInvalid, ResultType
from forebay.work.signature import PayloadMismatch, Signature
from forebay.work.trace import kind_of, trace_of

_LOOKED_AT: Final = 8_000
"""Characters of a message or trace in which secrets are searched for; known ones are hidden before it is cut."""

DONE: Final = Succeeded()
"""What becomes of nearly every job, made once."""

Where = Literal["loop", "thread", "process"]


class Handler(Struct, frozen=True):
    """How jobs of one kind are run. `retry_on` None: every exception is worth another try.

    `result`: how results are kept, if they are; `keep_for`: for how long, with their finished jobs.
    """

    kind: str
    function: Callable[..., Any]
    signature: Signature
    queue: str = "default"
    where: Where = "thread"
    timeout: Span | None = None
    max_attempts: int | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    drop_on: tuple[type[BaseException], ...] = ()
    breaker: Breaker | None = None
    result: ResultType | None = None
    keep_for: Span = 0
    cost: int = 1

    @property
    def keep_result(self) -> bool:
        return self.result is not None

    def encode_result(self, value: object) -> bytes | None:
        """The result as it is kept; None is no result. `ResultInvalid`: it cannot be kept as it is."""
        return None if self.result is None or value is None else self.signature.sealed(self.result.encode(value))

    def succeeded(self, value: object) -> Succeeded:
        """What it means that the handler returned this."""
        return Succeeded(self.encode_result(value), self.keep_for) if self.keep_for else DONE

    def outcome_of(self, error: BaseException, body: bytes = b"null") -> Outcome:
        """What a raise means for a job with this payload; whatever it is, this does not raise in turn."""
        if isinstance(error, Snooze) and is_span(getattr(error, "after", None)):
            return Snoozed(error.after)
        if isinstance(error, (Drop, PayloadMismatch, ResultInvalid, *self.drop_on)) or (
            self.retry_on is not None and not isinstance(error, (SealBroken, *self.retry_on))
        ):
            return Dropped(self._described(error, body))
        return Failed(self._described(error, body))

    def secrets(self, body: bytes) -> Collection[str]:
        """The secrets of a job with this payload, which no text about it may show."""
        try:
            return rules().secrets(self.kind, decode_payload(self.signature.opened(body)))
        except Exception:
            return ()

    def redact(self, text: str, body: bytes) -> str:
        """A text about a job with this payload, without what looks like a secret."""
        return rules().text(text, self.secrets(body))

    def _described(self, error: BaseException, body: bytes) -> Failure:
        return describe(error, self.secrets(body))


def describe(error: BaseException, secrets: Collection[str] = ()) -> Failure:
    """An exception as it is kept: kind, message, and the end of its trace; without secrets, its payload's above all."""
    try:
        trace = trace_of(error)
    except BaseException:
        trace = ""
    message, trace = (rules().text(text, secrets, _LOOKED_AT) for text in (_message(error), trace))
    return Failure(kind_of(error), message, trace[-4_000:])


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(its message cannot be shown)"


def traced(handler: Handler, job: Job, spans: Spans) -> Handler:
    """The handler, for this one job, inside a span."""

    def failure(error: BaseException) -> Failure | None:
        outcome = handler.outcome_of(error, job.body)
        return outcome.error if isinstance(outcome, Failed | Dropped) else None

    return replace(handler, function=spans.around(handler.function, job, failure))


def place_of(function: Callable[..., Any], isolate: bool) -> Where:
    if isolate:
        return "process"
    return "loop" if inspect.iscoroutinefunction(function) else "thread"


def check_function(kind: str, function: Callable[..., Any]) -> None:
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(kind, "a handler is a function or a coroutine function", "return, do not yield")
