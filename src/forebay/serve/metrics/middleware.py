"""Counts every HTTP request by route template and status, with its duration. The outermost middleware."""

from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.serve.metrics.meters import UNMATCHED, Meters


class MetricsMiddleware:
    """A long poll is in flight while it waits, a stream until its last byte. 499: the caller disconnected first."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = perf_counter()
        self._meters.entered(1)
        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status = 500
            raise
        finally:
            self._meters.entered(-1)
            self._meters.requested(scope["method"], _route_of(scope), status, perf_counter() - started)


def _route_of(scope: Scope) -> str:
    """The template, such as /jobs/{job_id}: names and ids from callers never become labels."""
    route: Any = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return path if isinstance(path, str) else UNMATCHED
