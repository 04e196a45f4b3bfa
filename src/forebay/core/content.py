"""Conditions on what a job carries: an entry of its meta, or a field of its payload.

A condition is a pair of a path and a text: `customer.id=7`, `items.0.sku=A1`. A path is made of names in objects and
indexes in lists, joined by dots. It holds where the value is that string, or a number, boolean or null that JSON writes
so; objects and lists never match. All conditions must hold. Sealed payloads and those in a blob store are not opened.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.limits import TEXT_LENGTH
from forebay.core.payload import Json, decode_payload, is_clean

MAX_CONDITIONS: Final = 8
"""Conditions on meta, and on payloads, in one query."""

Conditions = tuple[tuple[str, str], ...]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def parse_condition(field: str, text: str) -> tuple[str, str]:
    """`path=text`; the text may hold further equals signs, or be empty."""
    path, equals, wanted = text.partition("=")
    if not equals or not path:
        raise Invalid(field, "it is not a condition", f"write {field} NAME=VALUE")
    return path, wanted


def checked_conditions(field: str, conditions: Sequence[tuple[str, str]]) -> Conditions:
    """Pairs of bounded texts, or `Invalid`."""
    if type(conditions) is not tuple or len(conditions) > MAX_CONDITIONS:
        raise Invalid(field, "it is not a tuple of a few pairs", f"give up to {MAX_CONDITIONS} of (name, text)")
    for pair in conditions:
        if type(pair) is not tuple or len(pair) != 2 or not all(_is_text(each) for each in pair) or not pair[0]:
            way_out = f"give (name, text), each of up to {TEXT_LENGTH} characters"
            raise Invalid(field, "a condition is not a pair of texts", way_out)
    return conditions


def holds(meta: dict[str, str] | None, body: bytes, wanted_meta: Conditions, wanted_payload: Conditions) -> bool:
    """Whether a job with this meta and payload meets all conditions."""
    if any((meta or {}).get(name) != text for name, text in wanted_meta):
        return False
    if not wanted_payload:
        return True
    payload = decode_payload(body)
    return all(_found(payload, path.split("."), text) for path, text in wanted_payload)


def plain_values(text: str) -> list[str | int] | None:
    """The values that a text stands for, if an index finds them as JSON has them; None: also null or a fraction."""
    try:
        value = _decode(text)
    except msgspec.DecodeError:
        return [text]
    if value is None or type(value) is float:
        return None
    same = type(value) in (int, bool) and _encode(value) == text.encode()
    return [text, value] if same else [text]


def _found(value: Json, steps: Sequence[str], text: str) -> bool:
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif (
            isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10 and int(step) < len(value)
        ):
            value = value[int(step)]
        else:
            return False
    if isinstance(value, str):
        return value == text
    return not isinstance(value, dict | list) and _encode(value) == text.encode("utf-8", "replace")


def _is_text(text: object) -> bool:
    return type(text) is str and len(text) <= TEXT_LENGTH and is_clean(text)
