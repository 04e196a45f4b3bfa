"""Payloads are JSON that every store and every language keeps alike; anything else is refused when the draft is made.

Refused: types JSON does not have (tuples, sets, bytes, dates: they would come back as something else), keys that are
not strings, NaN and Infinity, integers beyond 64 bits, NUL and lone surrogates (Postgres and others cannot keep them),
nesting deeper than 64, more than 256 KiB encoded. The refusal names the path inside the payload, never its content.
"""

import hashlib
from math import isfinite
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from forebay.core.errors import Invalid, PayloadInvalid
from forebay.core.limits import MAX_INTEGER, MIN_INTEGER, PAYLOAD_BYTES, PAYLOAD_DEPTH

Json: TypeAlias = Any
SEALED: Final = "$sealed"
"""The only name in the envelope of a sealed payload."""

BLOB: Final = "$blob"
"""The only name in the reference to a payload in the blob store."""

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode


class _Refused(Exception):
    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        self.steps: list[str | int] = []

    def path(self) -> str:
        return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in reversed(self.steps))


def encode_payload(value: Json, limit: int = PAYLOAD_BYTES) -> bytes:
    """The value as compact JSON, or `PayloadInvalid` with the path of what is wrong."""
    try:
        if type(value) is dict:
            _check_dict(value, 0)
        else:
            _check(value, 0)
    except _Refused as refused:
        raise PayloadInvalid(refused.path(), refused.reason, refused.remedy) from None
    body = _encode(value)
    if len(body) > limit:
        raise _too_large(len(body), limit)
    return body


def check_body(body: bytes) -> bytes:
    """Bytes that arrived as JSON, held to the same rules; the size is checked before anything is parsed."""
    if type(body) is not bytes:
        raise PayloadInvalid("$", f"it is {type(body).__name__}, not bytes", "send encoded JSON, or the value itself")
    if len(body) > PAYLOAD_BYTES:
        raise _too_large(len(body), PAYLOAD_BYTES)
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise PayloadInvalid("$", "it is not JSON", "send one JSON value in UTF-8") from None
    return encode_payload(value)


def decode_payload(body: bytes) -> Json:
    return _decode(body)


def digest(kind: str, body: bytes) -> bytes:
    """What is stored with an idempotency key of its job: equal for equal kind and payload, whatever the order of keys.

    Of a sealed payload it is the mark that its vault gave it: the same for the same payload, however it was sealed.
    Of a reference it is what it says of the payload in the blob store.
    """
    reference = reference_of(body)
    if reference is not None and reference.same is not None:
        return bytes.fromhex(reference.same)
    payload = _decode(body)
    if type(payload) is dict and payload.keys() == {SEALED} and type(payload[SEALED]) is dict:
        payload = payload[SEALED].get("same", payload)
    return hashlib.blake2b(kind.encode() + b"\0" + _encode_sorted(payload), digest_size=16).digest()


class BlobReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job carries instead of a large payload. `same`: the `digest` of that payload, of a job with a key."""

    name: str
    size: int
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    same: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None = None


_decode_reference: Final = msgspec.json.Decoder(dict[str, BlobReference]).decode


def is_reference(body: bytes) -> bool:
    return body.startswith(b'{"' + BLOB.encode() + b'":')


def reference_of(body: bytes) -> BlobReference | None:
    """The reference in a payload; None where there is none."""
    if not is_reference(body):
        return None
    try:
        found = _decode_reference(body)
    except msgspec.MsgspecError:
        return None
    return found[BLOB] if len(found) == 1 else None


def clean_text(text: str, length: int) -> str:
    """Text from outside, such as an error message, made safe for every store: no NUL, no lone surrogate, bounded."""
    text = str.__str__(text) if isinstance(text, str) else repr(text)
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= length else text[: length - 1] + "…"


def plain_json(value: Json) -> Json:
    """The value with its tuples as lists: JSON has no tuples, and annotated types produce them."""
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, dict):
        return {name: plain_json(item) for name, item in value.items()}
    return value


def is_clean(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def _too_large(size: int, limit: int) -> PayloadInvalid:
    remedy = "give the app a blob store (blobs=…), or keep the data elsewhere and send its address"
    return PayloadInvalid("$", f"{size} bytes of JSON, the limit is {limit}", remedy)


def _check(value: Json, depth: int) -> None:
    """Exact types only: a subclass would come back as its base class."""
    kind = type(value)
    if kind is dict:
        _check_dict(value, depth)
    elif kind is list:
        _check_list(value, depth)
    elif kind is str:
        _check_string(value)
    elif kind is int:
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _Refused("the integer does not fit 64 bits", "send it as a string")
    elif kind is float:
        if not isfinite(value):
            raise _Refused("NaN and Infinity are not JSON", "send null or a string")
    elif kind is not bool and value is not None:
        raise _Refused(f"{kind.__name__} is not a JSON type", "use plain str, int, float, bool, None, list or dict")


def _check_dict(value: dict[Any, Json], depth: int) -> None:
    if depth >= PAYLOAD_DEPTH:
        raise _too_deep()
    for key, item in value.items():
        # The fast path of nearly every entry; the slow path finds what is wrong with the rest.
        if type(key) is not str or not key.isascii() or "\0" in key:
            _check_key(key)
        kind = type(item)
        if kind is str:
            if item.isascii() and "\0" not in item:
                continue
        elif kind is int:
            if MIN_INTEGER <= item <= MAX_INTEGER:
                continue
        elif item is None or kind is bool:
            continue
        _check_inside(item, depth, key)


def _check_list(value: list[Json], depth: int) -> None:
    if depth >= PAYLOAD_DEPTH:
        raise _too_deep()
    for step, item in enumerate(value):
        if type(item) is not str or not item.isascii() or "\0" in item:
            _check_inside(item, depth, step)


def _check_inside(item: Json, depth: int, step: str | int) -> None:
    try:
        _check(item, depth + 1)
    except _Refused as refused:
        refused.steps.append(step)
        raise


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise _Refused(f"a key is {type(key).__name__}", "keys of a JSON object are plain strings")
    _check_string(key)


def _check_string(text: str) -> None:
    if not is_clean(text):
        raise _Refused("a string holds NUL or a lone surrogate", "remove it, or send bytes as base64")


def _too_deep() -> _Refused:
    return _Refused(f"it is nested deeper than {PAYLOAD_DEPTH}", "flatten it")


def parse_patch(text: str) -> dict[str, Any] | None:
    """A JSON merge patch (RFC 7396); None for an empty text.

    It must be an object: any other value would replace the payload.
    """
    if not text.strip():
        return None
    patch = decode_payload(check_body(text.encode()))
    if not isinstance(patch, dict) or not patch:
        raise Invalid("patch", "it is not a JSON object with members", 'write it like {"to": "ada@example.org"}')
    return patch


def patched(payload: Json, patch: Json) -> Json:
    """The payload with the patch applied; neither is changed. A member replaces, null removes, objects merge."""
    if not isinstance(patch, dict):
        return patch
    result = dict(payload) if isinstance(payload, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = patched(result.get(name), value)
    return result
