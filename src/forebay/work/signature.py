"""A handler's parameters as a JSON object, and back, checked both ways.

At enqueue the arguments are bound to the function's own signature, so a wrong call fails where it is written, and are
encoded by their annotated types; at run the payload is converted to those types again. Plain values, dataclasses,
msgspec structs, enums, dates and pydantic models (if installed) work; a parameter without an annotation takes any JSON.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from forebay.core.errors import Invalid
from forebay.core.payload import Json
from forebay.work.context import Context

_REFUSED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


class PayloadMismatch(Invalid):
    """A stored payload does not fit the handler that is to run it."""


class Signature:
    """How one function is called with a payload."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self._kind = kind
        self._signature = inspect.signature(function)
        hints = get_type_hints(function)
        self._types: dict[str, Any] = {}
        self.context_name: str | None = None
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in _REFUSED:
                raise Invalid(kind, f"parameter {name!r} has no name in a payload", "use plain named parameters")
            if hints.get(name) is Context or (name == "ctx" and name not in hints):
                self.context_name = name
            elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                self._types[name] = hints.get(name, Any)

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Json]:
        """The payload of a call; `Invalid` if the function cannot be called so."""
        try:
            bound = self._bind(args, kwargs)
            return {name: self._to_json(name, value) for name, value in bound.items()}
        except (TypeError, ValueError) as error:
            if isinstance(error, Invalid):
                raise
            raise Invalid(self._kind, str(error), f"call it as {self._kind}{self._signature}") from None

    def unpack(self, payload: Json) -> dict[str, Any]:
        """The arguments of a payload; `PayloadMismatch` if it does not fit."""
        if not isinstance(payload, dict):
            payload = {} if payload is None else self._single(payload)
        missing = [
            name
            for name, parameter in self._signature.parameters.items()
            if name in self._types and name not in payload and parameter.default is parameter.empty
        ]
        unknown = [name for name in payload if name not in self._types and not self._takes_any]
        if missing or unknown:
            raise PayloadMismatch(
                self._kind, f"the payload lacks {missing}, and has unknown {unknown}", "deploy code that fits it"
            )
        return {name: self._from_json(name, value) for name, value in payload.items()}

    @property
    def _takes_any(self) -> bool:
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._signature.parameters.values())

    def _single(self, payload: Json) -> dict[str, Json]:
        """A payload that is one bare value belongs to a handler with one parameter."""
        names = list(self._types)
        if len(names) != 1:
            raise PayloadMismatch(self._kind, f"a bare {type(payload).__name__} fits no parameter", "send an object")
        return {names[0]: payload}

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self.context_name is not None:
            kwargs = {**kwargs, self.context_name: None}
        bound = self._signature.bind(*args, **kwargs)
        values = dict(bound.arguments)
        if self.context_name is not None:
            values.pop(self.context_name, None)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                values.update(values.pop(name, {}))
        return values

    def _to_json(self, name: str, value: Any) -> Json:
        kind = self._types.get(name, Any)
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        built = msgspec.to_builtins(value)
        if kind is not Any:
            self._convert(name, built, kind, Invalid)
        return built

    def _from_json(self, name: str, value: Json) -> Any:
        kind = self._types.get(name, Any)
        if kind is Any:
            return value
        return self._convert(name, value, kind, PayloadMismatch)

    def _convert(self, name: str, value: Json, kind: Any, refusal: type[Invalid]) -> Any:
        try:
            if hasattr(kind, "model_validate"):
                return kind.model_validate(value)
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise refusal(f"{self._kind}({name})", str(error), f"it takes {kind}") from None
