"""Schedules: their rule in words, the next fire times in their own zone, and their last job."""

from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Job
from forebay.core.limits import MAX_BATCH
from forebay.core.schedule import Schedule
from forebay.serve.actor import Actor
from forebay.store.protocol import Store
from forebay.work.cron import NEVER, Timetable, describe

MAX_SHOWN: Final = 200
FIRES: Final = 3


class ScheduleRow(Struct, frozen=True):
    """One schedule. Where its rule cannot be parsed, `words` is empty and `trouble` is the reason."""

    schedule: Schedule
    cron: str
    words: str
    trouble: str
    fires: list[str]
    catch_up: str
    overlap: str
    jitter: int
    last: Job | None


class ScheduleList(Struct, frozen=True):
    rows: list[ScheduleRow]
    more: int


def schedules_view(store: Store, actor: Actor, wanted: str = "") -> ScheduleList:
    """Schedules whose name contains `wanted`."""
    seen = sorted(
        (each for each in store.schedules() if actor.reaches(each.draft.queue) and wanted in each.name),
        key=lambda each: each.name,
    )
    shown, now = seen[:MAX_SHOWN], store.now()
    ids = list({each.last_job for each in shown if each.last_job is not None})[:MAX_BATCH]
    jobs = {job.id: job for job in store.get(ids) if job is not None} if ids else {}
    rows = [row_of(each, jobs.get(each.last_job or 0), now) for each in shown]
    return ScheduleList(rows, len(seen) - len(shown))


def row_of(schedule: Schedule, last: Job | None, now: Instant) -> ScheduleRow:
    try:
        timetable = Timetable.parse(schedule.rule, schedule.zone)
    except Invalid as error:
        return ScheduleRow(schedule, schedule.rule, "", str(error), [], "", "", 0, last)
    zone = ZoneInfo(schedule.zone)
    ticks = [] if schedule.paused else timetable.cron.ticks(max(now, schedule.next_at - 1), NEVER, FIRES)
    fires = [f"{to_datetime(tick).astimezone(zone):%a %d %b %H:%M:%S}" for tick in ticks]
    words = describe(timetable.cron, now).partition(";")[0]
    rule = timetable.cron.rule
    return ScheduleRow(
        schedule, rule, words, "", fires, str(timetable.catch_up), timetable.overlap, timetable.jitter, last
    )
