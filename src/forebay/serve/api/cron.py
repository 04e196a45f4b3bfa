"""Schedules at run time. A schedule belongs to the queue and the tenant of the job it enqueues.

Pausing loses no slot that was taken, and resuming makes up for none.
"""

from heapq import nsmallest
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from msgspec import Raw
from msgspec.structs import replace

from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Draft
from forebay.core.payload import encode_payload
from forebay.core.schedule import Schedule
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import ScheduleRun, Schedules, ScheduleView, moment
from forebay.serve.api.bodies import NAME_PATTERN, PutSchedule, json_of
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, sees_plainly
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.ground import Ground
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.door import name_queues, need
from forebay.serve.security.redact import redact
from forebay.store.protocol import Receipt
from forebay.work.cron import NEVER, CatchUp, Cron, Timetable, words_of
from forebay.work.ticker import run_now

router = APIRouter(tags=["schedules"])

ScheduleName = Annotated[str, Path(pattern=NAME_PATTERN)]
_put: Final = msgspec.json.Decoder(PutSchedule)
_SENT: Final = {"rule": "30 1 * * *", "kind": "report", "tz": "Europe/Berlin", "overlap": "skip"}


@router.get("/cron", **described(Schedules))
async def browse(
    request: Request, actor: Annotated[Actor, need(Role.VIEWER)], after: NameFilter = None, limit: Limit = 100
) -> Response:
    """All schedules of the queues that this key reaches, with their next fires in words."""
    ground: Ground = request.app.state.ground

    def found() -> Schedules:
        schedules, now = _known(ground)
        seen = (each for each in schedules if _sees(actor, each) and each.name > (after or ""))
        shown = nsmallest(limit + 1, seen, key=lambda each: each.name)
        more = shown[limit - 1].name if len(shown) > limit else None
        return Schedules([_view(actor, schedule, now) for schedule in shown[:limit]], more)

    return Answer(await ground.call(found))


@router.get("/cron/{name}", **described(ScheduleView, problems=(404,)))
async def show(request: Request, actor: Annotated[Actor, need(Role.VIEWER)], name: ScheduleName) -> Response:
    """One schedule."""
    ground: Ground = request.app.state.ground
    schedule, now = await _seen(ground, actor, name)
    return Answer(_view(actor, schedule, now))


@router.put("/cron/{name}", **described(ScheduleView, body=PutSchedule, sent=_SENT, problems=(404,)))
async def put(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Create a schedule, or edit it. With another rule or zone it fires from now on, never for what has passed."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _put, ground.settings.body_most)
    timetable = Timetable(
        Cron(asked.rule, asked.tz, asked.dst), CatchUp.parse(asked.catch_up), asked.overlap, asked.jitter
    )
    draft = Draft(
        asked.kind,
        queue=asked.queue,
        body=json_of(asked.payload),
        tenant=actor.stamped(asked.tenant),
        subject=asked.subject,
        priority=asked.priority,
        max_attempts=asked.max_attempts,
    )
    if not actor.reaches(draft.queue):
        raise absent(f"queue {draft.queue}")
    name_queues(request, (draft.queue,))
    schedules, now = await ground.call(_known, ground)
    if any(each.name == name and not _sees(actor, each) for each in schedules):
        raise absent(f"schedule {name}")
    first = timetable.cron.next_after(now) or NEVER
    schedule = Schedule(name, timetable.rule, first, draft, asked.tz, paused=asked.paused)
    await ground.call(ground.store.put_schedule, schedule)
    await record_act(ground, actor, "cron put", name, rule=schedule.rule, zone=asked.tz, kind=asked.kind)
    return Answer(_view(actor, *await _seen(ground, actor, name)))


@router.delete("/cron/{name}", **described(status=204, problems=(404,)))
async def drop(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Remove a schedule; jobs that it enqueued stay."""
    ground: Ground = request.app.state.ground
    await _seen(ground, actor, name)
    await ground.call(ground.store.drop_schedule, name)
    await record_act(ground, actor, "cron rm", name)
    return Response(status_code=204)


@router.post("/cron/{name}/pause", **described(ScheduleView, problems=(404,)))
async def pause(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Stop it from firing."""
    ground: Ground = request.app.state.ground
    schedule, now = await _seen(ground, actor, name)
    stopped = replace(schedule, paused=True)
    await ground.call(ground.store.put_schedule, stopped)
    await record_act(ground, actor, "cron pause", name)
    return Answer(_view(actor, stopped, now))


@router.post("/cron/{name}/resume", **described(ScheduleView, problems=(404,)))
async def resume(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Let it fire again, from now on."""
    ground: Ground = request.app.state.ground
    schedule, now = await _seen(ground, actor, name)
    following = Timetable.parse(schedule.rule, schedule.zone).cron.next_after(now) or NEVER
    moving = replace(schedule, paused=False, next_at=following)
    await ground.call(ground.store.put_schedule, moving)
    await record_act(ground, actor, "cron resume", name)
    return Answer(_view(actor, moving, now))


@router.post("/cron/{name}/run", **described(ScheduleRun, status=202, problems=(404,)))
async def run(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Enqueue its job now, also while it is paused; its next fires stay as they are."""
    ground: Ground = request.app.state.ground
    schedule, _ = await _seen(ground, actor, name)
    receipt: Receipt = await ground.call(run_now, ground.store, schedule)
    await record_act(ground, actor, "cron run", name, job=receipt.id, queue=schedule.draft.queue)
    return Answer(ScheduleRun(name, receipt.id, receipt.duplicate, receipt.copies), 202)


def _known(ground: Ground) -> tuple[list[Schedule], Instant]:
    return ground.store.schedules(), ground.store.now()


def _sees(actor: Actor, schedule: Schedule) -> bool:
    return actor.sees(schedule.draft.queue, schedule.draft.tenant)


async def _seen(ground: Ground, actor: Actor, name: str) -> tuple[Schedule, Instant]:
    schedules, now = await ground.call(_known, ground)
    for schedule in schedules:
        if schedule.name == name and _sees(actor, schedule):
            return schedule, now
    raise absent(f"schedule {name}")


def _view(actor: Actor, schedule: Schedule, now: Instant) -> ScheduleView:
    draft = schedule.draft
    payload = draft.body if sees_plainly(actor) else encode_payload(redact(draft.kind, msgspec.json.decode(draft.body)))
    return ScheduleView(
        schedule.name,
        schedule.rule,
        schedule.zone,
        words_of(schedule, now),
        to_datetime(schedule.next_at),
        moment(schedule.last_at),
        schedule.last_job,
        schedule.paused,
        draft.kind,
        draft.queue,
        draft.tenant,
        Raw(payload),
    )
