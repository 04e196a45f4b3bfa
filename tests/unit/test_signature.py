"""Calls become payloads and payloads become arguments, by the signature of the function; the rest is refused."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from forebay.core.errors import Invalid
from forebay.core.payload import Json, encode_payload
from forebay.work.context import Context
from forebay.work.signature import PayloadMismatch, Signature

if TYPE_CHECKING:
    from forebay.queue import JobQueue as OnlyForTypes


@dataclass
class Address:
    street: str
    number: int = 1


class Parcel(msgspec.Struct):
    weight: float
    to: Address


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


class Part(BaseModel):
    made: date
    weight: Annotated[float, Field(gt=0)] = 1.0


class Model(BaseModel):
    name: str
    parts: list[Part] = []


def plain(to: str, subject: str = "Hi", *, copies: int = 1) -> None: ...
def loose(value, other=None): ...  # type: ignore[no-untyped-def]
def one_number(count: int = 3) -> None: ...
def nothing() -> None: ...
def with_extra(to: str, **extra: Any) -> None: ...
def typed(
    where: Address, parcel: Parcel, speed: Speed, at: datetime, day: date, wait: timedelta, words: set[str], raw: bytes
) -> None: ...
def modelled(model: Model, more: list[Model], maybe: Model | None = None) -> None: ...
def optional(count: int | None) -> None: ...


def there_and_back(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call after its way through a payload."""
    signature = Signature("job", function)
    return signature.unpack(encode_payload(signature.pack(args, kwargs)))


def packed(function: Any, *args: Any, **kwargs: Any) -> dict[str, Json]:
    return Signature("job", function).pack(args, kwargs)


def unpacked(function: Any, payload: Json) -> dict[str, Any]:
    return Signature("job", function).unpack(encode_payload(payload))


def test_positional_and_named_arguments_become_one_object() -> None:
    assert packed(plain, "ada", copies=2) == {"to": "ada", "copies": 2}
    assert packed(plain, "ada", "Hello") == packed(plain, subject="Hello", to="ada")


def test_defaults_are_left_to_the_function_that_runs() -> None:
    """A default that changes between enqueue and run is the new one."""
    assert packed(plain, "ada") == {"to": "ada"}
    assert unpacked(plain, {"to": "ada"}) == {"to": "ada"}
    assert there_and_back(one_number) == {}


def test_values_without_annotation_are_any_json() -> None:
    value = {"deep": [1, 2.5, None, True, "é"]}
    assert there_and_back(loose, value, other=[]) == {"value": value, "other": []}


def test_rich_types_come_back_as_they_were() -> None:
    call = {
        "where": Address("Main", 7),
        "parcel": Parcel(1.5, Address("Side")),
        "speed": Speed.FAST,
        "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
        "day": date(2026, 3, 1),
        "wait": timedelta(minutes=3),
        "words": {"a", "b"},
        "raw": b"\0\xff",
    }
    assert there_and_back(typed, **call) == call


def test_models_are_dumped_and_validated_wherever_they_stand() -> None:
    part = Part(made=date(2026, 3, 1), weight=2.5)
    call = {"model": Model(name="a", parts=[part]), "more": [Model(name="b"), Model(name="c")]}
    a = {"name": "a", "parts": [{"made": "2026-03-01", "weight": 2.5}]}
    assert packed(modelled, **call) == {"model": a, "more": [{"name": "b", "parts": []}, {"name": "c", "parts": []}]}
    assert there_and_back(modelled, **call) == call
    assert there_and_back(modelled, **call, maybe=Model(name="d"))["maybe"] == Model(name="d")
    assert there_and_back(modelled, **call, maybe=None)["maybe"] is None


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ({"nom": "a"}, r"name\n  Field required"),
        ({"name": "a", "parts": [{"made": "yesterday"}]}, r"parts\.0\.made\n"),
        ({"name": "a", "parts": [{"made": "2026-03-01", "weight": 0}]}, "greater than 0"),
    ],
)
def test_a_model_that_refuses_its_value_refuses_the_call(model: Json, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        packed(modelled, model=model, more=[])
    with pytest.raises(PayloadMismatch, match=complaint):
        unpacked(modelled, {"model": model, "more": []})


def test_an_optional_value_may_be_none() -> None:
    assert there_and_back(optional, None) == {"count": None}
    assert there_and_back(optional, 4) == {"count": 4}


def test_extra_keywords_travel_along() -> None:
    assert there_and_back(with_extra, "ada", colour="red", size=[1]) == {"to": "ada", "colour": "red", "size": [1]}
    assert there_and_back(with_extra, "ada") == {"to": "ada"}


def test_constraints_of_annotations_hold() -> None:
    def few(count: Annotated[int, msgspec.Meta(gt=0, le=9)] = 1, mode: Literal["a", "b"] = "a") -> None: ...

    assert there_and_back(few, 9, mode="b") == {"count": 9, "mode": "b"}
    with pytest.raises(Invalid):
        packed(few, 0)
    with pytest.raises(Invalid):
        packed(few, 1, "c")
    with pytest.raises(PayloadMismatch):
        unpacked(few, {"count": 10})


# Context


def by_name(to, ctx=None): ...  # type: ignore[no-untyped-def]
def by_annotation(to: str, about: Context) -> None: ...
def by_union(to: str, context: Context | None = None) -> None: ...
def first(ctx, to): ...  # type: ignore[no-untyped-def]
def not_one(ctx: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "name"), [(by_name, "ctx"), (by_annotation, "about"), (by_union, "context"), (first, "ctx")]
)
def test_a_context_is_found_by_name_and_by_annotation_and_is_never_in_the_payload(function: Any, name: str) -> None:
    signature = Signature("job", function)
    assert signature.context_name == name
    assert signature.pack(("ada",), {}) == {"to": "ada"}
    assert signature.pack((), {"to": "ada"}) == {"to": "ada"}
    assert signature.unpack(b'{"to":"ada"}') == {"to": "ada"}


def test_a_parameter_called_ctx_of_another_type_is_a_parameter() -> None:
    signature = Signature("job", not_one)
    assert signature.context_name is None
    assert signature.pack(("x",), {}) == {"ctx": "x"}


def test_a_payload_cannot_smuggle_a_context_in() -> None:
    def both(ctx: Context, **extra: Any) -> None: ...

    assert "ctx" not in unpacked(both, {"ctx": "mine", "colour": "red"})
    with pytest.raises(PayloadMismatch):
        unpacked(by_name, {"to": "ada", "ctx": "mine"})


# Refusals


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("ada", "Hi", 3), {}),
        (("ada",), {"to": "bob"}),
        (("ada",), {"colour": "red"}),
        ((5,), {}),
        (("ada",), {"copies": "2"}),
        (("ada",), {"copies": True}),
        (("ada",), {"copies": 1.5}),
        (("ada",), {"subject": None}),
        (("ada",), {"copies": object()}),
    ],
)
def test_a_wrong_call_is_refused_and_the_right_one_is_shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        Signature("send", plain).pack(args, kwargs)
    assert "call it as send(to: str, subject: str = 'Hi', *, copies: int = 1)" in str(refused.value)


@pytest.mark.parametrize("value", [object(), lambda: 0, {1, object()}, float("nan"), float("inf"), "\ud800"])
def test_a_value_that_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(Invalid):
        packed(loose, value)


@pytest.mark.parametrize("payload", [{}, {"to": 5}, {"to": "a", "colour": 1}, {"to": "a", "copies": None}, 5, [], None])
def test_a_payload_that_does_not_fit_is_a_mismatch_that_says_why(payload: Json) -> None:
    with pytest.raises(PayloadMismatch, match="does not match") as refused:
        unpacked(plain, payload)
    assert "job" in str(refused.value)


def test_a_mismatch_does_not_show_the_payload() -> None:
    with pytest.raises(PayloadMismatch) as refused:
        unpacked(one_number, {"count": "a secret"})
    assert "a secret" not in str(refused.value)


def test_a_bare_value_is_the_only_parameter() -> None:
    assert unpacked(one_number, 5) == {"count": 5}
    with pytest.raises(PayloadMismatch):
        unpacked(one_number, "five")
    with pytest.raises(PayloadMismatch):
        unpacked(nothing, 5)
    with pytest.raises(PayloadMismatch):
        unpacked(plain, "ada")


def test_no_payload_is_no_arguments() -> None:
    assert unpacked(nothing, None) == {}
    assert unpacked(one_number, None) == {}
    assert unpacked(nothing, {}) == {}


@pytest.mark.parametrize("function", [lambda *values: None, lambda value, /: value], ids=["starred", "positional only"])
def test_a_parameter_without_a_name_is_refused_where_the_function_is_declared(function: Any) -> None:
    with pytest.raises(Invalid, match="plain named parameters"):
        Signature("job", function)


def test_what_only_a_type_checker_can_resolve_does_not_matter_in_the_return_type() -> None:
    def report(count: int) -> "OnlyForTypes":
        raise NotImplementedError

    assert there_and_back(report, 1) == {"count": 1}


def test_an_annotation_that_cannot_be_resolved_is_refused_by_name() -> None:
    def report(queue: "OnlyForTypes") -> None: ...

    with pytest.raises(Invalid, match="job"):
        Signature("job", report)


def test_an_annotation_that_no_payload_can_have_is_refused_by_name() -> None:
    def either(value: Model | str) -> None: ...

    with pytest.raises(Invalid, match="job"):
        Signature("job", either)
