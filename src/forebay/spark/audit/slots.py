"""Slots of schedules by the rules that the store has now: where one that a rule names was neither taken nor given up.

A slot that was left out is a note: `catch_up` leaves out what was missed while no worker ran. Slots from before the
last edit, pause or resume of their schedule may follow another rule and are not judged.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TypeAlias

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, to_datetime
from forebay.spark.audit.exact_checks import Finding
from forebay.work.cron import Timetable

FiredSlot: TypeAlias = tuple[str, Instant, int]
"""The name of the schedule, the tick, and the offset of the record."""


class ScheduleRule(Struct, frozen=True):
    """`since`: the offset from which it holds."""

    rule: str
    zone: str
    since: int = 0


def left_out(slots: Iterable[FiredSlot], rules: Mapping[str, ScheduleRule]) -> Iterator[Finding]:
    """Pairs of slots of one schedule between which its rule has another one."""
    for name, own in groupby(sorted(set(slots)), key=itemgetter(0)):
        held = rules.get(name)
        if held is None:
            continue
        try:
            cron = Timetable.parse(held.rule, held.zone).cron
        except Invalid:  # a rule or a zone that only another machine knows
            continue
        for (_, before, known), (_, tick, offset) in pairwise(own):
            due = None if known < held.since else cron.next_after(before)
            if due is not None and due < tick:
                note = f"{name}: between {_written(before)} and {_written(tick)}"
                yield Finding("slot_missing", offset=offset, note=note)


def _written(tick: Instant) -> str:
    return to_datetime(tick).isoformat()
