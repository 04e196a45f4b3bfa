"""Schedules: their next fire times, in words and in their zone; pausing, resuming, editing and running them."""

from typing import Annotated, Any

from fastapi import Request
from fastapi.responses import Response
from msgspec import Meta, Struct
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.schedule import Schedule
from forebay.serve.actor import Actor
from forebay.serve.dashboard.live import view_cache
from forebay.serve.dashboard.pages.routing import Operator, Viewer, back, form_of_type, pages, require_all_tenants
from forebay.serve.dashboard.render import HtmlPage, link, render_page
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.schedules import row_of, schedules_view
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import record_action
from forebay.work.cron import NEVER, CatchUp, Cron, Dst, Overlap, Timetable
from forebay.work.ticker import run_now

router = pages()


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
async def schedules(request: Request, actor: Viewer, name: str = "") -> Response:
    require_all_tenants(actor)
    cache = view_cache(request)
    values = {"view": await cache.context.call(schedules_view, cache.store, actor, name), "wanted": name}
    return await render_page(request, actor, HtmlPage("schedules.html", "Schedules", values, "schedules"))


@router.get("/ui/schedules/{name}")
async def schedule(request: Request, name: str, actor: Viewer) -> Response:
    cache = view_cache(request)
    values = await cache.context.call(_values, cache, actor, name)
    return await render_page(
        request, actor, HtmlPage("schedule.html", f"Schedule {name}", values | {"wrong": ""}, "schedules")
    )


@router.post("/ui/schedules/{name}/edit")
async def edit(
    request: Request, name: str, actor: Operator, form: Annotated[ScheduleForm, form_of_type(ScheduleForm)]
) -> Response:
    """Change the rule from now on; the job that it enqueues stays the same."""
    cache = view_cache(request)
    was = await cache.context.call(_one, cache, actor, name)
    try:
        timetable = form.timetable()
    except Invalid as error:
        values = await cache.context.call(_values, cache, actor, name)
        page = HtmlPage("schedule.html", f"Schedule {name}", values | {"wrong": str(error)}, "schedules", status=422)
        return await render_page(request, actor, page)
    first = timetable.cron.next_after(await cache.context.call(cache.store.now)) or NEVER
    await record_action(cache.context, actor, "edit schedule", f"schedule {name}", rule=timetable.rule, was=was.rule)
    edited = replace(was, rule=timetable.rule, zone=timetable.cron.zone, next_at=first)
    await cache.context.call(cache.store.put_schedule, edited)
    return back(link("schedules", name))


@router.post("/ui/schedules/{name}/pause")
async def pause(request: Request, name: str, actor: Operator) -> Response:
    cache = view_cache(request)
    was = await cache.context.call(_one, cache, actor, name)
    await record_action(cache.context, actor, "pause schedule", f"schedule {name}")
    await cache.context.call(cache.store.put_schedule, replace(was, paused=True))
    return back(link("schedules", name))


@router.post("/ui/schedules/{name}/resume")
async def resume(request: Request, name: str, actor: Operator) -> Response:
    """Resume from now on; what was missed while paused is not made up for."""
    cache = view_cache(request)
    was = await cache.context.call(_one, cache, actor, name)
    now = await cache.context.call(cache.store.now)
    following = Timetable.parse(was.rule, was.zone).cron.next_after(now) or NEVER
    await record_action(cache.context, actor, "resume schedule", f"schedule {name}")
    await cache.context.call(cache.store.put_schedule, replace(was, paused=False, next_at=following))
    return back(link("schedules", name))


@router.post("/ui/schedules/{name}/run")
async def run(request: Request, name: str, actor: Operator) -> Response:
    """Enqueue its job now, and show that job."""
    cache = view_cache(request)
    schedule = await cache.context.call(_one, cache, actor, name)
    receipt = await cache.context.call(run_now, cache.store, schedule)
    await record_action(cache.context, actor, "run schedule", f"schedule {name}", job=receipt.id)
    cache.invalidate()
    return back(link("jobs", receipt.id, did="enqueued") if receipt.id else link("schedules", name))


def _one(cache: ViewCache, actor: Actor, name: str) -> Schedule:
    require_all_tenants(actor)
    for found in cache.store.schedules():
        if found.name == name and actor.reaches(found.draft.queue):
            return found
    raise not_found(f"schedule {name}")


def _values(cache: ViewCache, actor: Actor, name: str) -> dict[str, Any]:
    found = _one(cache, actor, name)
    last = cache.store.get([found.last_job])[0] if found.last_job is not None else None
    row = row_of(found, last, cache.store.now())
    dst = "once" if row.trouble else Timetable.parse(found.rule, found.zone).cron.dst
    return {"row": row, "dst": dst}
