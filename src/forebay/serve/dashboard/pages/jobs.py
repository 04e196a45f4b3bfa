"""Jobs: a list with filters, and one job with its life, its errors and the reason why it is where it is."""

from functools import partial
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.names import check_name, check_text
from forebay.explain import Place, place_of, reasons
from forebay.serve.actor import Actor
from forebay.serve.dashboard.charts import life
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import answer, desk_of
from forebay.serve.dashboard.pages.route import Operator, Viewer, back, pages
from forebay.serve.dashboard.render import Sheet, html, link
from forebay.serve.dashboard.views.finding import Filter, Found, find_newest
from forebay.serve.dashboard.views.timeline import (
    ENDED,
    FORGOTTEN,
    Timeline,
    timeline_of,
    timeline_of_gone,
    was_given,
    without_owners,
)
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.reach import as_seen
from forebay.serve.security.redact import redact_job, redact_text

router = pages()

_ID_MOST: Final = 2**63 - 1
_QUEUES_PROPOSED: Final = 500
FILTERS: Final = ("queue", "state", "kind", "tenant", "text", "cause")


def filter_of(given: Any) -> Filter:
    """From the fields of an address or a form; `Invalid` says which one no job can have."""
    chosen = {name: given.get(name, "").strip() or None for name in FILTERS}
    state = chosen.pop("state")
    for name, value in chosen.items():
        if value is not None and name != "cause":
            (check_text if name == "text" else check_name)(name, value)
    if state is not None and state not in set(State):
        raise Invalid("state", "it is none", f"use {', '.join(State)}")
    return Filter(**chosen, state=None if state is None else State(state))


@router.get("/ui/jobs")
async def jobs(request: Request, actor: Viewer) -> Response:
    desk, given = desk_of(request), request.query_params
    text = given.get("text", "").strip()
    if text.isascii() and text.isdigit() and 0 < int(text) <= _ID_MOST:
        return back(link("jobs", text))
    before = given.get("before", "")
    values: dict[str, Any] = {"given": {name: given.get(name, "") for name in FILTERS}, "wrong": "", "found": None}
    try:
        wanted = filter_of(given)
        values["found"] = await desk.ground.call(_newest, desk, actor, wanted, before)
    except Invalid as error:
        wanted, values["wrong"] = Filter(), str(error)
    values |= {"wanted": wanted, "states": list(State), "first": not before}
    values["queues"] = await desk.ground.call(_queue_names, desk, actor)
    return await html(
        request, actor, Sheet("jobs.html", "Jobs", values, "jobs", status=422 if values["wrong"] else 200)
    )


def _newest(desk: Desk, actor: Actor, wanted: Filter, before: str) -> Found:
    known = before.isascii() and before.isdigit() and int(before) <= _ID_MOST
    return find_newest(desk.store, actor, wanted, int(before) if known else desk.newest.find() + 1)


def _queue_names(desk: Desk, actor: Actor) -> list[str]:
    """What the filter proposes."""
    found = desk.figures_soon(actor)
    return [] if found is None else sorted(each.queue for each in found.deepest)[:_QUEUES_PROPOSED]


@router.get("/ui/jobs/{job_id}")
async def job(request: Request, job_id: int, actor: Viewer) -> Response:
    if not 0 < job_id <= _ID_MOST:
        raise absent(f"job {job_id}")
    did = request.query_params.get("did", "")
    return await answer(request, actor, partial(_sheet, desk_of(request), actor, job_id, did))


async def _sheet(desk: Desk, actor: Actor, job_id: int, did: str) -> Sheet:
    return await desk.ground.call(_made, desk, actor, job_id, did)


def _made(desk: Desk, actor: Actor, job_id: int, did: str) -> Sheet:
    found = desk.store.get([job_id])[0]
    if found is None:
        return _gone(desk, actor, job_id, did)
    if not actor.sees(found.home or found.queue, found.tenant):
        raise absent(f"job {job_id}")
    timeline, now = _seen(actor, timeline_of(desk.store, found)), desk.store.now()
    shown = redact_job(as_seen(actor, found))
    values = {
        "job": shown,
        "timeline": timeline,
        "stretches": life(timeline.moments, now, found.state is State.RUNNING),
        "why": _why(desk, actor, shown, now),
        "errors": shown.errors[::-1],
        "said": _SAID.get(did, ""),
    }
    return Sheet("job.html", f"Job {job_id}", values, "jobs", live=True)


def _why(desk: Desk, actor: Actor, found: Job, now: Instant) -> list[str]:
    """Why it is where it is; how many other jobs there are is not for a single tenant."""
    backlog = desk.backlog(actor, found.queue)
    if backlog is None:
        return []
    place = place_of(desk.store, found) if actor.tenant is None else Place()
    sentences = reasons(found, backlog, now, place, desk.workers(), others=actor.tenant is None)[1:]
    return [redact_text(each) for each in sentences if not each.startswith("attempt ")]


_SAID: Final = {
    "cancelled": "It was cancelled and will not run.",
    "requested": "It is running; its worker has been asked to stop.",
    "gone": "Nothing was done: the job has already ended.",
    "redriven": "It was redriven and has all its attempts again.",
    "alive": "Nothing was done: the job is no longer dead.",
    "purged": "It was purged.",
    "enqueued": "It was enqueued just now, outside of its schedule.",
}


def _seen(actor: Actor, timeline: Timeline) -> Timeline:
    return timeline if actor.tenant is None else without_owners(timeline)


def _gone(desk: Desk, actor: Actor, job_id: int, did: str) -> Sheet:
    """What is known of a job that was finished and removed, or purged: by the ledger, else by its schedule.

    Where neither knows it, whoever may see every job is told that it is gone, if its id was given out.
    """
    timeline = timeline_of_gone(desk.store, job_id) or _of_schedule(desk, job_id)
    if timeline is None and actor.queues == ("*",) and actor.tenant is None and was_given(desk.store, job_id):
        timeline = Timeline([], FORGOTTEN)
    elif timeline is None or timeline.queue is None or not actor.sees(timeline.queue, timeline.tenant):
        raise absent(f"job {job_id}")
    ended = timeline.moments[-1].at if timeline.moments else 0
    values = {
        "job_id": job_id,
        "timeline": _seen(actor, timeline),
        "stretches": life(timeline.moments, ended, running=False),
        "ended": ENDED.get(timeline.moments[-1].change, "") if timeline.moments else "",
        "said": _SAID.get(did, ""),
    }
    return Sheet("gone.html", f"Job {job_id}", values, "jobs")


def _of_schedule(desk: Desk, job_id: int) -> Timeline | None:
    for schedule in desk.store.schedules():
        if schedule.last_job == job_id:
            draft = schedule.draft
            cut = f"It was enqueued by the schedule {schedule.name}. The ledger has no record of how it ended."
            return Timeline([], cut, draft.queue, draft.kind, draft.tenant)
    return None


async def _job(desk: Desk, actor: Actor, job_id: int) -> Job:
    found = (await desk.ground.call(desk.store.get, [job_id]))[0] if 0 < job_id <= _ID_MOST else None
    if found is None or not actor.sees(found.home or found.queue, found.tenant):
        raise absent(f"job {job_id}")
    return found


@router.post("/ui/jobs/{job_id}/cancel")
async def cancel(request: Request, job_id: int, actor: Operator) -> Response:
    desk = desk_of(request)
    found = await _job(desk, actor, job_id)
    await record_act(desk.ground, actor, "cancel", f"job {job_id}", queue=found.queue)
    (came,) = await desk.ground.call(desk.store.cancel, [job_id])
    desk.spoil()
    return back(link("jobs", job_id, did=came.value))


@router.post("/ui/jobs/{job_id}/redrive")
async def redrive(request: Request, job_id: int, actor: Operator) -> Response:
    desk = desk_of(request)
    found = await _job(desk, actor, job_id)
    await record_act(desk.ground, actor, "redrive", f"job {job_id}", queue=found.queue)
    moved = await desk.ground.call(desk.store.redrive, [job_id])
    desk.spoil()
    return back(link("jobs", job_id, did="redriven" if moved else "alive"))


@router.post("/ui/jobs/{job_id}/purge")
async def purge(request: Request, job_id: int, actor: Operator) -> Response:
    desk = desk_of(request)
    found = await _job(desk, actor, job_id)
    await record_act(desk.ground, actor, "purge", f"job {job_id}", queue=found.queue)
    gone = await desk.ground.call(desk.store.discard, [job_id])
    desk.spoil()
    return back(link("jobs", job_id, did="purged" if gone else "alive"))
