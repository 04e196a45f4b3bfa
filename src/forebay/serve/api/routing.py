"""Routes of the API: one signature is the route, its authorisation, its validation and its description.

    @router.post("/jobs", status_code=202, responses=problems(404, 409))
    async def enqueue(context: Context, actor: Producer, job: Json[NewJob]) -> Accepted: ...

FastAPI resolves dependencies and parameters and writes the OpenAPI document. An `ApiRoute` adds the codec: it decodes
the body and encodes the response with msgspec. A body is read after the caller's role was checked. An endpoint that is
not `async` may block: it runs on the thread pool of the store's calls, `ServerContext.call`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from fastapi import APIRouter, Body, Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute, get_request_handler, iter_route_contexts
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.serve.actor import Actor, Role
from forebay.serve.api.requests import NAME_PATTERN
from forebay.serve.api.schema import problems
from forebay.serve.context import ServerContext, server_context
from forebay.serve.problems import Problem, error_response, invalid_value
from forebay.serve.security.auth import require_role
from forebay.serve.settings import MAX_PAGE

T = TypeVar("T")

JSON: Final = "application/json"
_encode: Final = msgspec.json.Encoder().encode
_ANY_ROUTE: Final = (401, 403, 413, 422, 429, 503)
_ANY_BODY: Final = (400, 415)

JsonBody: TypeAlias = Annotated[T, Body()]
"""A parameter that is the body."""

JobId: TypeAlias = Annotated[int, Path(ge=0, le=2**63 - 1)]
NameFilter: TypeAlias = Annotated[str | None, Query(pattern=NAME_PATTERN)]
TextFilter: TypeAlias = Annotated[str | None, Query(min_length=1, max_length=256)]
After: TypeAlias = Annotated[int, Query(ge=0, le=2**63 - 1)]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=MAX_PAGE)]
PathName: TypeAlias = Annotated[str, Path(pattern=NAME_PATTERN)]
ContextDep: TypeAlias = Annotated[ServerContext, Depends(server_context)]
ViewerActor: TypeAlias = Annotated[Actor, require_role(Role.VIEWER)]
ProducerActor: TypeAlias = Annotated[Actor, require_role(Role.PRODUCER)]
WorkerActor: TypeAlias = Annotated[Actor, require_role(Role.WORKER)]
OperatorActor: TypeAlias = Annotated[Actor, require_role(Role.OPERATOR)]
AdminActor: TypeAlias = Annotated[Actor, require_role(Role.ADMIN)]


class ApiRoute(APIRoute):
    """A route whose body and response msgspec decodes and encodes."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if self.body_field is not None:
            self.responses = problems(*_ANY_BODY) | self.responses

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond = self._responder()

        @wraps(self.endpoint)
        async def call(request: Request, **values: Any) -> Response:
            return await respond(request, values)

        return get_request_handler(replace(self.dependant, body_params=[], call=call, request_param_name="request"))

    def direct_handler(self) -> Callable[[Request], Awaitable[Response]] | None:
        """A handler without FastAPI's resolution of parameters; None for a route that has parameters."""
        if _has_parameters(self.dependant) or not all(map(_takes_request_only, self.dependant.dependencies)):
            return None
        respond = self._responder()
        dependencies: list[Any] = [(each.name, each.call) for each in self.dependant.dependencies]

        async def handle(request: Request) -> Response:
            return await respond(request, {name: await call(request) for name, call in dependencies})

        return handle

    def _responder(self) -> Callable[[Request, dict[str, Any]], Awaitable[Response]]:
        """The endpoint, between the decoded body and the encoded response."""
        endpoint, status = self.endpoint, self.status_code or 200
        blocks = not iscoroutinefunction(endpoint)
        request_name = self.dependant.request_param_name
        fields = self.dependant.body_params
        body = BodyDecoder[Any](fields[0].field_info.annotation, fields[0].field_info.is_required()) if fields else None

        async def respond(request: Request, values: dict[str, Any]) -> Response:
            if request_name is not None:
                values[request_name] = request
            if body is not None:
                values[fields[0].name] = await body.read(request)
            answer = await (request.app.state.context.call(endpoint, **values) if blocks else endpoint(**values))
            if isinstance(answer, Response):
                return answer
            return Response(status_code=status) if answer is None else Response(_encode(answer), status, None, JSON)

        return respond


def _has_parameters(dependant: Dependant) -> bool:
    return bool(dependant.path_params or dependant.query_params or dependant.header_params or dependant.cookie_params)


def _takes_request_only(dependant: Dependant) -> bool:
    return dependant.request_param_name is not None and not dependant.dependencies and not _has_parameters(dependant)


def api_router(tag: str) -> APIRouter:
    return APIRouter(route_class=ApiRoute, tags=[tag], responses=problems(*_ANY_ROUTE))


class BodyDecoder(Generic[T]):
    """Decodes JSON bodies of one type. An optional one is None when it is empty."""

    def __init__(self, kind: Any, required: bool = True) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._required = required

    async def read(self, request: Request) -> T | None:
        """The body. `RequestLimitsMiddleware` bounds its size."""
        if self._required:
            check_media(request, JSON)
        body = await _read_body(request)
        if not self._required:
            if not body:
                return None
            check_media(request, JSON)
        return self.decode(body)

    def decode(self, body: bytes) -> T:
        """The value, or a problem that names the field and does not repeat its value."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise invalid_value(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            found = str(error) if type(error) is msgspec.DecodeError else "it is not UTF-8, or nested too deep"
            raise Problem(400, "not-json", "The body is not JSON", f"{found}; send one JSON value in UTF-8") from None


def check_media(request: Request, media: str) -> None:
    """Accept only this media type: a page of another site can make a browser send a form, but not JSON."""
    given = request.headers.get("content-type", "")
    if given != media and given.partition(";")[0].strip().lower() != media:
        raise Problem(
            415, "media-type", "The route does not accept this media type", f"send it as Content-Type: {media}"
        )


async def _read_body(request: Request) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Problem(
                400, "incomplete-body", "The body is incomplete", "send all of it before closing the connection"
            )
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def wait_for_disconnect(request: Request) -> None:
    """Returns when the caller has disconnected. Call it after the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class FastPath:
    """ASGI, inside of authentication and limits: calls routes without parameters by method and path.

    FastAPI's routing and its resolution of dependencies cost two thirds of the rest of a `POST /jobs` (decision 0024).
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self.direct = {
            (method, route.path): (route, handle)
            for route in (each.original_route for each in iter_route_contexts(routes))
            if isinstance(route, ApiRoute) and (handle := route.direct_handler()) is not None
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.direct.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"], handle = found
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except Exception as error:
            response = error_response(request, error)
        await response(scope, receive, send)
