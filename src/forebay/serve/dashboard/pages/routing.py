"""What all routes of the dashboard share: roles, and errors as HTML pages.

A page that shows more than one tenant does not exist for a key that is bound to one: see `require_all_tenants`.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.render import Page, render_without_store
from forebay.serve.problems import not_found, to_problem
from forebay.serve.security.sessions import require_session, session_of

Viewer: TypeAlias = Annotated[Actor, require_session(Role.VIEWER)]
Operator: TypeAlias = Annotated[Actor, require_session(Role.OPERATOR)]
Admin: TypeAlias = Annotated[Actor, require_session(Role.ADMIN)]


class PageRoute(APIRoute):
    """A route that renders its errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                if isinstance(error, HTTPException) and error.status_code < 400:
                    raise
                problem = to_problem(error)
                values = {"status": problem.status, "headline": problem.title, "detail": problem.detail}
                sheet = Page("problem.html", problem.title, values, status=problem.status)
                page = render_without_store(request, session_of(request), sheet)
                page.headers.update(problem.headers)
                return page

        return handled


def pages() -> APIRouter:
    """A router of page routes."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def require_all_tenants(actor: Actor, what: str = "this page") -> None:
    """A 404 for a key of one tenant, which sees that tenant's jobs only."""
    if actor.tenant is not None:
        raise not_found(what)


def back(address: str) -> RedirectResponse:
    """The redirect after a change."""
    return RedirectResponse(address, 303)
