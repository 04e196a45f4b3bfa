"""A schedule as a store keeps it: when the next slot is, and what to enqueue then.

The store compares and sets: `fire` succeeds for exactly one caller per (name, tick), whatever the number of
processes, and a tick at or before the last fired one never fires again, also after the schedule was edited.
"""

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, checked_instant
from forebay.core.job import Draft
from forebay.core.names import check_name


class Schedule(Struct, frozen=True):
    """`rule` is for the one who computes ticks (a cron line, an interval); the store does not read it."""

    name: str
    rule: str
    next_at: Instant
    draft: Draft
    zone: str = "UTC"
    last_at: Instant | None = None
    paused: bool = False

    def __post_init__(self) -> None:
        check_name("schedule", self.name)
        checked_instant("next_at", self.next_at)
        if not isinstance(self.rule, str) or len(self.rule) > 256:
            raise Invalid("rule", "it is not a short text", "use at most 256 characters")
        check_name("zone", self.zone.replace("/", ":").replace("+", "-") or "?")
