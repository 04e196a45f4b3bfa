"""Every check of the audit: its name, its invariant, what exactly it finds, and how severe that is.

In the ledger a job passes through open (accepted, retried, released, redriven), running (claimed,
extended), ended (acked, died, discarded, cancelled, expired, shed) and gone (purged); "before" means in the order of
the ledger. A *failure* breaks a promise. A *note* breaks none. A *doubt* means that evidence is
missing: the answer is INVALID. Where records of the ledger are missing, a failure that they may have caused is a doubt.

A check of the tier `proof` can be decided for all jobs by counting bits (`bitsets`). One of the tier `every` needs each
job's events side by side: a quick audit leaves it out, unless the bits are suspicious.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.policy import Field
from forebay.spark.audit.slots import ScheduleRule

Weight = Literal["failure", "note", "doubt"]


class Tier(StrEnum):
    PROOF = "proof"
    EVERY = "every"


class Check(Struct, frozen=True):
    """`needs`: the evidence besides the events, or the option, that the check requires. `robust`: records that are
    missing in the ledger cannot be the cause of what it finds."""

    id: str
    invariant: str
    what: str
    needs: tuple[str, ...] = ()
    tier: Tier = Tier.PROOF
    weight: Weight = "failure"
    robust: bool = False


def _closely(name: str, invariant: str, what: str, needs: tuple[str, ...] = ()) -> Check:
    return Check(name, invariant, what, needs, Tier.EVERY)


def _note(name: str, invariant: str, what: str, needs: tuple[str, ...] = (), tier: Tier = Tier.PROOF) -> Check:
    return Check(name, invariant, what, needs, tier, "note")


_RECEIPTS: Final = ("receipts",)
_EFFECTS: Final = ("effects",)
_BOTH: Final = ("receipts", "effects")

_ALL: Final = (
    Check("lost", "I1", "a receipt names a job that the ledger lacks, or that belongs to another seq", _RECEIPTS),
    Check("unfinished", "I1", "a job has no end although the queues were drained", ("drained",)),
    Check("undone", "I1", "the job was acked, and there is no effect", _BOTH),
    Check("unexpected", "I1", "an effect of a seq that was not sent, or of a job that was not accepted", _EFFECTS),
    Check(
        *("unreceipted", "I1", "an effect of an accepted job without a receipt: is a file missing?", _BOTH),
        weight="doubt",
    ),
    Check("duplicated", "I11", "one seq became two jobs of one queue", _RECEIPTS, robust=True),
    _note("recovered", "I1", "the reply was lost, and the job was accepted", _BOTH),
    Check("repeated_effect", "I3", "one fence left more than one effect", _EFFECTS, robust=True),
    Check("redelivered", "I2", "several deliveries of one job left an effect", _EFFECTS, weight="note", robust=True),
    _note("effect_of_dead", "I4", "a dead job left an effect: it failed after its work was done", _EFFECTS),
    Check("unborn", "I1", "a job's first event is not its acceptance"),
    Check("born_twice", "I1", "a job was accepted again", robust=True),
    Check("ended_twice", "I13", "a job ended after it had ended, without a redrive between"),
    _closely("unfenced_effect", "I3", "an effect by a delivery that was never claimed", _EFFECTS),
    Check(
        *("foreign_effect", "I1", "an effect of a seq by a job that belongs to other seqs", _BOTH, Tier.EVERY),
        robust=True,
    ),
    _closely("resurrected", "I13", "a job was claimed after it had ended, without a redrive between"),
    _closely("stale_settle", "I3", "a settle or renewal by a delivery that was not the current one"),
    _closely("lease_overlap", "I2", "a job was claimed while its lease ran and had not been settled"),
    _note(
        "early_take_back",
        "I2",
        "an abandoned lease was released, and the job claimed again, before the lease's end",
        (),
        Tier.EVERY,
    ),
    _closely("early_claim", "I12", "a job was claimed before it was due"),
    _closely("delivery_step", "I3", "a claim's delivery is not the last one plus one"),
    _closely("too_many_attempts", "I4", "a job was claimed, or died, beyond its max_attempts"),
    _closely("miscounted_attempts", "I4", "a claim's attempt does not follow from what happened before"),
    _note("died_early", "I4", "a job died with attempts left: did its handler drop it?", (), Tier.EVERY),
    _closely("illegal", "I15", "a change that the job's state does not allow"),
    Check("out_of_turn", "I7", "a job ran before, or concurrently with, an older one of its line", ("ordered",)),
    Check("slot_twice", "I5", "one slot of a schedule was taken twice", robust=True),
    Check("slot_missing", "I5", "a slot of a regular schedule was neither taken nor given up", ("schedules",)),
    Check("ledger_gap", "I19", "records, or jobs of a record, are missing between others", weight="doubt"),
    Check("conflict", "I19", "one position of the ledger has two contents", robust=True),
    Check("log_gap", "I19", "entries of a retained log are missing between others", ("logs",), robust=True),
)
CHECKS: Final = {check.id: check for check in _ALL}


class AuditOptions(Struct, frozen=True, kw_only=True):
    """What is promised beyond the ledger, and how much evidence is enough.

    quick         compare sets of jobs only, and each job's events only where the sets differ
    drained       the queues were empty before the ledger was read: a job without an end is a failure
    exactly_once  effects by several deliveries are a failure: they commit with the settle
    dropped       kinds of errors by which handlers drop a job; if given, any other early death is a failure
    ordered       queues whose jobs run in order, and by which field: {"payments": "subject"}
    since         by queue: the offset from which its jobs run in order; by default the first one
    promised      `ordered` is what the store promises now: `audit_lake` finds out since when
    schedules     schedules without a missing slot, and the interval between slots
    rules         of all schedules, as the store has them; without `schedules`, a slot that was left out is a note
    from_offset   the offset at which the evidence starts; earlier events are not judged
    min_jobs      fewer jobs than this prove nothing
    coverage      this share of the enqueued jobs must have a receipt
    """

    quick: bool = False
    drained: bool = False
    exactly_once: bool = False
    dropped: frozenset[str] | None = None
    ordered: dict[str, Field] = {}
    since: dict[str, int] = {}
    promised: bool = False
    schedules: dict[str, timedelta] = {}
    rules: dict[str, ScheduleRule] = {}
    from_offset: int = 0
    min_jobs: int = 1
    coverage: float = 0.9

    def __post_init__(self) -> None:
        if self.from_offset < 0:
            raise Invalid("from_offset", f"{self.from_offset} is not an offset", "offsets start at 0")
        if not 0 <= self.coverage <= 1:
            raise Invalid("coverage", f"{self.coverage} is not a fraction", "give a number in 0 … 1")
        for queue, by in self.ordered.items():
            if by not in {"subject", "tenant", "kind"}:
                raise Invalid("ordered", f"queue {queue!r} by {by!r}", "a line is by subject, tenant or kind")
        for name, every in self.schedules.items():
            if every <= timedelta(0):
                raise Invalid("schedules", f"{name!r} every {every}", "give the time between two slots")

    def weight(self, check: Check) -> Weight:
        """Its weight under these options."""
        strict = (check.id == "redelivered" and self.exactly_once) or (
            check.id == "died_early" and self.dropped is not None
        )
        unasked = check.id == "slot_missing" and not self.schedules
        return "failure" if strict else "note" if unasked else check.weight
