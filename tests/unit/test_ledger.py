"""Records and spans as values: what is joined, what is refused, and what the checker of ledgers finds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.event import Enqueued, Event, LedgerRuled, LedgerTrimmed
from forebay.core.ledger import (
    VERSION,
    Change,
    LedgerEntry,
    LedgerRule,
    Record,
    Span,
    Trait,
    decode_record,
    encode_record,
)
from forebay.core.scribe import Scribe
from forebay.core.written import Told, decode_told, decode_written, encode_event, is_of_ledger
from forebay.testing.checkers import ledger
from tests.spans import expanded, joined

TRAITS = st.one_of(st.none(), st.builds(Trait, tenant=st.sampled_from(["a", "b"])))
JOBS = st.lists(
    st.tuples(
        st.sampled_from([Change.CLAIMED, Change.ACKED]),
        st.integers(1, 6),
        st.sampled_from("qr"),
        st.sampled_from("kml"),
        TRAITS,
    )
)
Move = tuple[Change, int, str, str, Trait | None]


def span(change: Change, first: int, n: int = 1, **facts: int) -> Span:
    return replace(Span(change, first, n, "q", "k"), **facts)


def turn(change: Change, job_id: int, delivery: int = 1, **facts: int) -> Span:
    return span(change, job_id, delivery=delivery, attempt=delivery, **facts)


def told(*spans: Span) -> list[LedgerEntry]:
    """One record a span."""
    return [LedgerEntry(offset, Record(offset, "verb", [one])) for offset, one in enumerate(spans)]


BORN = span(Change.ACCEPTED, 1, max_attempts=3)
LIFE = (
    BORN,
    turn(Change.CLAIMED, 1),
    turn(Change.EXTENDED, 1),
    turn(Change.RETRIED, 1),
    turn(Change.CLAIMED, 1, 2),
    turn(Change.DIED, 1, 2),
    span(Change.REDRIVEN, 1),
    replace(turn(Change.CLAIMED, 1, 3), attempt=1),
    replace(turn(Change.ACKED, 1, 3), attempt=1),
)


def singly(jobs: list[Move]) -> list[Span]:
    """A span a job."""
    return [
        Span(change, job_id, 1, queue, kind, 1, traits=None if trait is None else [trait])
        for change, job_id, queue, kind, trait in jobs
    ]


@given(JOBS)
def test_a_scribe_writes_what_joining_gives(jobs: list[Move]) -> None:
    scribe = Scribe(7)
    for change, job_id, queue, kind, trait in jobs:
        scribe.job(change, job_id, queue, kind, 1, trait=trait)
    scribe.tell("verb")
    record = scribe.record()
    assert record == Record(7, "verb", joined(singly(jobs)))
    assert expanded(record.spans) == singly(jobs), "sharing a span takes nothing from a job and adds nothing to it"


def test_neighbours_of_several_kinds_share_one_span() -> None:
    scribe = Scribe(0)
    scribe.jobs(Change.ACKED, [1, 2], "q", "k", 1)
    scribe.jobs(Change.ACKED, [3, 4], "q", "m", 1)
    scribe.job(Change.ACKED, 5, "q", "k", 1)
    scribe.job(Change.ACKED, 6, "q", "l", 1, trait=Trait(tenant="t"))
    scribe.job(Change.ACKED, 7, "q", "l", 2)
    own = [None, None, Trait("m"), Trait("m"), None, Trait("l", "t")]
    assert scribe.spans() == [
        Span(Change.ACKED, 1, 6, "q", "k", 1, traits=own),
        Span(Change.ACKED, 7, 1, "q", "l", 2),
    ]


@given(st.lists(st.integers(1, 8), min_size=1))
def test_many_alike_jobs_are_told_as_one_by_one(ids: list[int]) -> None:
    together, alone = Scribe(0), Scribe(0)
    together.jobs(Change.ACKED, ids, "q", "k", traits=[Trait(tenant=str(job_id)) for job_id in ids])
    for job_id in ids:
        alone.job(Change.ACKED, job_id, "q", "k", trait=Trait(tenant=str(job_id)))
    assert together.record() == alone.record()


def test_a_scribe_that_heard_nothing_writes_nothing() -> None:
    assert Scribe(0).record() is None
    tending = Scribe(0)
    tending.job(Change.EXPIRED, 1, "q", "k")
    assert tending.record() == Record(0, "tend", [Span(Change.EXPIRED, 1, 1, "q", "k")])


@given(JOBS)
def test_a_record_comes_back_as_it_was(jobs: list[Move]) -> None:
    scribe = Scribe(7)
    for change, job_id, queue, kind, trait in jobs:
        scribe.job(change, job_id, queue, kind, trait=trait)
    scribe.tell("fire", owner="ada", name="nightly", tick=5)
    record = scribe.record()
    assert record is not None
    assert decode_record(encode_record(record)) == record
    assert decode_record(memoryview(encode_record(record))) == record
    assert record.jobs == len(jobs)


@pytest.mark.parametrize(
    "kept", [b"", bytes([VERSION + 1]) + b"\x90", b"\x00", bytes([VERSION]) + b"\x90", b"\x01\x92"]
)
def test_what_is_no_record_is_refused(kept: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_record(kept)


@pytest.mark.parametrize("bad", [{"on": 1}, {"keep": -1}, {"keep": 1.0}, {"keep": 2**62}, {"keep_bytes": -1}])
def test_a_rule_that_makes_no_sense_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(Invalid, match=r"ledger \w+: .+; .+"):
        LedgerRule(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("event", [Enqueued(1, []), LedgerRuled(1, True, 2, 3), LedgerTrimmed(1, 2, 3)])
def test_a_record_of_the_journal_carries_the_ledgers(event: Event) -> None:
    for entry in (None, Told(41, b"record")):
        body = encode_event(event, entry)
        assert (decode_written(body).event, decode_written(body).told) == (event, entry)
        assert decode_told(body) == entry
        assert is_of_ledger(body) == isinstance(event, LedgerRuled | LedgerTrimmed)


def test_a_record_of_another_version_is_not_read() -> None:
    for decode in (decode_told, decode_written):
        with pytest.raises(ValueError, match="version 5"):
            decode(b"\x05")


def test_a_legal_life_is_silent() -> None:
    assert ledger(told(*LIFE), drained=True) == []


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        (LIFE[:1] + LIFE[3:4], "RETRIED|SettledAll finds it|the holder is None"),
        ((*LIFE, LIFE[-1]), "gone"),
        ((BORN, BORN), "accepted twice"),
        ((BORN, turn(Change.CLAIMED, 1), turn(Change.CLAIMED, 1, 2)), "while delivery 1 is out"),
        ((BORN, turn(Change.CLAIMED, 1, 2)), "delivery 2 after 0"),
        ((BORN, turn(Change.CLAIMED, 1), turn(Change.ACKED, 1, claimed_at=5)), "its claim said"),
        ((BORN, turn(Change.CLAIMED, 1), turn(Change.ACKED, 1, 2)), "the holder is 1"),
        ((span(Change.ACCEPTED, 1, max_attempts=3, due_at=9), turn(Change.CLAIMED, 1, due_at=9)), "before it is due"),
        ((BORN, span(Change.PURGED, 1)), "finds it"),
        ((BORN,), "still"),
    ],
)
def test_an_illegal_life_is_found(spans: tuple[Span, ...], said: str) -> None:
    found = ledger(told(*spans), drained=True)
    assert found
    assert any(re.search(said, violation.message) for violation in found), found


def test_gaps_and_time_that_runs_backwards_are_found() -> None:
    entries = told(*LIFE)
    (gap,) = ledger([entry for entry in entries if entry.offset != 2])
    assert (gap.event, gap.message) == (3, "offset 2 is missing")
    late = [replace(entry, record=replace(entry.record, at=100 if entry.offset == 0 else 50)) for entry in entries]
    assert "before what came before it" in ledger(late)[0].message


def test_jobs_from_before_and_from_a_silence_are_not_judged() -> None:
    assert ledger(told(*LIFE)[1:]) == []
    switch = [LedgerEntry(1, Record(1, "put_ledger_rule", name="off")), LedgerEntry(2, Record(2, "put_ledger_rule"))]
    later = [LedgerEntry(3, Record(3, "settle", [turn(Change.ACKED, 1, 7)]))]
    assert ledger([*told(BORN), *switch, *later]) == []


def test_a_kind_of_its_own_is_looked_up() -> None:
    claim = replace(turn(Change.CLAIMED, 1), kind="other")
    own = replace(turn(Change.ACKED, 1), traits=[Trait(kind="other")])
    assert ledger(told(BORN, claim, own)) == []
    assert ledger(told(BORN, claim, turn(Change.ACKED, 1))) != []
