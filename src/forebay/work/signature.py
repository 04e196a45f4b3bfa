"""Encoding of a handler's parameters as a JSON object, validated in both directions.

At enqueue the arguments are bound to the function's signature, so a wrong call fails at the caller, and encoded by
their annotated types; before a run the payload is decoded into those types. Plain values, dataclasses, msgspec structs,
enums, dates and pydantic models (if installed) are supported; a parameter without an annotation accepts any JSON.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator
from types import UnionType
from typing import Any, Final, Protocol, Self, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType
from msgspec import inspect as types

from forebay.core.errors import Invalid, PayloadInvalid
from forebay.core.job import Job
from forebay.core.limits import PAYLOAD_BYTES
from forebay.core.payload import Json, decode_payload, encode_payload, is_reference, plain_json
from forebay.work.context import Context
from forebay.work.redacting import rules
from forebay.work.versions import Versions, version_of

_SECRETS_KEPT = 256
"""Large payloads of a kind whose secrets are kept in memory."""

HIDDEN_CONTEXT: Final = "forebay.ctx"
"""The name under which a function that takes no context receives it: no parameter can have this name."""

_REFUSED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


class PayloadMismatch(Invalid):
    """A stored payload does not match the parameters of its handler."""


class PayloadStorage(Protocol):
    """Encrypts payloads and results, and keeps large ones in a blob store (`forebay.blobs`)."""

    @property
    def max_bytes(self) -> int: ...

    @property
    def blobs(self) -> object | None: ...

    def keep_result(self, kind: str, body: bytes) -> bytes: ...

    def open(self, kind: str, body: bytes) -> bytes: ...


class Signature:
    """Converts between the arguments of one function and payloads, by a msgspec struct made of its parameters.

    `injected`: parameters that are not in the payload, with their types, which are among the provided ones.
    """

    def __init__(
        self,
        kind: str,
        function: Callable[..., Any],
        storage: PayloadStorage | None = None,
        provided: Collection[Any] = (),
        version: int = 1,
    ) -> None:
        self._kind = kind
        self._storage = storage
        self._secrets: dict[bytes, Collection[str]] = {}
        self._signature = inspect.signature(function)
        self.context_name: str | None = None
        self.injected: dict[str, Any] = {}
        self.versions = Versions(kind, version)
        self._open = False
        fields: list[tuple[str, Any, Any]] = []
        hints = _hints(kind, function)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in _REFUSED:
                raise Invalid(kind, f"parameter {name!r} cannot be passed by name", "use plain named parameters")
            found = injectable(hints.get(name), provided)
            if found is Context or (name == "ctx" and name not in hints):
                self.context_name = name
            elif found is not None:
                self.injected[name] = found
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self._open = True
            else:
                optional = parameter.default is not parameter.empty
                hint = hints.get(name, Any)
                fields.append((name, hint | UnsetType if optional else hint, UNSET if optional else msgspec.NODEFAULT))
        self._names = tuple(name for name, _, _ in fields)
        self._optional = tuple(name for name, _, default in fields if default is UNSET)
        self._callable = self._signature.replace(
            parameters=[
                parameter
                for name, parameter in self._signature.parameters.items()
                if name != self.context_name and name not in self.injected
            ]
        )
        try:
            for name, hint, _ in fields:
                self._check_supported(name, hint)
            params = msgspec.defstruct("Parameters", fields, kw_only=True, forbid_unknown_fields=not self._open)
            self._decode = msgspec.json.Decoder(params, dec_hook=decode_model).decode
        except TypeError as error:
            raise Invalid(
                kind, f"its annotations cannot be decoded from JSON: {error}", "use simpler annotations"
            ) from None

    def _check_supported(self, name: str, hint: Any) -> None:
        found = next(unsupported(types.type_info(hint)), None)
        if found is not None:
            remedy = f"call fb.provide({found}, …) before, or annotate what JSON can carry"
            raise Invalid(self._kind, f"parameter {name!r} ({found}) is neither JSON nor provided", remedy)

    def with_context(self) -> Self:
        """The same for a function that takes a context in any case, perhaps as `HIDDEN_CONTEXT`."""
        changed = copy.copy(self)
        changed.context_name = self.context_name or HIDDEN_CONTEXT
        return changed

    def arguments(self, job: Job, context: Context | None) -> dict[str, Any]:
        """The arguments of a job, upgraded, with the context for a function that takes one."""
        arguments = self.unpack(job.body, 1 if job.meta is None else version_of(job.meta))
        if self.context_name is not None:
            arguments[self.context_name] = context
        return arguments

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Json]:
        """The payload of a call; raises `Invalid` if the arguments do not match the parameters."""
        try:
            values = self._bind(args, kwargs)
            payload: dict[str, Json] = plain_json(msgspec.to_builtins(values, enc_hook=encode_model))
            self._decode(encode_payload(payload, self.limit))
        except PayloadInvalid:
            raise
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise Invalid(self._kind, str(error), f"call it as {self._kind}{self._callable}") from None
        return payload

    def opened(self, body: bytes) -> bytes:
        """The payload, read from the blob store and decrypted."""
        if self._storage is None:
            return body
        opened = self._storage.open(self._kind, body)
        if is_reference(body) and body not in self._secrets:
            while len(self._secrets) >= _SECRETS_KEPT:
                self._secrets.pop(next(iter(self._secrets)), None)
            self._secrets[body] = rules().secrets(self._kind, decode_payload(opened))
        return opened

    def secrets(self, body: bytes) -> Collection[str]:
        """The secrets in the payload. Those of a blob are kept in memory: it is not read again for each message."""
        known = self._secrets.get(body)
        return rules().secrets(self._kind, decode_payload(self.opened(body))) if known is None else known

    def kept(self, result: bytes) -> bytes:
        """What the job keeps of an encoded result: encrypted if there is a vault, a reference if it is large."""
        return result if self._storage is None else self._storage.keep_result(self._kind, result)

    @property
    def limit(self) -> int:
        """Bytes of the largest payload and result."""
        return PAYLOAD_BYTES if self._storage is None else self._storage.max_bytes

    @property
    def has_blobs(self) -> bool:
        """Whether keeping a result may write to a blob store."""
        return self._storage is not None and self._storage.blobs is not None

    def unpack(self, body: bytes, version: int | None = None) -> dict[str, Any]:
        """The arguments in a payload; raises `PayloadMismatch` if it does not match the parameters.

        `version`: of the payload; the current one unless it is given.
        """
        body = self.opened(body)
        if version is not None and version < self.versions.current:
            body = self._upgraded(body, version)
        try:
            values = self._decode(body)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            return self._unpack_other(body, error)
        arguments = msgspec.structs.asdict(values)
        for name in self._optional:
            if arguments[name] is UNSET:
                del arguments[name]
        if self._open:
            known = arguments.keys() | {self.context_name, *self.injected}
            arguments |= {name: value for name, value in msgspec.json.decode(body).items() if name not in known}
        return arguments

    def _upgraded(self, body: bytes, version: int) -> bytes:
        try:
            payload = self.versions.upgrade(decode_payload(body), version)
        except Invalid as error:
            raise PayloadMismatch(error.field, error.reason, error.remedy) from None
        return encode_payload(payload, self.limit)

    def _unpack_other(self, body: bytes, error: Exception) -> dict[str, Any]:
        """A payload that is not an object: null for no parameters, or the bare value of the only parameter."""
        payload = msgspec.json.decode(body)
        if payload is None and body != b"{}":
            return self.unpack(b"{}")
        if not isinstance(payload, dict) and len(self._names) == 1:
            return self.unpack(encode_payload({self._names[0]: payload}, self.limit))
        raise PayloadMismatch(
            self._kind, f"the payload does not match: {error}", "deploy code that accepts it, then redrive"
        )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        values = dict(self._callable.bind(*args, **kwargs).arguments)
        for name, parameter in self._callable.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                values.update(values.pop(name, {}))
        return values


def _hints(kind: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The annotated types of the parameters, without the return type."""
    annotated = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    annotations = {name: hint for name, hint in inspect.get_annotations(annotated).items() if name != "return"}
    stand_in = type("_", (), {"__annotations__": annotations, "__module__": getattr(function, "__module__", None)})
    try:
        return get_type_hints(stand_in, getattr(inspect.unwrap(function), "__globals__", None), include_extras=True)
    except NameError as error:
        raise Invalid(kind, f"an annotation cannot be resolved: {error}", "import what it names at run time") from None


def parameter_types(label: str, function: Callable[..., Any]) -> Iterator[tuple[str, Any, bool]]:
    """Name, annotated type and whether there is a default, of each parameter."""
    hints = _hints(label, function)
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a built-in class
        return
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty
        yield name, hints.get(name, Context if name == "ctx" else Any), optional


def injectable(hint: Any, provided: Collection[Any]) -> Any:
    """`Context`, or the provided type, that a parameter with this annotation receives; None: neither."""
    either = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((each for each in either if each is Context or each in provided), None)


def type_name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def unsupported(info: Any, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Names of classes in a type that cannot be encoded. `seen` ends the recursion: a type may contain itself."""
    if id(info) in seen:
        return
    if isinstance(info, types.CustomType):
        if not hasattr(info.cls, "model_validate"):
            yield info.cls.__name__
    elif isinstance(info, types.Type | types.Field):
        for name in info.__struct_fields__:
            part = getattr(info, name)
            for each in part if isinstance(part, tuple) else (part,):
                yield from unsupported(each, seen | {id(info)})


def encode_model(value: Any) -> Any:
    """A pydantic model as JSON-compatible values."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def decode_model(kind: type, value: Json) -> Any:
    """A pydantic model from JSON."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(
        f"{kind.__name__} cannot be decoded from JSON: annotate with a plain type, dataclass, struct or model"
    )
