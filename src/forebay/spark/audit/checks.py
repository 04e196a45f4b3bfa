"""Every check of the audit: its name, the invariant it stands for, what exactly it finds, and how much that weighs.

A job's life, as the ledger tells it, is a path through open (accepted, retried, released, redriven), running (claimed,
extended), ended (acked, died, dismissed, cancelled, expired, shed) and gone (purged); "before" means in the order of
the ledger. A *failure* breaks a promise. A *note* is worth knowing and breaks none. A *doubt* says that evidence is
missing: the answer is INVALID.

A check of the tier `proof` can be decided for all jobs by counting bits (`bitsets`). One of the tier `every` needs each
job's events side by side: a quick audit leaves it out, unless the bits are suspicious.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.policy import Field

Weight = Literal["failure", "note", "doubt"]


class Tier(StrEnum):
    PROOF = "proof"
    EVERY = "every"


class Check(Struct, frozen=True):
    """`needs`: the evidence besides the events, or the option, without which nothing can be said."""

    id: str
    invariant: str
    what: str
    needs: tuple[str, ...] = ()
    tier: Tier = Tier.PROOF
    weight: Weight = "failure"


def _closely(name: str, invariant: str, what: str, needs: tuple[str, ...] = ()) -> Check:
    return Check(name, invariant, what, needs, Tier.EVERY)


def _note(name: str, invariant: str, what: str, needs: tuple[str, ...] = (), tier: Tier = Tier.PROOF) -> Check:
    return Check(name, invariant, what, needs, tier, "note")


_TOLD: Final = ("receipts",)
_DONE: Final = ("effects",)
_BOTH: Final = ("receipts", "effects")

_ALL: Final = (
    Check("lost", "I1", "a producer was told of a job, and the ledger has no such job, or one of somebody else", _TOLD),
    Check("unfinished", "I1", "a job has no end although everything is said to be drained", ("drained",)),
    Check("undone", "I1", "the ledger says acked, and no handler left an effect", _BOTH),
    Check("unexpected", "I1", "an effect of a seq that nobody sent, or of a job that nobody accepted", _DONE),
    Check(
        *("unreceipted", "I1", "an effect of an accepted job of which no receipt is there: is a file missing?", _BOTH),
        weight="doubt",
    ),
    Check("duplicated", "I11", "one seq became two jobs of one queue", _TOLD),
    _note("recovered", "I1", "the reply was lost, and the job is there all the same", _BOTH),
    Check("repeated_effect", "I3", "one fence left more than one effect", _DONE),
    _note("redelivered", "I2", "several deliveries of one job left an effect", _DONE),
    _note("effect_of_dead", "I4", "a job that died left an effect: it failed after it had done its work", _DONE),
    Check("unborn", "I1", "a job's first event is not its acceptance"),
    Check("born_twice", "I1", "a job was accepted again"),
    Check("ended_twice", "I13", "a job ended after it had ended, without a redrive between"),
    _closely("unfenced_effect", "I3", "an effect by a delivery that was never handed out", _DONE),
    _closely("foreign_effect", "I1", "an effect of a seq by a job that belongs to other seqs", _BOTH),
    _closely("resurrected", "I13", "a job was claimed after it had ended, without a redrive between"),
    _closely("stale_settle", "I3", "a settle or renewal was taken from a delivery that was not the current one"),
    _closely("lease_overlap", "I2", "a job was claimed while its lease ran and had not been settled"),
    _note(
        "early_take_back", "I2", "a lease was given up as abandoned, and claimed again before its end", (), Tier.EVERY
    ),
    _closely("early_claim", "I12", "a job was claimed before it was due"),
    _closely("delivery_step", "I3", "a claim's delivery is not the last one plus one"),
    _closely("too_many_attempts", "I4", "a job was claimed, or died, beyond its max_attempts"),
    _closely("miscounted_attempts", "I4", "a claim's attempt does not follow from what happened before"),
    _note("died_early", "I4", "a job died with attempts left: did its handler give up?", (), Tier.EVERY),
    _closely("illegal", "I15", "a change that the job's state does not allow"),
    Check("out_of_turn", "I7", "a job ran before or beside another of its line", ("ordered",)),
    Check("slot_twice", "I5", "one slot of a schedule was taken twice"),
    Check("slot_missing", "I5", "a slot of a regular schedule was neither taken nor given up", ("schedules",)),
    Check("ledger_gap", "I19", "records, or jobs of a record, are missing between others"),
    Check("conflict", "I19", "one place of the ledger was read with two contents"),
    Check("log_gap", "I19", "entries of a retained log are missing between others", ("logs",)),
)
CHECKS: Final = {check.id: check for check in _ALL}


class Options(Struct, frozen=True, kw_only=True):
    """What the one who asks knows, and how much evidence is enough.

    quick         count bits alone, and look at jobs one by one only where these are suspicious
    drained       everything was worked off before the ledger was read: what has no end is a failure
    exactly_once  effects by several deliveries are a failure: they were bound to the settle
    dropped       kinds of errors by which handlers give up at once; named, any other early death is a failure
    ordered       queues whose jobs run in order, and by which field: {"payments": "subject"}
    schedules     schedules that leave out nothing, and how far apart their slots are
    from_offset   the offset at which the evidence is known to begin; what happened before it is not judged
    min_jobs      fewer jobs than this prove nothing
    coverage      so large a share of the jobs that were enqueued must have a receipt
    """

    quick: bool = False
    drained: bool = False
    exactly_once: bool = False
    dropped: frozenset[str] | None = None
    ordered: dict[str, Field] = {}
    schedules: dict[str, timedelta] = {}
    from_offset: int = 0
    min_jobs: int = 1
    coverage: float = 0.9

    def __post_init__(self) -> None:
        if self.from_offset < 0:
            raise Invalid("from_offset", f"{self.from_offset} is no offset", "offsets begin at 0")
        if not 0 <= self.coverage <= 1:
            raise Invalid("coverage", f"{self.coverage} is no share", "give a number in 0 … 1")
        for queue, by in self.ordered.items():
            if by not in {"subject", "tenant", "kind"}:
                raise Invalid("ordered", f"queue {queue!r} by {by!r}", "a line is by subject, tenant or kind")
        for name, every in self.schedules.items():
            if every <= timedelta(0):
                raise Invalid("schedules", f"{name!r} every {every}", "give the time between two slots")

    def weight(self, check: Check) -> Weight:
        """What the one who asks makes of it."""
        strict = (check.id == "redelivered" and self.exactly_once) or (
            check.id == "died_early" and self.dropped is not None
        )
        return "failure" if strict else check.weight
