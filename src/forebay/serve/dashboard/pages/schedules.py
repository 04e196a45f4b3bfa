"""Schedules: their next fire times, in words and in their zone; pausing, resuming, editing and running them."""

from typing import Annotated, Final
from zoneinfo import ZoneInfo

from msgspec import Meta, Struct
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Job
from forebay.core.limits import MAX_BATCH
from forebay.core.schedule import Schedule
from forebay.serve.actor import Actor
from forebay.serve.api import cron
from forebay.serve.api.cron import find_schedule
from forebay.serve.dashboard.pages.routing import (
    Cache,
    OperatorActor,
    ViewerActor,
    form_of_type,
    pages,
    require_all_tenants,
)
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.security.operator_log import record_action
from forebay.store.protocol import Store
from forebay.work.cron import NEVER, CatchUp, Cron, Dst, Overlap, Timetable, describe

router = pages()

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


class ScheduleForm(Struct, frozen=True):
    rule: str = ""
    zone: str = "UTC"
    dst: Dst = "once"
    catch_up: str = "last"
    overlap: Overlap = "allow"
    jitter: Annotated[int, Meta(ge=0, le=99_999)] = 0

    def timetable(self) -> Timetable:
        cron = Cron(self.rule, self.zone, self.dst)
        return Timetable(cron, CatchUp.parse(self.catch_up), self.overlap, self.jitter)


@router.get("/ui/schedules")
def schedules(cache: Cache, actor: ViewerActor, name: str = "") -> HtmlPage:
    require_all_tenants(actor)
    values = {"view": schedules_view(cache.store, actor, name), "wanted": name}
    return HtmlPage("schedules.html", "Schedules", values, "schedules")


@router.get("/ui/schedules/{name}")
def schedule(cache: Cache, name: str, actor: ViewerActor) -> HtmlPage:
    require_all_tenants(actor)
    return _page(cache, find_schedule(cache.store, actor, name))


def _page(cache: ViewCache, found: Schedule, wrong: str = "") -> HtmlPage:
    last = None if found.last_job is None else cache.store.get([found.last_job])[0]
    row = row_of(found, last, cache.store.now())
    dst = "once" if row.trouble else Timetable.parse(found.rule, found.zone).cron.dst
    values = {"row": row, "dst": dst, "wrong": wrong}
    return HtmlPage("schedule.html", f"Schedule {found.name}", values, "schedules", status=422 if wrong else 200)


@router.post("/ui/schedules/{name}/edit")
def edit(
    cache: Cache, name: str, actor: OperatorActor, form: Annotated[ScheduleForm, form_of_type(ScheduleForm)]
) -> HtmlPage | str:
    """Change the rule from now on; the job that it enqueues stays the same."""
    require_all_tenants(actor)
    was = find_schedule(cache.store, actor, name)
    try:
        timetable = form.timetable()
    except Invalid as error:
        return _page(cache, was, str(error))
    first = timetable.cron.next_after(cache.store.now()) or NEVER
    record_action(cache.store, actor.name, "cron put", name, rule=timetable.rule, was=was.rule)
    cache.store.put_schedule(replace(was, rule=timetable.rule, zone=timetable.cron.zone, next_at=first))
    return link("schedules", name)


@router.post("/ui/schedules/{name}/pause")
def pause(cache: Cache, name: str, actor: OperatorActor) -> str:
    require_all_tenants(actor)
    cron.pause(cache.context, actor, name)
    return link("schedules", name)


@router.post("/ui/schedules/{name}/resume")
def resume(cache: Cache, name: str, actor: OperatorActor) -> str:
    """Resume from now on; what was missed while paused is not made up for."""
    require_all_tenants(actor)
    cron.resume(cache.context, actor, name)
    return link("schedules", name)


@router.post("/ui/schedules/{name}/run")
def run(cache: Cache, name: str, actor: OperatorActor) -> str:
    """Enqueue its job now, and show that job."""
    require_all_tenants(actor)
    made = cron.run(cache.context, actor, name)
    cache.invalidate()
    return link("jobs", made.job_id, did="enqueued") if made.job_id else link("schedules", name)


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
