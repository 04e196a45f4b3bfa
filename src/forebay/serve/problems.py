"""Every error response of the server, as application/problem+json (RFC 9457).

    {"type": "urn:forebay:queue-full", "title": "The queue is full", "status": 503, "detail": "…", …}

`type` is for programs, `detail` is for people, and further members carry the facts as fields. Forebay's own errors keep
their message, which holds no payload. Any other exception becomes a 500 with a reference that is also in the log, and
reveals nothing else.
"""

import logging
import math
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.core.errors import (
    BatchTooLarge,
    Closed,
    ForebayError,
    Invalid,
    KeyConflict,
    LeaseLost,
    OffsetGone,
    PartitionLost,
    PayloadInvalid,
    QueueFull,
    QueueMoved,
    StoreFailed,
    Unsupported,
    WrongQueueKind,
)

_log = logging.getLogger("forebay.serve")

MEDIA_TYPE: Final = "application/problem+json"
RETRY_STORE: Final = 2
"""Seconds after which a request to an unavailable store is worth retrying."""

_BY_STATUS: Final = {
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "The path does not support this method"),
    413: ("too-large", "The request is too large"),
    415: ("media-type", "The route does not accept this media type"),
}


_PATTERNS: Final[dict[str, str]] = {}
"""Regular expressions of parameters and fields, and what to write, for errors."""


def pattern(regex: str, meaning: str) -> str:
    """The regular expression; the error of a value that does not match shows the meaning instead."""
    _PATTERNS[regex] = meaning
    return regex


def _in_words(reason: str) -> str:
    return next((meaning for regex, meaning in _PATTERNS.items() if f"'{regex}'" in reason), reason)


class Problem(Exception):
    """One error response."""

    def __init__(
        self,
        status: int,
        slug: str,
        title: str,
        detail: str = "",
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(title)
        self.status = status
        self.slug = slug
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self) -> dict[str, Any]:
        about = {"type": f"urn:forebay:{self.slug}", "title": self.title, "status": self.status}
        return about | ({"detail": self.detail} if self.detail else {}) | self.extra

    def response(self) -> Response:
        return Response(msgspec.json.encode(self.body()), self.status, self.headers, MEDIA_TYPE)


def not_found(what: str) -> Problem:
    """The same response for what does not exist and for what the caller may not see."""
    return Problem(404, "not-found", "Not found", f"{what} does not exist, or this key may not see it")


def invalid_value(error: msgspec.ValidationError) -> Problem:
    """The response to a body or a form that does not fit its type: it names the field and does not repeat its value."""
    reason, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").lstrip(".") or "body"
    return Problem(422, "invalid", "A value is invalid", f"{field}: {_in_words(reason)}", extra={"field": field})


_BY_ERROR: Final[tuple[tuple[type[ForebayError], int, str, str, tuple[str, ...]], ...]] = (
    (BatchTooLarge, 413, "batch-too-large", "Too much in one call", ("limit",)),
    (PayloadInvalid, 422, "payload", "The payload is invalid", ("field",)),
    (WrongQueueKind, 409, "wrong-kind", "The operation does not fit the queue's retention", ("field",)),
    (QueueMoved, 409, "queue-moved", "The queue has left this cell", ("queue", "version")),
    (Invalid, 422, "invalid", "A value is invalid", ("field",)),
    (KeyConflict, 422, "key-conflict", "The key belongs to another payload", ("queue", "key")),
    (Unsupported, 422, "unsupported", "The store cannot do this", ()),
    (OffsetGone, 410, "offset-gone", "The log no longer holds this offset", ("requested", "first")),
    (PartitionLost, 409, "partition-lost", "The partition is another member's", ("partition", "epoch")),
    (LeaseLost, 409, "lease-lost", "The lease is lost", ()),
)
"""Status, slug, title, and the fields that are facts; subclasses precede their parents."""


def problem_of(error: ForebayError) -> Problem:
    """The response to an error of Forebay."""
    if isinstance(error, QueueFull):
        return _full(error)
    if isinstance(error, StoreFailed | Closed):
        return _store_unavailable()
    for kind, status, slug, title, fields in _BY_ERROR:
        if isinstance(error, kind):
            return Problem(status, slug, title, str(error), extra={name: getattr(error, name) for name in fields})
    return unexpected(error)


def _full(error: QueueFull) -> Problem:
    never = error.requested > error.limit
    seconds = max(1, math.ceil(error.retry_after))
    facts = {"queue": error.queue, "depth": error.depth, "limit": error.limit, "retry_after": seconds}
    headers = {} if never else {"Retry-After": str(seconds)}
    return Problem(503, "queue-full", "The queue is full", str(error), headers, facts)


def _store_unavailable() -> Problem:
    detail = "nothing was acknowledged; try again, with the same idempotency key if you sent one"
    headers = {"Retry-After": str(RETRY_STORE)}
    return Problem(503, "store-unavailable", "The store is unavailable", detail, headers, {"retry_after": RETRY_STORE})


def unexpected(error: BaseException) -> Problem:
    reference = secrets.token_hex(6)
    _log.error("unexpected error, reference %s", reference, exc_info=error)
    detail = f"see the server's log, reference {reference}"
    return Problem(500, "internal-error", "Internal error", detail, extra={"reference": reference})


def _of_status(error: HTTPException) -> Problem:
    slug, title = _BY_STATUS.get(error.status_code, ("http", HTTPStatus(error.status_code).phrase))
    allowed = (error.headers or {}).get("Allow")
    hint = f"use {allowed}" if allowed else "GET /openapi.json lists the paths" if error.status_code == 404 else ""
    return Problem(error.status_code, slug, title, hint, error.headers)


def _of_values(error: RequestValidationError) -> Problem:
    """Invalid query and path parameters; the response does not repeat their values."""
    first = error.errors()[0]
    name, *index = first["loc"][1:] or first["loc"]
    field = f"{name}{''.join(f'[{number}]' for number in index)}"
    detail = f"{field}: {_in_words(first['msg'])}"
    return Problem(422, "invalid", "A value is invalid", detail, extra={"field": field})


def to_problem(error: Exception) -> Problem:
    """The problem for any exception."""
    match error:
        case Problem():
            return error
        case ForebayError():
            return problem_of(error)
        case HTTPException():
            return _of_status(error)
        case RequestValidationError():
            return _of_values(error)
        case _:
            return unexpected(error)


def error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed; the failure is counted."""
    request.app.state.context.meters.count_error(error)
    return to_problem(error).response()


async def _handle(request: Request, error: Exception) -> Response:
    return error_response(request, error)


class ErrorMiddleware:
    """ASGI, innermost: responds to unexpected exceptions, so that the connection stays usable."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            await error_response(Request(scope), error)(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Every error leaves the app as a problem."""
    app.add_middleware(ErrorMiddleware)
    for kind in (Problem, ForebayError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _handle)
