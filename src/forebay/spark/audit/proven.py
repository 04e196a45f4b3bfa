"""What an audit that passed records for the next one: how far everything is proven, and the totals."""

from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame

from forebay.spark.audit.survey import EMPTY, LedgerExtent
from forebay.spark.audit.verdict import EarlierProof


class Slot(Struct, frozen=True):
    """The last one of a schedule that was taken or given up: in microseconds, and the offset of its record."""

    tick: int
    offset: int


class ProvenTotals(Struct, frozen=True):
    """How many jobs there are, have ended, were enqueued and have a receipt; how many seqs were sent, and how many
    effects there are."""

    jobs: int
    ended: int
    enqueued: int
    receipted: int
    sent: int
    effects: int

    def plus(self, other: "ProvenTotals") -> "ProvenTotals":
        return ProvenTotals(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def minus(self, other: "ProvenTotals") -> "ProvenTotals":
        return ProvenTotals(*(getattr(self, name) - getattr(other, name) for name in self.__struct_fields__))


class Proven(Struct, frozen=True):
    """Every event below the offset `end` was checked, and nothing was wrong.

    at         when, in UTC
    rows       of the lake's events below `end`, with those that upkeep has dropped
    evidence   the digests of the receipts and effects that were given, by the name of their table
    slots      the last one of each schedule
    held_back  evidence about later acceptances and claims was left out
    """

    end: int
    at: str
    rows: int
    extent: LedgerExtent
    totals: ProvenTotals
    evidence: dict[str, list[str]]
    slots: dict[str, Slot]
    held_back: bool

    def relied_on(self, new_events: int) -> EarlierProof | None:
        return EarlierProof(self.extent.first, self.end, self.at, new_events) if self.end else None


NOTHING: Final = Proven(0, "", 0, EMPTY, ProvenTotals(0, 0, 0, 0, 0, 0), {}, {}, held_back=False)
"""An audit that relies on it is a whole one."""


class EarlierAudit(Struct, frozen=True):
    """Rows from before `proven.end` that an incremental audit reads: all events, receipts and effects of the jobs and
    seqs that it checks, and the events of jobs that were open. None: there are none."""

    proven: Proven
    events: DataFrame | None
    receipts: DataFrame | None
    effects: DataFrame | None
