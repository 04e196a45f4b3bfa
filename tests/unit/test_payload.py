"""Payloads at the door: what is JSON for every store passes unchanged, anything else is refused with its path.

Limits are exact at the boundary. A refusal says where and why, and never repeats what the producer sent.
"""

import enum
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import PayloadInvalid
from forebay.core.limits import PAYLOAD_BYTES, PAYLOAD_DEPTH
from forebay.core.payload import Json, check_body, clean_text, decode_payload, digest, encode_payload, is_clean

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
INTEGERS = st.integers(-(2**63), 2**64 - 1)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5), max_leaves=20
)


class Text(str):
    """A string that is more than a string."""


class Number(int):
    """An integer that is more than an integer."""


class Colour(enum.StrEnum):
    RED = "red"


def nested(depth: int, wrap: Callable[[Json], Json] = lambda inner: [inner]) -> Json:
    value: Json = wrap(None)
    for _ in range(depth - 1):
        value = wrap(value)
    return value


def refusal(value: Json) -> PayloadInvalid:
    with pytest.raises(PayloadInvalid) as refused:
        encode_payload(value)
    return refused.value


@given(JSON)
def test_json_comes_back_as_it_went_in(value: Json) -> None:
    body = encode_payload(value)
    assert repr(decode_payload(body)) == repr(value)
    assert repr(json.loads(body)) == repr(value)
    assert check_body(body) == body


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ((1, 2), "$", "tuple is not a JSON type"),
        ({"a": {1, 2}}, "$.a", "set is not a JSON type"),
        ({"a": frozenset()}, "$.a", "frozenset is not a JSON type"),
        ({"a": [1, b"x"]}, "$.a[1]", "bytes is not a JSON type"),
        ([[bytearray()]], "$[0][0]", "bytearray is not a JSON type"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "$.at", "datetime is not a JSON type"),
        ({"id": UUID(int=0)}, "$.id", "UUID is not a JSON type"),
        ([Decimal(1)], "$[0]", "Decimal is not a JSON type"),
        ([1j], "$[0]", "complex is not a JSON type"),
        ({"f": len}, "$.f", "is not a JSON type"),
        ([object()], "$[0]", "object is not a JSON type"),
        (math.nan, "$", "NaN and Infinity"),
        ({"a": {"b": [math.inf]}}, "$.a.b[0]", "NaN and Infinity"),
        ([-math.inf], "$[0]", "NaN and Infinity"),
        (2**64, "$", "does not fit 64 bits"),
        ({"n": 2**64}, "$.n", "does not fit 64 bits"),
        ({"n": -(2**63) - 1}, "$.n", "does not fit 64 bits"),
        ([10**400], "$[0]", "does not fit 64 bits"),
        ("a\0b", "$", "NUL or a lone surrogate"),
        (["ok", "a\0b"], "$[1]", "NUL or a lone surrogate"),
        ({"a": "\ud800"}, "$.a", "NUL or a lone surrogate"),
        ({"a": ["\udfff"]}, "$.a[0]", "NUL or a lone surrogate"),
        ({"a": {"x\0": 1}}, "$.a", "NUL or a lone surrogate"),
        ({"a": {"\udc00": 1}}, "$.a", "NUL or a lone surrogate"),
        ({1: "a"}, "$", "a key is int"),
        ({"a": [{None: 1}]}, "$.a[0]", "a key is NoneType"),
        ({b"k": 1}, "$", "a key is bytes"),
        ({("k",): 1}, "$", "a key is tuple"),
        ({True: 1}, "$", "a key is bool"),
    ],
)
def test_what_is_not_json_is_refused_with_its_path(value: Json, path: str, reason: str) -> None:
    error = refusal(value)
    assert error.path == path
    assert reason in error.reason
    assert str(error) == f"payload at {path}: {error.reason}; {error.remedy}"


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**63, 2**64 - 1])
def test_integers_of_64_bits_pass(number: int) -> None:
    assert decode_payload(encode_payload([number])) == [number]
    assert decode_payload(encode_payload({"n": number})) == {"n": number}
    assert decode_payload(encode_payload(number)) == number


def test_a_payload_of_exactly_256_kib_passes_and_one_byte_more_does_not() -> None:
    assert len(encode_payload("x" * (PAYLOAD_BYTES - 2))) == 262_144
    error = refusal("x" * (PAYLOAD_BYTES - 1))
    assert error.reason == "262145 bytes of JSON, the limit is 262144"


def test_the_size_is_that_of_the_encoded_bytes_not_of_the_characters() -> None:
    assert len(encode_payload("é" * ((PAYLOAD_BYTES - 2) // 2))) == PAYLOAD_BYTES
    assert "262146 bytes" in str(refusal("é" * (PAYLOAD_BYTES // 2)))
    assert "bytes of JSON" in str(refusal("\n" * (PAYLOAD_BYTES // 2)))


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"k": inner}], ids=["lists", "objects"])
def test_nesting_of_exactly_64_passes_and_65_does_not(wrap: Callable[[Json], Json]) -> None:
    deepest = nested(PAYLOAD_DEPTH, wrap)
    assert decode_payload(encode_payload(deepest)) == deepest
    assert "nested deeper than 64" in refusal(nested(PAYLOAD_DEPTH + 1, wrap)).reason


def test_bombs_are_refused_without_harm() -> None:
    endless: list[Json] = []
    endless.append(endless)
    ring: dict[str, Json] = {}
    ring["k"] = [ring]
    for bomb in (endless, ring, nested(5_000)):
        assert "nested deeper" in refusal(bomb).reason
    for body in (b"[" * 100_000, b'{"a":' * 40_000, b"[" * 65 + b"]" * 65, b"[" * PAYLOAD_BYTES):
        with pytest.raises(PayloadInvalid):
            check_body(body)


@pytest.mark.parametrize("value", [Text("x"), Number(5), Colour.RED, {"a": Number(5)}, [Text("x")], {"a": Colour.RED}])
def test_a_value_that_is_more_than_json_is_kept_plain_or_refused(value: Any) -> None:
    """Never anything but our own error: a store must not be the one to find out."""
    try:
        body = encode_payload(value)
    except PayloadInvalid:
        return
    assert decode_payload(body) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"1e400",
        b"'a'",
        b"[1,]",
        b"1 2",
        b"\xff",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b"\xef\xbb\xbf1",
        b"1" * 5_000,
    ],
)
def test_bytes_that_are_not_json_are_refused(body: bytes) -> None:
    with pytest.raises(PayloadInvalid, match=r"payload at \$"):
        check_body(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":"\\u0000"}', r"payload at \$.a: a string holds NUL"),
        (b'{"\\u0000":1}', r"payload at \$: a string holds NUL"),
        (b"[18446744073709551616]", r"payload at \$\[0\]: the integer does not fit"),
        (b"[-9223372036854775809]", "the integer does not fit"),
        (b" " * PAYLOAD_BYTES + b"1", "262145 bytes"),
    ],
)
def test_bytes_are_held_to_the_rules_of_values(body: bytes, reason: str) -> None:
    with pytest.raises(PayloadInvalid, match=reason):
        check_body(body)


def test_bytes_are_kept_compact() -> None:
    assert check_body(b' { "a" : [ 1 , 2.0 ] } ') == b'{"a":[1,2.0]}'


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    try:
        kept = check_body(body)
    except PayloadInvalid:
        return
    assert check_body(kept) == kept


@pytest.mark.parametrize(
    "value",
    [
        ["hunter2\0"],
        {"password": "hunter2\ud800"},
        {"hunter2\0": 1},
        {"token": ("hunter2",)},
        {"token": {"hunter2"}},
        {"token": b"hunter2"},
        "hunter2" * PAYLOAD_BYTES,
    ],
)
def test_a_refusal_never_repeats_the_content(value: Json) -> None:
    error = refusal(value)
    assert "hunter2" not in f"{error}{error!r}{error.args}{vars(error)}"
    assert error.__cause__ is None


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    one = encode_payload({"a": 1, "b": {"x": [1, 2], "y": None}})
    other = encode_payload({"b": {"y": None, "x": [1, 2]}, "a": 1})
    assert one != other
    assert digest("email", one) == digest("email", other)
    assert len(digest("email", one)) == 16


def test_a_digest_depends_on_kind_and_content() -> None:
    bodies = [b"1", b"1.0", b'"1"', b"true", b"[1,2]", b"[2,1]", b"null", b"{}", b"[]"]
    digests = {digest(kind, body) for kind in ("email", "sms", "email1") for body in bodies}
    assert len(digests) == 27


@given(st.text(st.characters()), st.integers(2, 50))
def test_text_from_outside_is_made_safe(text: str, length: int) -> None:
    clean = clean_text(text, length)
    assert is_clean(clean)
    assert len(clean) <= length
    if is_clean(text) and len(text) <= length:
        assert clean == text


def test_text_that_was_cut_shows_it() -> None:
    assert clean_text("abcdef", 4) == "abc…"
    assert clean_text("a\0b", 9) == "a\N{REPLACEMENT CHARACTER}b"
    assert clean_text("a\ud800b", 9) == "a?b"
