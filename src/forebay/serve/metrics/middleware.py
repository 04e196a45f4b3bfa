"""Every request counted, by its route's template, its status and how long it took; for HTTP alone, outermost."""

from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.serve.metrics.meters import UNMATCHED, Meters


class Metered:
    """A long poll is under way while it waits; a stream until its last byte. 499: the caller left before any answer."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499

        async def heard(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = perf_counter()
        self._meters.entered(1)
        try:
            await self._app(scope, receive, heard)
        except Exception:
            status = 500
            raise
        finally:
            self._meters.entered(-1)
            self._meters.requested(scope["method"], _route_of(scope), status, perf_counter() - started)


def _route_of(scope: Scope) -> str:
    """The template, such as /jobs/{job_id}: names and ids of callers never become labels."""
    route: Any = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return path if isinstance(path, str) else UNMATCHED
