"""A server inside another ASGI application: below a path of it, and with its users.

`MountMiddleware` takes the path at which the host has mounted the server off each request, so that all routes, limits
and checks see the paths that they know; links and redirects put it in front again. `HostAuth` is the host's own check.
A cookie of the host comes with requests that other sites make, too. So a change needs the CSRF token on a page and the
server's own origin on the API, as with the server's own sessions; a bearer token of the host needs neither.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from inspect import isawaitable
from typing import Final, TypeAlias

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.serve.actor import Actor

MOUNTED_AT: Final = ContextVar("forebay_mounted_at", default="")
"""The path in front of all URLs of this request."""

HOST_ACTOR: Final = "forebay.host_actor"

HostAuth: TypeAlias = Callable[[Request], Awaitable[Actor | None] | Actor | None]
"""The user of the host application as an actor; None: not logged in, or without access."""


class MountMiddleware:
    """ASGI: the outermost layer of a server."""

    def __init__(self, app: ASGIApp, host: HostAuth | None) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = scope.get("root_path", "").rstrip("/")
        if self._host is not None:
            scope[HOST_ACTOR] = await host_actor(self._host, Request(scope, receive))
        if not prefix:
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        inner = path[len(prefix) :] if path == prefix or path.startswith(f"{prefix}/") else path
        token = MOUNTED_AT.set(prefix)
        try:
            await self._app({**scope, "path": inner or "/", "root_path": ""}, receive, send)
        finally:
            MOUNTED_AT.reset(token)


async def host_actor(host: HostAuth, request: Request) -> Actor | None:
    """The user of the host's session, as it is now."""
    found = host(request)
    return await found if isawaitable(found) else found
