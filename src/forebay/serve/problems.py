"""Every refusal of the HTTP side, as application/problem+json (RFC 9457): one shape, one table, no exception's text.

    {"type": "urn:forebay:queue-full", "title": "The queue is full", "status": 503, "detail": "…", …}

`type` is what programs compare, `detail` is for people, and further members carry the facts as fields. What Forebay
raises on purpose keeps its own words, which hold no payload. Anything else is a 500 with a reference that is also in
the log: whoever reads the answer learns nothing of the inside.
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
    StoreFailed,
    Unsupported,
    WrongQueueKind,
)

_log = logging.getLogger("forebay.serve")

MEDIA_TYPE: Final = "application/problem+json"
RETRY_STORE: Final = 2
"""Seconds after which a store that is away is worth another try."""

_BY_STATUS: Final = {
    404: ("absent", "Not found"),
    405: ("method", "The path does not know this method"),
    413: ("too-large", "The request is too large"),
    415: ("media-type", "The body is not what this route takes"),
}


class Problem(Exception):
    """One refusal."""

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


def absent(what: str) -> Problem:
    """The same for what never was and for what the caller may not see."""
    return Problem(404, "absent", "Not found", f"{what} is unknown here")


def problem_of(error: ForebayError) -> Problem:
    """What an error of Forebay means to a caller over HTTP; subclasses come before their parents."""
    told = str(error)
    match error:
        case BatchTooLarge():
            return Problem(413, "batch-too-large", "Too much in one call", told, extra={"limit": error.limit})
        case PayloadInvalid():
            return Problem(422, "payload", "The payload is refused", told, extra={"field": error.field})
        case WrongQueueKind():
            return Problem(409, "wrong-kind", "A log is no queue, a queue no log", told, extra={"field": error.field})
        case Invalid():
            return Problem(422, "invalid", "A value is refused", told, extra={"field": error.field})
        case QueueFull():
            return _full(error)
        case KeyConflict():
            facts = {"queue": error.queue, "key": error.key}
            return Problem(422, "key-conflict", "The key belongs to another payload", told, extra=facts)
        case Unsupported():
            return Problem(422, "unsupported", "The store cannot do this", told)
        case OffsetGone():
            facts_gone = {"asked": error.asked, "first": error.first}
            return Problem(410, "offset-gone", "The log no longer holds this offset", told, extra=facts_gone)
        case PartitionLost():
            facts_lost = {"partition": error.partition, "epoch": error.epoch}
            return Problem(409, "partition-lost", "The partition is another member's", told, extra=facts_lost)
        case LeaseLost():
            return Problem(409, "lease-lost", "The lease is lost", told)
        case StoreFailed() | Closed():
            return _away()
        case _:
            return unexpected(error)


def _full(error: QueueFull) -> Problem:
    never = error.asked > error.limit
    seconds = max(1, math.ceil(error.retry_after))
    facts = {"queue": error.queue, "depth": error.depth, "limit": error.limit, "retry_after": seconds}
    headers = {} if never else {"Retry-After": str(seconds)}
    return Problem(503, "queue-full", "The queue is full", str(error), headers, facts)


def _away() -> Problem:
    detail = "nothing was acknowledged; try again, with the same key if you gave one"
    headers = {"Retry-After": str(RETRY_STORE)}
    return Problem(503, "store-away", "The store is out of reach", detail, headers, {"retry_after": RETRY_STORE})


def unexpected(error: BaseException) -> Problem:
    reference = secrets.token_hex(6)
    _log.error("unexpected, reference %s", reference, exc_info=error)
    detail = f"the server's log says more under {reference}"
    return Problem(500, "unexpected", "Something went wrong here", detail, extra={"reference": reference})


def _of_status(error: HTTPException) -> Problem:
    slug, title = _BY_STATUS.get(error.status_code, ("http", HTTPStatus(error.status_code).phrase))
    return Problem(error.status_code, slug, title, headers=error.headers)


def _of_values(error: RequestValidationError) -> Problem:
    """Query and path parameters; what was given is not said back."""
    first = error.errors()[0]
    field = str(first["loc"][-1])
    return Problem(422, "invalid", "A value is refused", f"{field}: {first['msg']}", extra={"field": field})


def any_problem(error: Exception) -> Problem:
    """Whatever was raised, as a problem."""
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


def answered(request: Request, error: Exception) -> Response:
    """The answer to a request that failed like this; failures are counted."""
    request.app.state.ground.meters.met(error)
    return any_problem(error).response()


async def _handle(request: Request, error: Exception) -> Response:
    return answered(request, error)


class Unfailing:
    """ASGI, innermost: what is unexpected is answered here, and the connection lives on for the next request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def told(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, told)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await answered(Request(scope), error)(scope, receive, send)


def install(app: FastAPI) -> None:
    """Nothing leaves the app in another shape."""
    app.add_middleware(Unfailing)
    for kind in (Problem, ForebayError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _handle)
