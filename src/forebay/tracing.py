"""OpenTelemetry traces from producer to handler: the job's meta carries the producer's span as W3C trace context.

    carried(meta)   for producers: meta with `traceparent` (and `tracestate`) of the current span
    spans()         for workers: runs handlers inside spans; None without a tracer provider

OpenTelemetry is not imported here. An application that traces has imported it and set a provider before it enqueues or
works; otherwise `spans` is None, at the cost of a dictionary lookup. No enqueue fails because of a trace: a context
that does not fit into meta is left out.

A handler's span follows the messaging conventions: kind CONSUMER, named `process <queue>`, child of and linked to the
producer's span. Every attempt has its own span, with its number.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from forebay.core.job import Job
from forebay.core.limits import META_BYTES, META_ENTRIES, TEXT_LENGTH
from forebay.core.outcome import Failure

Describe = Callable[[BaseException], Failure | None]
"""The redacted failure that an exception means; None for one that is no failure."""

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_PARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_PRINTABLE: Final = re.compile(rf"[ -~]{{1,{TEXT_LENGTH}}}", re.ASCII)


def carried(meta: dict[str, str] | None, headers: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Meta with the trace context of the request's headers, or else of the current span. An existing one is kept."""
    if meta is not None and PARENT in meta:
        return meta
    found = _of_headers(headers) if headers is not None and PARENT in headers else _current()
    if found is None:
        return meta
    together = {**(meta or {}), **found}
    size = sum(len(name) + len(text.encode()) for name, text in together.items())
    return meta if len(together) > META_ENTRIES or size > META_BYTES else together


def _of_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The trace context of a request; None unless it is well formed."""
    parent, state = headers.get(PARENT, ""), headers.get(STATE, "")
    if _PARENT.fullmatch(parent) is None:
        return None
    return {PARENT: parent} | ({STATE: state} if _PRINTABLE.fullmatch(state) else {})


def _current() -> dict[str, str] | None:
    api = _api()
    context = None if api is None else api.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = context.trace_state.to_header() if context.trace_state else ""
    return {PARENT: parent} | ({STATE: state} if _PRINTABLE.fullmatch(state) else {})


class Spans:
    """Runs handlers inside spans of one provider."""

    def __init__(self, api: Any, provider: Any) -> None:
        self._api = api
        self._tracer = provider.get_tracer("forebay")

    def around(self, function: Callable[..., Any], job: Job, failure: Describe) -> Callable[..., Any]:
        """The function inside a span for this job; `failure` describes an exception for the span."""
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(**arguments: Any) -> Any:
                with self._span(job, failure):
                    return await function(**arguments)

            return awaited

        @wraps(function)
        def called(**arguments: Any) -> Any:
            with self._span(job, failure):
                return function(**arguments)

        return called

    @contextmanager
    def _span(self, job: Job, failure: Describe) -> Iterator[None]:
        origin = self._origin(job.meta)
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=None if origin is None else self._api.set_span_in_context(self._api.NonRecordingSpan(origin)),
            kind=self._api.SpanKind.CONSUMER,
            links=[] if origin is None else [self._api.Link(origin)],
            attributes=_attributes(job),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                if (described := failure(error)) is not None:
                    span.set_attribute("error.type", described.kind)
                    span.add_event("exception", _exception(described))
                    span.set_status(self._api.StatusCode.ERROR)
                raise

    def _origin(self, meta: dict[str, str] | None) -> Any:
        """The producer's span; None without a valid one in meta."""
        found = _PARENT.fullmatch((meta or {}).get(PARENT, ""))
        if found is None:
            return None
        trace, span, flags = (int(part, 16) for part in found.groups())
        state = self._api.TraceState.from_header([(meta or {}).get(STATE, "")])
        return self._api.SpanContext(trace, span, True, self._api.TraceFlags(flags), state)


def spans() -> Spans | None:
    """None while no tracer provider is set."""
    api = _api()
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    return Spans(api, provider)


def _api() -> Any:
    """The OpenTelemetry module, if the application has imported it."""
    return sys.modules.get("opentelemetry.trace")


def _exception(failure: Failure) -> dict[str, str]:
    return {"exception.type": failure.kind, "exception.message": failure.message, "exception.stacktrace": failure.trace}


def _attributes(job: Job) -> dict[str, str | int]:
    return {
        "messaging.system": "forebay",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.id),
        "messaging.message.body.size": len(job.body),
        "forebay.job.kind": job.kind,
        "forebay.job.attempt": job.attempt,
        "forebay.job.delivery": job.delivery,
    }
