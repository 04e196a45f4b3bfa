"""What an incremental audit leaves to Spark: a ledger that is not whole, and slots that may have been taken twice."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.spark.audit import AuditOptions
from forebay.spark.audit.proven import Proven, ProvenTotals, Slot
from forebay.spark.audit.small_case import EvidenceRows, SmallCase, _extent, _slots
from forebay.spark.audit.survey import LedgerExtent
from tests.spark.story import SECOND, START, Life, Story

MINUTE = 60 * SECOND
BEGIN = 0


def table(*more: tuple[str, str]) -> pa.Table:
    """Three records of five jobs each, then one of each of these verbs and names."""
    story = Story()
    Life(story, START, n=5).accept().claim().after(SECOND).ack()
    for place, (verb, name) in enumerate(more):
        story.record(START + (place + 1) * MINUTE, verb, name, START if verb == "fire" else None)
    return story.table()


def without(rows: pa.Table, offset: int, place: int) -> pa.Table:
    same = pc.and_(pc.equal(rows["offset"], offset), pc.equal(rows["place"], place))
    return rows.filter(pc.invert(same))


def test_a_whole_ledger_is_measured_as_spark_measures_it() -> None:
    found = _extent(table(("pause", "mail"), ("fire", "tick")), BEGIN)
    assert found is not None
    assert (found.records, found.events, found.first, found.last, found.largest, found.fires) == (5, 17, 0, 4, 4, 1)
    assert (found.ragged, found.silences, found.missing) == (0, 0, 0)
    assert found.since is not None
    assert found.until is not None
    assert found.until - found.since == 120_000_000
    nothing = _extent(table().slice(0, 0), 7)
    assert nothing is not None
    assert (nothing.records, nothing.since) == (0, None)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda rows: rows.filter(pc.not_equal(rows["offset"], 0)), id="the first record is missing"),
        pytest.param(lambda rows: rows.filter(pc.not_equal(rows["offset"], 1)), id="a record is missing"),
        pytest.param(lambda rows: without(rows, 1, 0), id="an event is missing"),
        pytest.param(lambda rows: without(rows, 2, 4), id="the last event of a record is missing"),
        pytest.param(lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]), id="an event is there twice"),
    ],
)
def test_a_ledger_that_is_not_whole_is_for_spark(broken: Callable[[pa.Table], pa.Table]) -> None:
    rows = table().sort_by([("offset", "ascending"), ("place", "ascending")])
    assert _extent(rows, BEGIN) is not None
    assert _extent(broken(rows), BEGIN) is None


def test_a_ledger_that_was_switched_off_is_for_spark() -> None:
    assert _extent(table(("put_ledger_rule", "on")), BEGIN) is not None
    assert _extent(table(("put_ledger_rule", "off")), BEGIN) is None


def test_a_slot_that_is_not_later_than_the_last_one_is_for_spark() -> None:
    rows = table(("fire", "tick"))
    assert _slots(rows, {}) == {"tick": Slot(START, 3)}
    assert _slots(rows, {"tick": Slot(START - MINUTE, 1), "tock": Slot(9, 9)}) == {
        "tick": Slot(START, 3),
        "tock": Slot(9, 9),
    }
    assert _slots(rows, {"tick": Slot(START, 1)}) is None
    assert _slots(table(("fire", "tick"), ("fire", "tick")), {}) is None


def test_the_events_of_jobs_without_an_end_are_carried_over() -> None:
    """Of three jobs the first was open before, the second is retried now, the third is done."""
    story = Story()
    Life(story, START).accept()
    Life(story, START + SECOND).accept().claim().after(1).retry()
    Life(story, START + MINUTE).accept().claim().after(1).ack()
    receipts, effects = story.evidence()
    rows = story.table().sort_by([("offset", "ascending"), ("place", "ascending")])
    before = LedgerExtent(1, 1, 0, 0, 0, 0, 0, 0, None, None)
    proven = Proven(1, "then", 1, before, ProvenTotals(1, 0, 1, 1, 1, 0), {}, {}, held_back=False)
    related = EvidenceRows(rows.slice(0, 1), receipts.slice(0, 1), effects.slice(0, 0))
    case = SmallCase.of(proven, EvidenceRows(rows.slice(1), receipts.slice(1), effects), related, AuditOptions())
    assert case is not None
    assert case.verdict([], []).answer == "PASS"
    assert sorted(case.open_events()["job_id"].to_pylist()) == [1, 2, 2, 2]
    assert case.proven("now", 7, {}).totals == ProvenTotals(jobs=3, ended=1, enqueued=3, receipted=3, sent=3, effects=1)
