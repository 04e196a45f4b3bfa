"""A registered function and its rules: which queue, how long, what to retry, where it runs."""

import inspect
import logging
import traceback
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from forebay.core.breaker import Breaker
from forebay.core.errors import Invalid
from forebay.core.instant import Span
from forebay.core.outcome import Dropped, Failed, Failure, Outcome, Snoozed, is_span
from forebay.core.payload import encode_payload, plain_json
from forebay.work.errors import Drop, Snooze
from forebay.work.signature import PayloadMismatch, Signature

_log = logging.getLogger("forebay.work")

Where = Literal["loop", "thread", "process"]


class Handler(Struct, frozen=True):
    """How jobs of one kind are run. `retry_on` None: every exception is worth another try."""

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
    keep_result: bool = False

    def encode_result(self, value: object) -> bytes | None:
        """The result as it is kept; one that is not JSON is not worth a second run of what was done."""
        if not self.keep_result or value is None:
            return None
        try:
            return encode_payload(plain_json(msgspec.to_builtins(value)))
        except (Invalid, TypeError, ValueError) as error:
            _log.warning("the result of %s is not kept: %s", self.kind, error)
            return None

    def outcome_of(self, error: BaseException) -> Outcome:
        """What a raise means; whatever it is, this does not raise in turn."""
        if isinstance(error, Snooze) and is_span(getattr(error, "after", None)):
            return Snoozed(error.after)
        if isinstance(error, (Drop, PayloadMismatch, *self.drop_on)) or (
            self.retry_on is not None and not isinstance(error, self.retry_on)
        ):
            return Dropped(describe(error))
        return Failed(describe(error))


def describe(error: BaseException) -> Failure:
    """An exception as it is kept: kind, message, and the end of its trace."""
    kind = type(error).__qualname__
    module = type(error).__module__
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = ""
    return Failure(kind if module in ("builtins", "__main__") else f"{module}.{kind}", _message(error), trace[-4_000:])


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(its message cannot be shown)"


def place_of(function: Callable[..., Any], isolate: bool) -> Where:
    if isolate:
        return "process"
    return "loop" if inspect.iscoroutinefunction(function) else "thread"


def check_function(kind: str, function: Callable[..., Any]) -> None:
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(kind, "a handler is a function or a coroutine function", "return, do not yield")
