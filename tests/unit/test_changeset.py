"""Every entry of the journal comes back as it was written; anything else is refused, never guessed at.

The strategies follow the fields of a change set, so a new field is tried without a change here.
"""

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.changeset import (
    VERSION,
    ChangeSet,
    JobChange,
    JobChanges,
    LedgerChange,
    StoredRecord,
    decode_entry,
    decode_ledger_part,
    encode_entry,
)
from forebay.core.instant import micros, minutes
from forebay.core.job import Draft
from forebay.core.ledger import Change, LedgerRule
from forebay.core.outcome import Failure
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from tests.unit.values import NAMES, NOW, SPECS

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
    LedgerRule: st.builds(LedgerRule, st.booleans(), st.integers(0, micros(minutes(9))), st.integers(0, 9)),
    Schedule: st.builds(Schedule, NAMES, NAMES, st.integers(0, NOW), DRAFTS, last_at=st.none() | st.integers(0, NOW)),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin in (Union, UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin in (list, Sequence):
        return st.lists(values(args[0]), max_size=2)
    if origin is tuple and args[-1] is ...:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=2)
    assert issubclass(kind, msgspec.Struct), kind
    return st.builds(kind, *(values(field.type) for field in msgspec.structs.fields(kind)))


CHANGES = values(ChangeSet)
RECORDS = st.none() | st.builds(StoredRecord, st.integers(0, 9), st.binary(max_size=8))


@given(CHANGES, RECORDS)
def test_an_entry_comes_back_as_it_was_written(change: ChangeSet, record: StoredRecord | None) -> None:
    body = encode_entry(change, record)
    for view in (body, memoryview(body)):
        entry, part = decode_entry(view), decode_ledger_part(view)
        assert (entry.change, entry.record) == (change, record)
        assert (part.change.ledger, part.record) == (change.ledger, record)
        assert encode_entry(entry.change, entry.record) == body


@pytest.mark.parametrize("version", [version for version in range(256) if version != VERSION])
def test_another_version_is_refused(version: int) -> None:
    body = encode_entry(ChangeSet(NOW))
    for decode in (decode_entry, decode_ledger_part):
        with pytest.raises(ValueError, match=f"entry of version {version}, this reader supports version {VERSION}"):
            decode(bytes([version]) + body[1:])


CLAIMED = JobChange(Change.CLAIMED, [1, 2], [1, 1], NOW + 1)


def test_every_cut_of_an_entry_is_refused() -> None:
    body = encode_entry(ChangeSet(NOW, "claim", [CLAIMED], owner="ada"), StoredRecord(1, b"record"))
    for end in range(len(body)):
        for decode in (decode_entry, decode_ledger_part):
            with pytest.raises(ValueError, match=r".+"):
                decode(body[:end])


def test_an_entry_with_something_behind_it_is_refused() -> None:
    with pytest.raises(ValueError, match="trailing"):
        decode_entry(encode_entry(ChangeSet(NOW)) + b"\x01")


@given(st.binary(max_size=80))
def test_garbage_is_refused_with_a_value_error(garbage: bytes) -> None:
    for body in (garbage, bytes([VERSION]) + garbage):
        try:
            entry = decode_entry(body)
        except ValueError:
            continue
        assert isinstance(entry.change, ChangeSet)


@given(CHANGES, st.data())
def test_a_flipped_byte_is_another_entry_or_refused(change: ChangeSet, data: st.DataObject) -> None:
    body = bytearray(encode_entry(change))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        entry = decode_entry(bytes(body))
    except ValueError:
        return
    assert isinstance(entry.change, ChangeSet)


def test_deep_nesting_is_refused() -> None:
    for opener in (b"\x91", b"\x81\xa1a"):
        with pytest.raises(ValueError, match="Expected"):
            decode_entry(bytes([VERSION]) + opener * 50_000)


def test_what_most_entries_do_not_say_costs_a_byte() -> None:
    assert len(encode_entry(ChangeSet(NOW, "maintain"))) == 31
    assert len(encode_entry(ChangeSet(NOW, "claim", [CLAIMED], owner="ada"))) == 59
    ledger = LedgerChange(first=7, freed=9)
    assert msgspec.msgpack.decode(encode_entry(ChangeSet(NOW, ledger=ledger))[1:])[0][-1] == {"first": 7, "freed": 9}


def test_neighbours_to_which_the_same_happens_share_a_change() -> None:
    jobs, boom = JobChanges(), Failure("Boom")
    for job_id, error in ((1, None), (2, None), (3, boom), (5, Failure("Boom")), (4, None)):
        jobs.add(job_id, job_id + 10, Change.RELEASED, 9, error)
    jobs.add(6, 0, Change.PURGED)
    assert jobs.jobs == [
        JobChange(Change.RELEASED, [1, 2], [11, 12], 9),
        JobChange(Change.RELEASED, [3, 5], [13, 15], 9, boom),
        JobChange(Change.RELEASED, [4], [14], 9),
        JobChange(Change.PURGED, [6], []),
    ]
