"""Selection is a rank: an integer made of one job's own fields. Smaller is sooner, ties go to the smaller id.

A rank is affine in the due time: `base + due_at` when the selection looks at time, else `base`. Core computes the base
once, at enqueue; `rank_at` gives the rank whenever a store writes a due time. For linear aging "now" cancels out,
so a job's place never has to be recomputed while it waits.
In a FIFO queue a job that has to wait for its time leads: once due it goes before everything that did not have to
wait, and leaders go by their due times. A job that goes back (released, or taken back from a worker that died) keeps
its rank; in a FIFO queue it leads, by the time that it had: claims that run at the same time may pass an older job, and
one that has been handed out before must not wait for those.
API `priority`: higher is sooner. `rank`: smaller is sooner. They are never mixed.
"""

from typing import Final, NamedTuple

from forebay.core.instant import Instant, micros
from forebay.core.job import Draft
from forebay.core.limits import MAX_INSTANT
from forebay.core.policy import Aging, Deadline, Fifo, Priority, Selection

LEAD: Final = 2**53
"""More than any due time, so that the rank of a leader is smaller than that of everybody else: it is below zero."""

UNTIMED, TIMED, LEADING = range(3)
"""How a rank looks at the due time; the numbers are part of the ledger and of the stores' tables."""


class RankRule(NamedTuple):
    """How a job's rank follows from its due time: the first two arguments of `rank_at`."""

    base: int
    timed: int


BY_TIME: Final = RankRule(0, LEADING)


def rank_rule(selection: Selection, draft: Draft) -> RankRule:
    match selection:
        case Fifo():
            return BY_TIME
        case Priority():
            return RankRule(-draft.priority, UNTIMED)
        case Aging(step):
            return RankRule(-draft.priority * micros(step), TIMED)
        case Deadline():
            return RankRule(MAX_INSTANT if draft.deadline is None else draft.deadline, UNTIMED)


def rank_at(base: int, timed: int, due_at: Instant, now: Instant) -> int:
    """The rank of a job whose due time is written now."""
    if not timed:
        return base
    return base + due_at - LEAD if timed == LEADING and due_at > now else base + due_at


def rank_back(rank: int, timed: int) -> int:
    """The rank of a job that goes back to the place that it had."""
    return rank - LEAD if timed == LEADING and rank >= 0 else rank
