"""The OpenAPI document, generated from the types that decode requests and encode responses.

A route names its body, its response, an example of each, and the problems it may respond with. `described` turns that
into the keyword arguments of a FastAPI route, and `build_openapi` adds the schemas.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct

from forebay.serve.problems import MEDIA_TYPE

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
_REF: Final = "#/components/schemas/{name}"
_KNOWN: Final[dict[str, Any]] = {}

_PROBLEMS: Final = {
    400: ("not-json", "The body is not JSON"),
    401: ("unauthorized", "Authentication is needed"),
    403: ("forbidden", "Missing role"),
    404: ("not-found", "Not found"),
    409: ("duplicate", "The key was used before"),
    410: ("offset-gone", "The log no longer holds this offset"),
    413: ("too-large", "The request is too large"),
    415: ("media-type", "The route does not accept this media type"),
    422: ("invalid", "A value is invalid"),
    429: ("too-many", "Too many requests"),
    503: ("store-unavailable", "The store is unavailable"),
}
_ALWAYS: Final = (401, 403, 413, 422, 429, 503)
_WAITS: Final = (429, 503)


class ProblemView(Struct, frozen=True):
    """An error (RFC 9457). `type` is for programs, `detail` for people; further members carry the facts."""

    type: str
    title: str
    status: int
    detail: str | None = None
    field: str | None = None
    retry_after: int | None = None


def described(
    answer: type[Struct] | None = None,
    *,
    status: int = 200,
    example: Any = None,
    body: Any = None,
    sent: Any = None,
    optional: bool = False,
    media: str = JSON,
    problems: tuple[int, ...] = (),
) -> dict[str, Any]:
    """`responses`, `status_code` and `openapi_extra` of a route."""
    also = (400, 415, *problems) if body is not None else problems
    responses: dict[int | str, Any] = {number: _problem(number) for number in sorted({*_ALWAYS, *also})}
    ok: dict[str, Any] = {"description": "Success"}
    if answer is not None:
        ok["content"] = {media: _content(answer, example)}
    responses[status] = ok
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"required": not optional, "content": {media: _content(body, sent)}}
    return {"responses": responses, "status_code": status, "openapi_extra": extra, "response_model": None}


def _content(kind: Any, example: Any) -> dict[str, Any]:
    if isinstance(kind, Mapping):
        content: dict[str, Any] = {"schema": dict(kind)}
    else:
        _KNOWN[kind.__name__] = kind
        content = {"schema": {"$ref": _REF.format(name=kind.__name__)}}
    return content if example is None else content | {"example": example}


def _problem(status: int) -> dict[str, Any]:
    slug, title = _PROBLEMS[status]
    example = {"type": f"urn:forebay:{slug}", "title": title, "status": status}
    response: dict[str, Any] = {"description": title, "content": {MEDIA_TYPE: _content(ProblemView, example)}}
    if status in _WAITS:
        header = {"schema": {"type": "integer", "minimum": 1}, "description": "seconds until a retry makes sense"}
        response["headers"] = {"Retry-After": header}
    return response


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """The document, built once and cached by the app."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, schemas = msgspec.json.schema_components(list(_KNOWN.values()), ref_template=_REF)
        components = document.setdefault("components", {})
        components["schemas"] = dict(sorted(({**components.get("schemas", {})} | schemas).items()))
        for unused in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(unused, None)
        for methods in document["paths"].values():
            for about in methods.values():
                if "422" in about["responses"]:
                    about["responses"]["422"] = _problem(422)
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "an API key"}}
        document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema
