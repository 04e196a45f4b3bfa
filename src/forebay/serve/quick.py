"""The short way to the few routes that are asked thousands of times a second.

FastAPI finds a route by matching patterns, and solves dependencies that are the same for every request; that costs as
much as the rest of a `POST /jobs`. Here the same functions are called straight away: by method and path, with the
actor that `need` demands. They stay routes of the app, for its document and for whoever reads the router.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, get_type_hints

from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.serve.actor import Actor, Role
from forebay.serve.api import jobs, work
from forebay.serve.problems import answered
from forebay.serve.security.door import Need, caller, check_roles

Endpoint: TypeAlias = Callable[[Request, Actor], Awaitable[Response]]

WAYS: Final[Mapping[tuple[str, str], Endpoint]] = {
    ("POST", "/jobs"): jobs.enqueue,
    ("POST", "/claim"): work.claim,
    ("POST", "/settle"): work.settle,
    ("POST", "/extend"): work.extend,
}


class _Known:
    """What whoever looks at a scope's route wants to know of it."""

    def __init__(self, path: str) -> None:
        self.path = path


class Quick:
    """ASGI, innermost: nothing of the door is passed by."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ways = {
            (method, path): (endpoint, roles_of(endpoint), _Known(path)) for (method, path), endpoint in WAYS.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        way = self._ways.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if way is None:
            await self._app(scope, receive, send)
            return
        endpoint, roles, scope["route"] = way
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request, check_roles(await caller(request), roles))
        except Exception as error:
            response = answered(request, error)
        await response(scope, receive, send)


def roles_of(endpoint: Endpoint) -> tuple[Role, ...]:
    """As the route itself says it: `actor: Annotated[Actor, need(…)]`."""
    needed = get_type_hints(endpoint, include_extras=True)["actor"].__metadata__[0].dependency
    assert isinstance(needed, Need)
    return needed.roles
