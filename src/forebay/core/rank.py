"""Selection is a rank: an integer made of one job's own fields. Smaller is sooner, ties go to the smaller id.

A rank is affine in the due time: `base + due_at` when the selection looks at time, else `base`. Core computes the base
once, at enqueue; the store adds its own instant whenever it writes a due time. For linear aging "now" cancels out,
so a job's place never has to be recomputed while it waits.
API `priority`: higher is sooner. `rank`: smaller is sooner. They are never mixed.
"""

from typing import NamedTuple

from forebay.core.instant import Instant, micros
from forebay.core.job import Draft
from forebay.core.limits import INSTANT_MOST
from forebay.core.policy import Aging, Deadline, Fifo, Priority, Selection


class RankRule(NamedTuple):
    """How a job's rank follows from its due time."""

    base: int
    timed: bool

    def at(self, due_at: Instant) -> int:
        return self.base + due_at if self.timed else self.base


_BY_TIME = RankRule(0, True)


def rank_rule(selection: Selection, draft: Draft) -> RankRule:
    match selection:
        case Fifo():
            return _BY_TIME
        case Priority():
            return RankRule(-draft.priority, False)
        case Aging(step):
            return RankRule(-draft.priority * micros(step), True)
        case Deadline():
            return RankRule(INSTANT_MOST if draft.deadline is None else draft.deadline, False)
