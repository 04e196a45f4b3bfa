"""Schedules: when they fire next, in words and in their zone; pausing, resuming and editing them."""

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.schedule import Schedule
from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import desk_of
from forebay.serve.dashboard.pages.route import Operator, Viewer, back, pages, whole
from forebay.serve.dashboard.render import Sheet, html, link
from forebay.serve.dashboard.views.schedules import row_of, schedules_view
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.sessions import form_of
from forebay.work.cron import NEVER, CatchUp, Cron, Timetable
from forebay.work.ticker import run_now

router = pages()


@router.get("/ui/schedules")
async def schedules(request: Request, actor: Viewer) -> Response:
    whole(actor)
    desk, wanted = desk_of(request), request.query_params.get("name", "")
    values = {"view": await desk.ground.call(schedules_view, desk.store, actor, wanted), "wanted": wanted}
    return await html(request, actor, Sheet("schedules.html", "Schedules", values, "schedules"))


@router.get("/ui/schedules/{name}")
async def schedule(request: Request, name: str, actor: Viewer) -> Response:
    desk = desk_of(request)
    values = await desk.ground.call(_values, desk, actor, name)
    return await html(request, actor, Sheet("schedule.html", f"Schedule {name}", values | {"wrong": ""}, "schedules"))


@router.post("/ui/schedules/{name}/edit")
async def edit(request: Request, name: str, actor: Operator) -> Response:
    """Another rule, from now on; what it enqueues stays as it is."""
    desk, form = desk_of(request), await form_of(request)
    was = await desk.ground.call(_one, desk, actor, name)
    try:
        timetable = _timetable(form)
    except Invalid as error:
        values = await desk.ground.call(_values, desk, actor, name)
        sheet = Sheet("schedule.html", f"Schedule {name}", values | {"wrong": str(error)}, "schedules", status=422)
        return await html(request, actor, sheet)
    first = timetable.cron.next_after(await desk.ground.call(desk.store.now)) or NEVER
    await record_act(desk.ground, actor, "edit schedule", f"schedule {name}", rule=timetable.rule, was=was.rule)
    edited = replace(was, rule=timetable.rule, zone=timetable.cron.zone, next_at=first)
    await desk.ground.call(desk.store.put_schedule, edited)
    return back(link("schedules", name))


def _timetable(form: dict[str, str]) -> Timetable:
    jitter = form.get("jitter", "0").strip() or "0"
    if not (jitter.isascii() and jitter.isdigit() and len(jitter) < 6):
        raise Invalid("jitter", "it is not a number of seconds", "write 0 or more")
    dst, overlap = form.get("dst", "once"), form.get("overlap", "allow")
    cron = Cron(form.get("rule", ""), form.get("zone", "UTC").strip(), dst)  # type: ignore[arg-type] # checked there
    catch_up = CatchUp.parse(form.get("catch_up", "last").strip())
    return Timetable(cron, catch_up, overlap, int(jitter))  # type: ignore[arg-type] # checked there


@router.post("/ui/schedules/{name}/pause")
async def pause(request: Request, name: str, actor: Operator) -> Response:
    desk = desk_of(request)
    was = await desk.ground.call(_one, desk, actor, name)
    await record_act(desk.ground, actor, "pause schedule", f"schedule {name}")
    await desk.ground.call(desk.store.put_schedule, replace(was, paused=True))
    return back(link("schedules", name))


@router.post("/ui/schedules/{name}/resume")
async def resume(request: Request, name: str, actor: Operator) -> Response:
    """From now on; what was missed while it was paused stays missed."""
    desk = desk_of(request)
    was = await desk.ground.call(_one, desk, actor, name)
    now = await desk.ground.call(desk.store.now)
    following = Timetable.parse(was.rule, was.zone).cron.next_after(now) or NEVER
    await record_act(desk.ground, actor, "resume schedule", f"schedule {name}")
    await desk.ground.call(desk.store.put_schedule, replace(was, paused=False, next_at=following))
    return back(link("schedules", name))


@router.post("/ui/schedules/{name}/run")
async def run(request: Request, name: str, actor: Operator) -> Response:
    """Enqueue its job now; the page of that job is where to look next."""
    desk = desk_of(request)
    schedule = await desk.ground.call(_one, desk, actor, name)
    receipt = await desk.ground.call(run_now, desk.store, schedule)
    await record_act(desk.ground, actor, "run schedule", f"schedule {name}", job=receipt.id)
    desk.spoil()
    return back(link("jobs", receipt.id, did="enqueued") if receipt.id else link("schedules", name))


def _one(desk: Desk, actor: Actor, name: str) -> Schedule:
    whole(actor)
    for found in desk.store.schedules():
        if found.name == name and actor.reaches(found.draft.queue):
            return found
    raise absent(f"schedule {name}")


def _values(desk: Desk, actor: Actor, name: str) -> dict[str, Any]:
    found = _one(desk, actor, name)
    last = desk.store.get([found.last_job])[0] if found.last_job is not None else None
    row = row_of(found, last, desk.store.now())
    dst = "once" if row.trouble else Timetable.parse(found.rule, found.zone).cron.dst
    return {"row": row, "dst": dst}
