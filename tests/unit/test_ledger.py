"""Records and ranges as values: what is joined, what is refused, and what the checker of ledgers finds."""

import re
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forebay.core.entries import Entry
from forebay.core.errors import Invalid
from forebay.core.ledger import (
    VERSION,
    Change,
    JobRange,
    LedgerEntry,
    LedgerRule,
    Record,
    Trait,
    decode_record,
    encode_record,
)
from forebay.core.record_builder import RecordBuilder
from forebay_proof.checkers import ledger
from tests.ranges import expanded, joined

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


def job_range(change: Change, first: int, n: int = 1, **facts: int) -> JobRange:
    return replace(JobRange(change, first, n, "q", "k"), **facts)


def turn(change: Change, job_id: int, delivery: int = 1, **facts: int) -> JobRange:
    return job_range(change, job_id, delivery=delivery, attempt=delivery, **facts)


def reported(*ranges: JobRange) -> list[LedgerEntry]:
    """One record a range."""
    return [LedgerEntry(offset, Record(offset, "verb", [one])) for offset, one in enumerate(ranges)]


BORN = job_range(Change.ACCEPTED, 1, max_attempts=3)
LIFE = (
    BORN,
    turn(Change.CLAIMED, 1),
    turn(Change.EXTENDED, 1),
    turn(Change.RETRIED, 1),
    turn(Change.CLAIMED, 1, 2),
    turn(Change.DIED, 1, 2),
    job_range(Change.REDRIVEN, 1),
    replace(turn(Change.CLAIMED, 1, 3), attempt=1),
    replace(turn(Change.ACKED, 1, 3), attempt=1),
)


def singly(jobs: list[Move]) -> list[JobRange]:
    """A range a job."""
    return [
        JobRange(change, job_id, 1, queue, kind, 1, traits=None if trait is None else [trait])
        for change, job_id, queue, kind, trait in jobs
    ]


@given(JOBS)
def test_a_record_builder_writes_what_joining_gives(jobs: list[Move]) -> None:
    builder = RecordBuilder(7)
    for change, job_id, queue, kind, trait in jobs:
        builder.job(change, job_id, queue, kind, 1, trait=trait)
    builder.set_verb("verb")
    record = builder.record()
    assert record == Record(7, "verb", joined(singly(jobs)))
    assert expanded(record.ranges) == singly(jobs), "sharing a range takes nothing from a job and adds nothing to it"


def test_neighbours_of_several_kinds_share_one_range() -> None:
    builder = RecordBuilder(0)
    builder.jobs(Change.ACKED, [1, 2], "q", "k", 1)
    builder.jobs(Change.ACKED, [3, 4], "q", "m", 1)
    builder.job(Change.ACKED, 5, "q", "k", 1)
    builder.job(Change.ACKED, 6, "q", "l", 1, trait=Trait(tenant="t"))
    builder.job(Change.ACKED, 7, "q", "l", 2)
    own = [None, None, Trait("m"), Trait("m"), None, Trait("l", "t")]
    assert builder.ranges() == [
        JobRange(Change.ACKED, 1, 6, "q", "k", 1, traits=own),
        JobRange(Change.ACKED, 7, 1, "q", "l", 2),
    ]


@given(st.lists(st.integers(1, 8), min_size=1))
def test_many_alike_jobs_are_written_as_one_by_one(ids: list[int]) -> None:
    together, alone = RecordBuilder(0), RecordBuilder(0)
    together.jobs(Change.ACKED, ids, "q", "k", traits=[Trait(tenant=str(job_id)) for job_id in ids])
    for job_id in ids:
        alone.job(Change.ACKED, job_id, "q", "k", trait=Trait(tenant=str(job_id)))
    assert together.record() == alone.record()


class _Running(NamedTuple):
    id: int
    kind: str
    queue: str = "q"
    delivery: int = 1
    attempt: int = 1
    enqueued_at: int = 5
    due_at: int = 6
    claimed_at: int = 7


@given(st.lists(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("kml")), min_size=1)))
def test_jobs_of_several_kinds_are_written_as_one_by_one(calls: list[list[tuple[int, str]]]) -> None:
    together, alone = RecordBuilder(0), RecordBuilder(0)
    for jobs in calls:
        together.leased(Change.ACKED, [_Running(*job) for job in jobs], 9)
        for job in jobs:
            alone.held(Change.ACKED, _Running(*job), 9)
    assert together.record() == alone.record()


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("kml"), st.sampled_from(["a", None])), min_size=1))
)
def test_jobs_are_born_together_as_one_by_one(calls: list[list[tuple[int, str, str | None]]]) -> None:
    together, alone = RecordBuilder(5), RecordBuilder(5)
    for jobs in calls:
        entries = [Entry(job_id, "q", kind, b"", 6, True, 3, tenant=tenant) for job_id, kind, tenant in jobs]
        together.accepted(entries)
        for entry in entries:
            alone.accepted([entry])
    assert together.record() == alone.record()


def test_a_record_builder_without_changes_writes_nothing() -> None:
    assert RecordBuilder(0).record() is None
    tending = RecordBuilder(0)
    tending.job(Change.EXPIRED, 1, "q", "k")
    assert tending.record() == Record(0, "maintain", [JobRange(Change.EXPIRED, 1, 1, "q", "k")])


@given(JOBS)
def test_a_record_comes_back_as_it_was(jobs: list[Move]) -> None:
    builder = RecordBuilder(7)
    for change, job_id, queue, kind, trait in jobs:
        builder.job(change, job_id, queue, kind, trait=trait)
    builder.set_verb("fire", owner="ada", name="nightly", tick=5)
    record = builder.record()
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


@pytest.mark.parametrize(
    ("rule", "dropped"),
    [
        (LedgerRule(keep=100, keep_bytes=60), (0, 0)),
        (LedgerRule(keep=100, keep_bytes=59), (1, 10)),
        (LedgerRule(keep=89, keep_bytes=60), (1, 10)),
        (LedgerRule(keep=80, keep_bytes=60), (1, 10)),
        (LedgerRule(keep=79, keep_bytes=60), (2, 30)),
        (LedgerRule(keep=100, keep_bytes=0), (3, 60)),
    ],
)
def test_the_first_bound_that_is_passed_trims(rule: LedgerRule, dropped: tuple[int, int]) -> None:
    assert rule.dropped([(10, 10), (20, 20), (30, 30)], 60, 100) == dropped


def test_a_legal_life_is_silent() -> None:
    assert ledger(reported(*LIFE), drained=True) == []


@pytest.mark.parametrize(
    ("ranges", "output"),
    [
        (LIFE[:1] + LIFE[3:4], "retried finds it|the holder is None"),
        ((*LIFE, LIFE[-1]), "gone"),
        ((BORN, BORN), "accepted twice"),
        ((BORN, turn(Change.CLAIMED, 1), turn(Change.CLAIMED, 1, 2)), "while delivery 1 is out"),
        ((BORN, turn(Change.CLAIMED, 1, 2)), "delivery 2 after 0"),
        ((BORN, turn(Change.CLAIMED, 1), turn(Change.ACKED, 1, claimed_at=5)), "its claim said"),
        ((BORN, turn(Change.CLAIMED, 1), turn(Change.ACKED, 1, 2)), "the holder is 1"),
        (
            (job_range(Change.ACCEPTED, 1, max_attempts=3, due_at=9), turn(Change.CLAIMED, 1, due_at=9)),
            "before it is due",
        ),
        ((BORN, job_range(Change.PURGED, 1)), "finds it"),
        ((BORN,), "still"),
    ],
)
def test_an_illegal_life_is_found(ranges: tuple[JobRange, ...], output: str) -> None:
    found = ledger(reported(*ranges), drained=True)
    assert found
    assert any(re.search(output, violation.message) for violation in found), found


def test_gaps_and_time_that_runs_backwards_are_found() -> None:
    entries = reported(*LIFE)
    (gap,) = ledger([entry for entry in entries if entry.offset != 2])
    assert (gap.event, gap.message) == (3, "offset 2 is missing")
    late = [replace(entry, record=replace(entry.record, at=100 if entry.offset == 0 else 50)) for entry in entries]
    assert "before what came before it" in ledger(late)[0].message


def test_jobs_from_before_and_from_a_silence_are_not_judged() -> None:
    assert ledger(reported(*LIFE)[1:]) == []
    switch = [LedgerEntry(1, Record(1, "put_ledger_rule", name="off")), LedgerEntry(2, Record(2, "put_ledger_rule"))]
    later = [LedgerEntry(3, Record(3, "settle", [turn(Change.ACKED, 1, 7)]))]
    assert ledger([*reported(BORN), *switch, *later]) == []


def test_a_kind_of_its_own_is_looked_up() -> None:
    claim = replace(turn(Change.CLAIMED, 1), kind="other")
    own = replace(turn(Change.ACKED, 1), traits=[Trait(kind="other")])
    assert ledger(reported(BORN, claim, own)) == []
    assert ledger(reported(BORN, claim, turn(Change.ACKED, 1))) != []
