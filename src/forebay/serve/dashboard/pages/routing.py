"""What all routes of the dashboard share: roles, typed forms, live pages, and errors as HTML pages.

    @router.get("/ui/queues/{name}")
    def queue(cache: Cache, actor: Viewer, name: str) -> HtmlPage: ...

    @router.post("/ui/queues/{name}/pause")
    def pause(cache: Cache, actor: Operator, name: str, form: Annotated[PauseForm, form_of_type(PauseForm)]) -> str: ...

A route returns a page, the address of the page to show next, or a response. One that is not `async` may block: it runs
on the thread pool of the store's calls, a live page's again for each update. The actor precedes the form in a
signature: dependencies are resolved in that order, so a form is read after the session, its role and its CSRF token
were checked. A page that shows more than one tenant does not exist for a key that is bound to one: see
`require_all_tenants`.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute, get_request_handler
from starlette.exceptions import HTTPException

from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.live import answer
from forebay.serve.dashboard.render import HtmlPage, render_without_store
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.problems import invalid_value, not_found, to_problem
from forebay.serve.security.sessions import form_of, require_session, session_of

T = TypeVar("T")

MAX_ID: Final = 2**63 - 1


async def view_cache(request: Request) -> ViewCache:
    """For `Depends`."""
    found: ViewCache = request.app.state.view_cache
    return found


Cache: TypeAlias = Annotated[ViewCache, Depends(view_cache)]
ViewerActor: TypeAlias = Annotated[Actor, require_session(Role.VIEWER)]
OperatorActor: TypeAlias = Annotated[Actor, require_session(Role.OPERATOR)]
AdminActor: TypeAlias = Annotated[Actor, require_session(Role.ADMIN)]


class PageRoute(APIRoute):
    """A route of the dashboard; its errors are pages too."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options | {"response_model": None})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint, request_name = self.endpoint, self.dependant.request_param_name
        blocks = not iscoroutinefunction(endpoint)

        @wraps(endpoint)
        async def respond(request: Request, **values: Any) -> Response:
            if request_name is not None:
                values[request_name] = request

            async def make() -> Any:
                return await (request.app.state.context.call(endpoint, **values) if blocks else endpoint(**values))

            made = await make()
            if isinstance(made, HtmlPage):
                return await answer(request, request.state.actor, made, make)
            return back(made) if isinstance(made, str) else made

        handler = get_request_handler(replace(self.dependant, call=respond, request_param_name="request"))

        async def handled(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                if isinstance(error, HTTPException) and error.status_code < 400:
                    raise
                problem = to_problem(error)
                values = {"status": problem.status, "headline": problem.title, "detail": problem.detail}
                page = HtmlPage("problem.html", problem.title, values, status=problem.status)
                response = render_without_store(request, session_of(request), page)
                response.headers.update(problem.headers)
                return response

        return handled


def decode_fields(fields: Mapping[str, str], kind: type[T]) -> T:
    """The fields of a form or a query string as a value of this type; an empty field has the type's default."""
    given = {name: text for name, value in fields.items() if (text := value.strip())}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_value(error) from None


class _FormReader(Generic[T]):
    """A dependency: the form of the request."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind

    async def __call__(self, request: Request) -> T:
        return decode_fields(await form_of(request), self._kind)


def form_of_type(kind: type[Any]) -> Any:
    """The form of the request, decoded and validated as this type."""
    return Depends(_FormReader(kind))


def parse_id(text: str) -> int | None:
    """The number in a search field or a query string; None: it is not one."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) <= MAX_ID else None


async def _page_start(before: str = "") -> int | None:
    return parse_id(before)


Before: TypeAlias = Annotated[int | None, Depends(_page_start)]
"""Where a page of a list begins, in its query string; None, also for what is not a number: the first page."""


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
