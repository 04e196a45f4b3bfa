"""An audit of few rows without Spark, whole or incremental: rows of Arrow in, the verdict out.

Starting Java and compiling queries takes longer than checking some hundred thousand rows in Python. Every job and every
seq is checked by `suspects.judge`, the same functions that judge Spark's suspects, and `conclusion` makes the verdict.

A ledger that is not whole, was switched off, or has a slot of a schedule that may be a second one is not judged here:
`SmallCase.of` returns None, and Spark finds out what exactly is wrong. So these checks are not written twice.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from forebay.core.ledger import Change
from forebay.spark.arrow import distinct_numbers
from forebay.spark.audit.case import rules_of
from forebay.spark.audit.checks import AuditOptions
from forebay.spark.audit.conclusion import AuditFacts, conclude, counted
from forebay.spark.audit.exact_checks import EFFECT, ENDED, EVENT, NAMED, RECEIPT
from forebay.spark.audit.profile import fits
from forebay.spark.audit.proven import Proven, ProvenTotals, Slot
from forebay.spark.audit.survey import EMPTY, LedgerExtent
from forebay.spark.audit.suspects import entries_of, judge
from forebay.spark.audit.verdict import AuditVerdict

_OVER: Final = pa.array([*ENDED, Change.PURGED])


class EvidenceRows(Struct, frozen=True):
    """Events, receipts and effects, as EVENTS, RECEIPTS and EFFECTS. None: such evidence was not given."""

    events: pa.Table
    receipts: pa.Table | None
    effects: pa.Table | None

    def plus(self, other: "EvidenceRows") -> "EvidenceRows":
        def both(one: pa.Table | None, two: pa.Table | None) -> pa.Table | None:
            return one if two is None else two if one is None else pa.concat_tables([one, two])

        joined = both(self.events, other.events), both(self.receipts, other.receipts), both(self.effects, other.effects)
        return EvidenceRows(*joined)

    @property
    def count(self) -> int:
        return sum(len(each) for each in (self.events, self.receipts, self.effects) if each is not None)


class SmallCase:
    """`new`: rows that no earlier audit has read. `related`: proven rows that are related to them, and the events of
    jobs that were open."""

    def __init__(
        self,
        proven: Proven,
        new: EvidenceRows,
        related: EvidenceRows,
        extent: LedgerExtent,
        slots: dict[str, Slot],
        options: AuditOptions,
    ) -> None:
        self._proven = proven
        self._new = new
        self._related = related
        self._all = related.plus(new)
        self._extent = proven.extent.followed_by(extent)
        self._slots = slots
        self._options = options
        self._totals = proven.totals.plus(_totals(self._all)).minus(_totals(related))

    @classmethod
    def of(cls, proven: Proven, new: EvidenceRows, related: EvidenceRows, options: AuditOptions) -> "SmallCase | None":
        """None if Spark has to find out what is wrong."""
        extent = _extent(new.events, proven.end)
        slots = None if extent is None else _slots(new.events, proven.slots)
        if extent is None or slots is None or not fits(extent):
            return None
        return cls(proven, new, related, extent, slots, options)

    def verdict(self, doubts: Sequence[str], absent: Sequence[str], cut: bool = False) -> AuditVerdict:
        rows, options = self._all, self._options
        facts = AuditFacts(
            options,
            self._extent,
            self._totals,
            receipts=rows.receipts is not None,
            effects=rows.effects is not None,
            logs=False,
            untimed=rows.effects is not None and rows.effects["effect_at"].null_count > 0,
            in_full=True,
            doubts=doubts,
            absent=absent,
            cut=cut,
        )
        events = rows.events.filter(rows.events["job_id"].is_valid())
        entries = list(entries_of(events, EVENT))
        entries += [] if rows.receipts is None else entries_of(rows.receipts, RECEIPT)
        entries += [] if rows.effects is None else entries_of(rows.effects, EFFECT)
        rules = rules_of(options, self._extent, facts.receipts, facts.effects)
        earlier = self._proven.relied_on(len(self._new.events))
        return conclude(facts, counted(judge(entries, rules)), self._seqs_of, earlier)

    def proven(self, at: str, rows: int, evidence: dict[str, list[str]]) -> Proven:
        """After PASS; see there."""
        end = self._extent.last + 1
        return Proven(end, at, rows, self._extent, self._totals, evidence, self._slots, held_back=False)

    def open_events(self) -> pa.Table:
        """All events of jobs that have no end."""
        events = self._all.events.filter(self._all.events["job_id"].is_valid())
        events = events.sort_by([("offset", "ascending"), ("place", "ascending")])
        last = events.select(["job_id", "change"]).group_by("job_id", use_threads=False).aggregate([("change", "last")])
        still = last.filter(pc.invert(pc.is_in(last["change_last"], value_set=_OVER)))
        return events.filter(pc.is_in(events["job_id"], value_set=still["job_id"].combine_chunks()))

    def _seqs_of(self, jobs: set[int]) -> dict[int, int]:
        receipts = self._all.receipts
        if receipts is None:
            return {}
        own = receipts.filter(pc.is_in(receipts["job_id"], value_set=pa.array(sorted(jobs), pa.int64())))
        minimum = own.group_by("job_id").aggregate([("seq", "min")])
        return dict(zip(minimum["job_id"].to_pylist(), minimum["seq_min"].to_pylist(), strict=True))


def _extent(events: pa.Table, begin: int) -> LedgerExtent | None:
    """Of events that should follow each other from an offset on; None if they do not, or if the ledger was switched
    off."""
    if not len(events):
        return EMPTY
    order = np.lexsort((events["place"].to_numpy(), events["offset"].to_numpy()))
    offset, place = (events[name].to_numpy()[order] for name in ("offset", "place"))
    offsets, firsts, counts = np.unique(offset, return_index=True, return_counts=True)
    sizes = events["places"].fill_null(0).to_numpy()[order]
    off = pc.and_(pc.equal(events["verb"], "put_ledger_rule"), pc.equal(events["name"], "off"))
    whole = (
        np.array_equal(offsets, begin + np.arange(len(offsets)))
        and np.array_equal(place, np.arange(len(place)) - np.repeat(firsts, counts))
        and np.all((sizes == 0) | (sizes == np.repeat(counts, counts)))
        and not pc.any(off).as_py()
    )
    if not whole:
        return None
    at = np.minimum.reduceat(events["event_at"].cast(pa.int64()).to_numpy()[order], firsts)
    fires = len(events) - events["tick"].null_count
    ends = int(offsets[0]), int(offsets[-1])
    return LedgerExtent(len(offsets), len(events), *ends, 0, 0, fires, int(place.max()), int(at.min()), int(at.max()))


def _slots(events: pa.Table, known: dict[str, Slot]) -> dict[str, Slot] | None:
    """The last slot of each schedule; None if one may have been taken twice: it is not later than those before it."""
    fired = events.filter(pc.and_(pc.equal(events["verb"], "fire"), events["tick"].is_valid()))
    ticks = fired["tick"].cast(pa.int64()).to_pylist()
    slots = dict(known)
    for offset, name, tick in sorted(
        set(zip(fired["offset"].to_pylist(), fired["name"].to_pylist(), ticks, strict=True))
    ):
        if name in slots and slots[name].tick >= tick:
            return None
        slots[name] = Slot(tick, offset)
    return slots


def _totals(rows: EvidenceRows) -> ProvenTotals:
    """Of these alone."""
    change, job_id = rows.events["change"], rows.events["job_id"]
    born = pc.equal(change, Change.ACCEPTED.value)
    enqueued = distinct_numbers(job_id.filter(pc.and_(born, pc.not_equal(rows.events["verb"], "fire"))))
    ended = distinct_numbers(job_id.filter(pc.is_in(change, value_set=pa.array(ENDED))))
    named, sent, effects = np.empty(0, np.int64), 0, 0
    if rows.receipts is not None:
        answer = rows.receipts["answer"]
        named = distinct_numbers(rows.receipts["job_id"].filter(pc.is_in(answer, value_set=pa.array(NAMED))))
        sent = len(distinct_numbers(rows.receipts["seq"].filter(pc.not_equal(answer, "refused"))))
        effects = 0 if rows.effects is None else len(rows.effects)
    receipted = len(np.intersect1d(enqueued, named, assume_unique=True))
    return ProvenTotals(len(distinct_numbers(job_id.filter(born))), len(ended), len(enqueued), receipted, sent, effects)
