"""Direct dispatch for the few routes that are called thousands of times per second.

FastAPI matches path patterns and resolves dependencies for every request, which costs as much as the rest of a
`POST /jobs`. This middleware calls the same functions by method and path, with the actor that `require_role` demands.
They stay routes of the app, for its OpenAPI document and for code that reads the router.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, get_type_hints

from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.serve.actor import Actor, Role
from forebay.serve.api import jobs, work
from forebay.serve.problems import error_response
from forebay.serve.security.auth import RequireRole, authenticated_actor, check_roles

Endpoint: TypeAlias = Callable[[Request, Actor], Awaitable[Response]]

FAST_ROUTES: Final[Mapping[tuple[str, str], Endpoint]] = {
    ("POST", "/jobs"): jobs.enqueue,
    ("POST", "/claim"): work.claim,
    ("POST", "/settle"): work.settle,
    ("POST", "/extend"): work.extend,
}


class _Route:
    """The part of a route that the metrics read from the scope."""

    def __init__(self, path: str) -> None:
        self.path = path


class FastPath:
    """ASGI, inside of authentication and limits, which therefore apply to these routes too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._routes = {key: (endpoint, roles_of(endpoint), _Route(key[1])) for key, endpoint in FAST_ROUTES.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        endpoint, roles, scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request, check_roles(await authenticated_actor(request), roles))
        except Exception as error:
            response = error_response(request, error)
        await response(scope, receive, send)


def roles_of(endpoint: Endpoint) -> tuple[Role, ...]:
    """The roles that the endpoint's signature requires: `actor: Annotated[Actor, require_role(…)]`."""
    needed = get_type_hints(endpoint, include_extras=True)["actor"].__metadata__[0].dependency
    assert isinstance(needed, RequireRole)
    return needed.roles
