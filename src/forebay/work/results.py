"""Encoding of results as JSON: a stored result decodes to exactly what the handler returned, or encoding fails.

Without a return annotation a result may be what a payload may be: plain str, int, float, bool, None, list and dict.
With one it is encoded and decoded by that type; dataclasses, structs, enums, dates, bytes, sets, tuples and pydantic
models round-trip. An unsupported type is refused when the function is decorated. Each encoded result is decoded and
compared before it is stored.
"""

import inspect
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import inspect as types

from forebay.core.errors import Invalid, PayloadInvalid
from forebay.core.limits import PAYLOAD_BYTES
from forebay.core.payload import decode_payload, encode_payload, plain_json
from forebay.work.signature import decode_model, encode_model, unsupported

_REMEDY: Final = "return plain JSON types, or annotate what the function returns"


class ResultInvalid(Invalid):
    """A handler returned a value that cannot be stored. It is not retried: that would only repeat its effects."""

    def __init__(self, kind: str, path: str, reason: str, remedy: str = _REMEDY) -> None:
        super().__init__(f"result of {kind} at {path}", reason, remedy)
        self.path = path


class ResultType:
    """Encodes the results of one function."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self._kind = kind
        hint = _returned(kind, function)
        self._decode: Callable[[bytes], Any] | None = None
        # A function annotated with None may still set a result with `ctx.set_result`.
        if hint not in (Any, object, None, NoneType):
            try:
                found = next(unsupported(types.type_info(hint)), None)
                self._decode = msgspec.json.Decoder(hint, dec_hook=decode_model).decode
            except TypeError as error:
                raise _refused(kind, str(error)) from None
            if found is not None:
                raise _refused(kind, f"{found} has no JSON encoding")

    def encode(self, value: object, limit: int = PAYLOAD_BYTES) -> bytes:
        """The result as JSON; raises `ResultInvalid` with the path of the invalid value."""
        try:
            if self._decode is None:
                return encode_payload(value, limit)
            plain = plain_json(msgspec.to_builtins(value, str_keys=True, enc_hook=encode_model))
            body = encode_payload(plain, limit)
            path = _difference(value, self._decode(body), "$")
        except PayloadInvalid as error:
            raise ResultInvalid(self._kind, error.path, error.reason, error.remedy) from None
        except msgspec.ValidationError as error:
            reason, _, where = str(error).partition(" - at `")
            raise ResultInvalid(
                self._kind, where.rstrip("`") or "$", f"it does not match the annotation: {reason}"
            ) from None
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise ResultInvalid(self._kind, "$", str(error)) from None
        if path is not None:
            where, name = path
            raise ResultInvalid(self._kind, where, f"{name} would not decode to the same value")
        return body

    def decode(self, body: bytes) -> Any:
        return decode_payload(body) if self._decode is None else self._decode(body)


def _refused(kind: str, reason: str) -> Invalid:
    remedy = "annotate a return type that msgspec or pydantic can encode, or leave out keep_result"
    return Invalid(kind, f"its return type cannot be stored: {reason}", remedy)


def _returned(kind: str, function: Callable[..., Any]) -> Any:
    """The annotated return type; `Any` without an annotation."""
    annotations = inspect.get_annotations(function)
    if "return" not in annotations:
        return Any
    stand_in = type("_", (), {"__annotations__": {"value": annotations["return"]}, "__module__": function.__module__})
    try:
        return get_type_hints(stand_in, getattr(function, "__globals__", None), include_extras=True)["value"]
    except NameError as error:
        raise Invalid(kind, f"an annotation cannot be resolved: {error}", "import what it names at run time") from None


def _difference(value: Any, back: Any, path: str) -> tuple[str, str] | None:
    """The path and type of the first value that does not round-trip. An int may become an annotated float."""
    kind = type(value)
    if kind is not type(back):
        same = kind is int and type(back) is float and value == back
        return None if same else (path, kind.__name__)
    pairs: Iterator[tuple[Any, Any, str]]
    if kind in (list, tuple) and len(value) == len(back):
        pairs = ((one, other, f"{path}[{index}]") for index, (one, other) in enumerate(zip(value, back, strict=True)))
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
