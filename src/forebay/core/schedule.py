"""A schedule as a store keeps it: when the next slot is, and what to enqueue then.

The store compares and sets: `fire` succeeds for exactly one caller per (name, tick), whatever the number of
processes, and a tick at or before the last fired one never fires again, also after the schedule was edited. An edit
that leaves rule and zone as they were leaves the next slot alone: a deploy that puts all schedules again drops none.
"""

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, checked_instant
from forebay.core.job import Draft
from forebay.core.names import check_name, check_text


class Schedule(Struct, frozen=True):
    """`rule` (a cron line, an interval) is read by the ticker, which computes the ticks; a store does not read it.

    The store sets `last_at`, the last slot that was fired, and `last_job`, the job that it became.
    """

    name: str
    rule: str
    next_at: Instant
    draft: Draft
    zone: str = "UTC"
    last_at: Instant | None = None
    paused: bool = False
    last_job: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "name", check_name("schedule", self.name))
        checked_instant("next_at", self.next_at)
        force_setattr(self, "rule", check_text("rule", self.rule))
        force_setattr(self, "zone", check_text("zone", self.zone))
        if self.last_at is not None:
            checked_instant("last_at", self.last_at)
        if type(self.draft) is not Draft or type(self.paused) is not bool:
            raise Invalid(
                self.name, "its draft is not a Draft, or paused is not a bool", "build Schedule(name, rule, at, draft)"
            )


def edited(known: Schedule | None, put: Schedule, last_at: Instant | None) -> Schedule:
    """The schedule to store when `put` replaces `known`, if there is one; `last_at` is the last slot fired.

    The next slot is that of `known` while rule and zone are the same. It moves when one of them changes, when a paused
    schedule is resumed, and when the slot of `known` was taken already and could never be taken again.
    """
    if known is None:
        return replace(put, last_at=last_at, last_job=None)
    same = (known.rule, known.zone) == (put.rule, put.zone)
    resumed = known.paused and not put.paused
    keeps = same and not resumed and (last_at is None or known.next_at > last_at)
    return replace(put, next_at=known.next_at if keeps else put.next_at, last_at=last_at, last_job=known.last_job)
