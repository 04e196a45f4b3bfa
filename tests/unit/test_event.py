"""Every record of the ledger comes back as it was written; anything else is refused, never guessed at.

The strategies follow the fields of the records, so a new record or a new field is tried without a change here.
"""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.event import Claimed, Event, Purged
from forebay.core.job import Draft
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.core.written import READABLE, VERSION, decode_event, encode_event
from tests.unit.values import NAMES, NOW, SPECS

KINDS: list[type[msgspec.Struct]] = list(get_args(Event))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
DRAFTS = st.builds(
    Draft, kind=NAMES, payload=st.dictionaries(st.sampled_from("ab"), INTEGERS), delay=st.integers(0, 9), subject=NAMES
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    str: TEXTS,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    NoneType: st.none(),
    QueueSpec: SPECS,
    Draft: DRAFTS,
    Schedule: st.builds(Schedule, NAMES, NAMES, st.integers(0, NOW), DRAFTS, last_at=st.none() | st.integers(0, NOW)),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin in (Union, UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is list:
        return st.lists(values(args[0]), max_size=2)
    if origin is tuple and args[-1] is ...:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=2)
    assert issubclass(kind, msgspec.Struct), kind
    return st.builds(kind, *(values(field.type) for field in msgspec.structs.fields(kind)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_record_comes_back_as_it_was_written(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    event = data.draw(values(kind))
    record = encode_event(event)
    assert decode_event(record) == event
    assert decode_event(memoryview(record)) == event
    assert encode_event(decode_event(record)) == record


def test_records_have_tags_of_their_own() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
    assert None not in tags


@pytest.mark.parametrize("version", [version for version in range(256) if version not in READABLE])
def test_another_version_is_refused(version: int) -> None:
    record = encode_event(Purged(NOW, [1]))
    with pytest.raises(ValueError, match=f"record version {version}, this reader knows version {VERSION}"):
        decode_event(bytes([version]) + record[1:])


def test_every_cut_of_a_record_is_refused() -> None:
    record = encode_event(Claimed(NOW, "ada", NOW + 1, [1, 2], [1, 1]))
    for end in range(len(record)):
        with pytest.raises(ValueError, match=r".+"):
            decode_event(record[:end])


def test_a_record_with_something_behind_it_is_refused() -> None:
    with pytest.raises(ValueError, match="trailing"):
        decode_event(encode_event(Purged(NOW, [1])) + b"\x01")


@given(st.binary(max_size=80))
def test_garbage_is_refused_with_a_value_error(garbage: bytes) -> None:
    for record in (garbage, bytes([VERSION]) + garbage):
        try:
            event = decode_event(record)
        except ValueError:
            continue
        assert isinstance(event, Event)


@given(st.data())
def test_a_flipped_byte_is_another_record_or_refused(data: st.DataObject) -> None:
    record = bytearray(encode_event(data.draw(values(data.draw(st.sampled_from(KINDS))))))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    try:
        event = decode_event(bytes(record))
    except ValueError:
        return
    assert isinstance(event, Event)


def test_deep_nesting_is_refused() -> None:
    for opener in (b"\x91", b"\x81\xa1a"):
        with pytest.raises(ValueError, match="Expected"):
            decode_event(bytes([VERSION]) + opener * 50_000)
