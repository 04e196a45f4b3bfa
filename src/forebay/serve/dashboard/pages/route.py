"""What all routes of the dashboard have in common: who they are for, and that people get errors as pages.

A page that shows more than one tenant is not there for a key that is bound to one: `whole` says so.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.render import Sheet, still
from forebay.serve.problems import absent, any_problem
from forebay.serve.security.sessions import seat, session_of

Viewer: TypeAlias = Annotated[Actor, seat(Role.VIEWER)]
Operator: TypeAlias = Annotated[Actor, seat(Role.OPERATOR)]
Admin: TypeAlias = Annotated[Actor, seat(Role.ADMIN)]


class PageRoute(APIRoute):
    """A route whose refusals are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                if isinstance(error, HTTPException) and error.status_code < 400:
                    raise
                problem = any_problem(error)
                values = {"status": problem.status, "headline": problem.title, "detail": problem.detail}
                sheet = Sheet("problem.html", problem.title, values, status=problem.status)
                page = still(request, session_of(request), sheet)
                page.headers.update(problem.headers)
                return page

        return handled


def pages() -> APIRouter:
    """A router for pages."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def whole(actor: Actor, what: str = "this page") -> None:
    """A key of one tenant sees that tenant's jobs, not what all tenants do together."""
    if actor.tenant is not None:
        raise absent(what)


def back(address: str) -> RedirectResponse:
    """After a change: look at what came of it."""
    return RedirectResponse(address, 303)
