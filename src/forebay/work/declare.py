"""From the options of `@fb.job(...)` to a `Handler`: each is checked here, when the function is decorated."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from forebay.core.breaker import Breaker
from forebay.core.errors import Invalid
from forebay.core.instant import Duration, checked_micros, from_seconds, micros
from forebay.core.limits import MAX_ATTEMPTS, MAX_COST, MAX_DURATION, RESULT_KEPT
from forebay.core.names import check_name
from forebay.core.policy import check_between
from forebay.work.handler import Handler, check_function, executor_for
from forebay.work.results import ResultType
from forebay.work.signature import Signature


class HandlerOptions(TypedDict, total=False):
    """Those of `JobOptions` that every kind of job takes, one of `Forebay.webhook` too."""

    queue: str
    max_attempts: int | None
    cost: int
    retry_on: type[BaseException] | Sequence[type[BaseException]] | None
    drop_on: type[BaseException] | Sequence[type[BaseException]]
    breaker: Breaker | None
    keep_result: bool
    result_ttl: float | timedelta | None
    version: int


class BatchOptions(HandlerOptions, total=False):
    """Those of `JobOptions` that a batch handler takes, besides `batch` and `wait`."""

    kind: str | None
    timeout: float | timedelta | None


class JobOptions(BatchOptions, total=False):
    """The options of `@fb.job`; what is left out is left to the function or the queue.

    queue         of its jobs, unless an enqueue names another;  kind: its name, instead of that of the function
    max_attempts  of each job;  cost: what it takes of each cap, rate and condition of its queue
    timeout       seconds after which a run is stopped and counts as failed
    retry_on      only these exceptions are worth another try;  drop_on: these never are
    breaker       stop calling a dependency that is down
    isolate       run it in a process of its own, which may be killed
    keep_result, result_ttl
                  keep what it returns, with the finished job, for an hour or for so many seconds, on any queue
    version       of its payload; `@job.upgrade(from_version=1)` turns older ones into this
    """

    isolate: bool


def declare(kind: str, function: Callable[..., Any], signature: Signature, options: dict[str, Any]) -> Handler:
    """The handler of a function; raises `Invalid` if an option is unknown or out of its bounds."""
    check_function(kind, function)
    timeout = options.pop("timeout", None)
    retry_on = options.pop("retry_on", None)
    if (attempts := options.get("max_attempts")) is not None:
        check_between("max_attempts", attempts, 1, MAX_ATTEMPTS)
    check_between("cost", options.get("cost", 1), 1, MAX_COST)
    if not isinstance(options.get("breaker"), Breaker | None):
        raise Invalid(kind, "its breaker is not a Breaker", "build a Breaker(failures=…, cooldown=…)")
    isolate = options.pop("isolate", False)
    keep_for = _keep_for(options.pop("keep_result", False), options.pop("result_ttl", None))
    try:
        handler = Handler(
            kind,
            function,
            signature,
            where=executor_for(function, isolate),
            timeout=None if timeout is None else _duration("timeout", timeout),
            retry_on=None if retry_on is None else _exceptions("retry_on", retry_on),
            drop_on=_exceptions("drop_on", options.pop("drop_on", ())),
            result=ResultType(kind, function) if keep_for else None,
            keep_for=keep_for,
            **options,
        )
    except TypeError as error:
        raise Invalid(kind, str(error), "see Forebay.job for its options") from None
    check_name("queue", handler.queue)
    return handler


def _duration(field: str, length: timedelta | float) -> Duration:
    return micros(length) if isinstance(length, timedelta) else from_seconds(field, length)


def _exceptions(field: str, kinds: object) -> tuple[type[BaseException], ...]:
    """One exception class, or several."""
    given = (kinds,) if isinstance(kinds, type) else kinds
    if not isinstance(given, (tuple, list)) or not all(
        isinstance(k, type) and issubclass(k, BaseException) for k in given
    ):
        raise Invalid(field, "it has something other than exception classes", "give one, or a tuple of them")
    return tuple(given)


def _keep_for(keep_result: bool, result_ttl: float | timedelta | None) -> Duration:
    """How long results are kept; 0: not at all."""
    if result_ttl is None:
        return micros(RESULT_KEPT) if keep_result else 0
    ttl = result_ttl if isinstance(result_ttl, timedelta) else timedelta(seconds=result_ttl)
    return checked_micros("result_ttl", ttl, timedelta(milliseconds=1), MAX_DURATION)


def check_breaker(handler: Handler, others: Iterable[Handler]) -> None:
    """Kinds that share a breaker by its name agree on its numbers."""
    breaker = handler.breaker
    if breaker is None or breaker.name is None:
        return
    for other in others:
        shared = other.breaker
        if other.kind != handler.kind and shared is not None and shared.name == breaker.name and shared != breaker:
            what = f"the breaker {breaker.name!r} has other numbers in {other.kind}"
            raise Invalid(handler.kind, what, "give both kinds the same Breaker, or one of them another name")
