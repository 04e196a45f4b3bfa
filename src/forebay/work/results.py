"""Results as JSON, and back: exactly what the handler returned, or an error; nothing in between.

Without a return annotation a result is what a payload may be: plain str, int, float, bool, None, list and dict. With
one it is encoded and decoded by that type: dataclasses, structs, enums, dates, bytes, sets, tuples and pydantic models
come back as they were; a type that cannot is refused where the function is decorated. What was encoded is decoded and
compared before it is kept.
"""

import inspect
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import inspect as types

from forebay.core.errors import Invalid, PayloadInvalid
from forebay.core.payload import decode_payload, encode_payload, plain_json
from forebay.work.signature import decode_model, encode_model

_REMEDY: Final = "return plain JSON types, or annotate what the function returns"


class ResultInvalid(Invalid):
    """A handler returned what cannot be kept as it is. Running it again would only repeat its effects."""

    def __init__(self, kind: str, path: str, reason: str, remedy: str = _REMEDY) -> None:
        super().__init__(f"result of {kind} at {path}", reason, remedy)
        self.path = path


class ResultType:
    """How what one function returns is kept."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self._kind = kind
        hint = _returned(kind, function)
        self._decode: Callable[[bytes], Any] | None = None
        # A function that returns nothing may still say what its result is, by `ctx.set_result`.
        if hint not in (Any, object, None, NoneType):
            try:
                foreign = next(_foreign(types.type_info(hint)), None)
                self._decode = msgspec.json.Decoder(hint, dec_hook=decode_model).decode
            except TypeError as error:
                raise _refused(kind, str(error)) from None
            if foreign is not None:
                raise _refused(kind, f"{foreign} has no form in JSON")

    def encode(self, value: object) -> bytes:
        """The result as JSON, or `ResultInvalid` with the path of what is wrong."""
        try:
            if self._decode is None:
                return encode_payload(value)
            body = encode_payload(plain_json(msgspec.to_builtins(value, str_keys=True, enc_hook=encode_model)))
            path = _difference(value, self._decode(body), "$")
        except PayloadInvalid as error:
            raise ResultInvalid(self._kind, error.path, error.reason) from None
        except msgspec.ValidationError as error:
            reason, _, where = str(error).partition(" - at `")
            raise ResultInvalid(
                self._kind, where.rstrip("`") or "$", f"it is not what is annotated: {reason}"
            ) from None
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise ResultInvalid(self._kind, "$", str(error)) from None
        if path is not None:
            where, name = path
            raise ResultInvalid(self._kind, where, f"{name} would not come back as it is")
        return body

    def decode(self, body: bytes) -> Any:
        return decode_payload(body) if self._decode is None else self._decode(body)


def _refused(kind: str, reason: str) -> Invalid:
    remedy = "annotate the return with what msgspec or pydantic can encode, or leave out keep_result"
    return Invalid(kind, f"what it returns cannot be kept: {reason}", remedy)


def _returned(kind: str, function: Callable[..., Any]) -> Any:
    """The annotated type; `Any` where there is none."""
    annotations = inspect.get_annotations(function)
    if "return" not in annotations:
        return Any
    stand_in = type("_", (), {"__annotations__": {"value": annotations["return"]}, "__module__": function.__module__})
    try:
        return get_type_hints(stand_in, getattr(function, "__globals__", None), include_extras=True)["value"]
    except NameError as error:
        raise Invalid(kind, f"an annotation cannot be resolved: {error}", "import what it names at run time") from None


def _foreign(info: Any, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Names of classes in a type that nothing here can encode; a type may hold itself."""
    if id(info) in seen:
        return
    if isinstance(info, types.CustomType):
        if not hasattr(info.cls, "model_validate"):
            yield info.cls.__name__
    elif isinstance(info, types.Type | types.Field):
        for name in info.__struct_fields__:
            part = getattr(info, name)
            for each in part if isinstance(part, tuple) else (part,):
                yield from _foreign(each, seen | {id(info)})


def _difference(value: Any, back: Any, path: str) -> tuple[str, str] | None:
    """Where what came back is not what was given, and the type of that; an int may become the float it is annotated."""
    kind = type(value)
    if kind is not type(back):
        same = kind is int and type(back) is float and value == back
        return None if same else (path, kind.__name__)
    pairs: Iterator[tuple[Any, Any, str]]
    if kind in (list, tuple) and len(value) == len(back):
        pairs = ((one, other, f"{path}[{place}]") for place, (one, other) in enumerate(zip(value, back, strict=True)))
    elif kind is dict and value.keys() == back.keys():
        pairs = ((value[key], back[key], f"{path}.{key}") for key in value)
    else:
        return None if _equal(value, back) else (path, kind.__name__)
    return next((found for each in pairs if (found := _difference(*each)) is not None), None)


def _equal(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:
        return False
