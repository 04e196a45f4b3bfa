"""The types of bodies and responses, and the OpenAPI document.

FastAPI reads the types from the signatures of the routes and writes the document. msgspec decodes, checks and encodes
the values: pydantic would parse a payload and write it anew, msgspec keeps its bytes (`msgspec.Raw`). So pydantic has
only the names of models, and `complete_document` fills in the schemas of msgspec.
"""

from typing import Any, ClassVar, Final

import msgspec
from fastapi.openapi.constants import REF_TEMPLATE
from msgspec import Struct
from pydantic_core import CoreSchema, core_schema

from forebay.serve.problems import MEDIA_TYPE

_models: Final[dict[str, type["_Model"]]] = {}


class _Model(Struct, frozen=True):
    EXAMPLE: ClassVar[Any] = None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        _models[cls.__name__] = cls
        return core_schema.any_schema(ref=f"{cls.__module__}.{cls.__name__}:{id(cls)}")


class RequestModel(_Model, frozen=True, forbid_unknown_fields=True):
    """A body. An unknown field is an error: it is a typo, or an option that would silently have no effect."""


class ResponseModel(_Model, frozen=True):
    """A response."""


class ProblemView(ResponseModel, frozen=True):
    """An error (RFC 9457). `type` is for programs, `detail` for people; further members carry the facts."""

    type: str
    title: str
    status: int
    detail: str | None = None
    field: str | None = None
    retry_after: int | None = None


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
_RETRIABLE: Final = (429, 503)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may respond with these problems."""
    return {status: _problem(status) for status in statuses}


def _problem(status: int) -> dict[str, Any]:
    slug, title = _PROBLEMS[status]
    example = {"type": f"urn:forebay:{slug}", "title": title, "status": status}
    response: dict[str, Any] = {
        "description": title,
        "content": {MEDIA_TYPE: {"schema": reference(ProblemView), "example": example}},
    }
    if status in _RETRIABLE:
        header = {"schema": {"type": "integer", "minimum": 1}, "description": "seconds until a retry makes sense"}
        response["headers"] = {"Retry-After": header}
    return response


def reference(model: type[_Model]) -> dict[str, str]:
    """The schema of a model, for what no signature declares."""
    _models[model.__name__] = model
    return {"$ref": REF_TEMPLATE.format(model=model.__name__)}


def complete_document(document: dict[str, Any]) -> None:
    """Fill in the schemas of the models, with their examples."""
    _, schemas = msgspec.json.schema_components(_models.values(), ref_template=REF_TEMPLATE.format(model="{name}"))
    for name, model in _models.items():
        if model.EXAMPLE is not None:
            schemas[name]["examples"] = [model.EXAMPLE]
    known = document.setdefault("components", {}).setdefault("schemas", {})
    known.update(sorted(schemas.items()))
