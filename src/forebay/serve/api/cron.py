"""Schedules. A schedule belongs to the queue and the tenant of the job that it enqueues.

A resumed schedule fires from now on; what it missed while paused is not made up for.
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
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.api.messages import Answer, body_of, sees_secrets
from forebay.serve.api.openapi import described
from forebay.serve.api.requests import NAME_PATTERN, PutSchedule, json_of
from forebay.serve.api.responses import ScheduleRun, Schedules, ScheduleView, moment
from forebay.serve.context import ServerContext
from forebay.serve.problems import not_found
from forebay.serve.security.auth import charge_queue_names, require_role
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.redact import redact
from forebay.store.protocol import Receipt
from forebay.work.cron import NEVER, CatchUp, Cron, Timetable, describe_schedule
from forebay.work.ticker import run_now

router = APIRouter(tags=["schedules"])

ScheduleName = Annotated[str, Path(pattern=NAME_PATTERN)]
_put: Final = msgspec.json.Decoder(PutSchedule)
_SENT: Final = {"rule": "30 1 * * *", "kind": "report", "tz": "Europe/Berlin", "overlap": "skip"}


@router.get("/cron", **described(Schedules))
async def browse(
    request: Request, actor: Annotated[Actor, require_role(Role.VIEWER)], after: NameFilter = None, limit: Limit = 100
) -> Response:
    """The schedules of the queues that this key can reach, each with its rule in words."""
    context: ServerContext = request.app.state.context

    def found() -> Schedules:
        schedules, now = _known(context)
        seen = (each for each in schedules if _sees(actor, each) and each.name > (after or ""))
        shown = nsmallest(limit + 1, seen, key=lambda each: each.name)
        more = shown[limit - 1].name if len(shown) > limit else None
        return Schedules([_view(actor, schedule, now) for schedule in shown[:limit]], more)

    return Answer(await context.call(found))


@router.get("/cron/{name}", **described(ScheduleView, problems=(404,)))
async def show(request: Request, actor: Annotated[Actor, require_role(Role.VIEWER)], name: ScheduleName) -> Response:
    """One schedule."""
    context: ServerContext = request.app.state.context
    schedule, now = await _seen(context, actor, name)
    return Answer(_view(actor, schedule, now))


@router.put("/cron/{name}", **described(ScheduleView, body=PutSchedule, sent=_SENT, problems=(404,)))
async def put(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Create or edit a schedule. With another rule or zone it fires from now on, not for past times."""
    context: ServerContext = request.app.state.context
    asked = await body_of(request, _put, context.settings.max_body)
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
        raise not_found(f"queue {draft.queue}")
    charge_queue_names(request, (draft.queue,))
    schedules, now = await context.call(_known, context)
    if any(each.name == name and not _sees(actor, each) for each in schedules):
        raise not_found(f"schedule {name}")
    first = timetable.cron.next_after(now) or NEVER
    schedule = Schedule(name, timetable.rule, first, draft, asked.tz, paused=asked.paused)
    await context.call(context.store.put_schedule, schedule)
    await record_action(context, actor, "cron put", name, rule=schedule.rule, zone=asked.tz, kind=asked.kind)
    return Answer(_view(actor, *await _seen(context, actor, name)))


@router.delete("/cron/{name}", **described(status=204, problems=(404,)))
async def drop(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Remove a schedule; the jobs that it enqueued stay."""
    context: ServerContext = request.app.state.context
    await _seen(context, actor, name)
    await context.call(context.store.drop_schedule, name)
    await record_action(context, actor, "cron rm", name)
    return Response(status_code=204)


@router.post("/cron/{name}/pause", **described(ScheduleView, problems=(404,)))
async def pause(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Pause a schedule."""
    context: ServerContext = request.app.state.context
    schedule, now = await _seen(context, actor, name)
    stopped = replace(schedule, paused=True)
    await context.call(context.store.put_schedule, stopped)
    await record_action(context, actor, "cron pause", name)
    return Answer(_view(actor, stopped, now))


@router.post("/cron/{name}/resume", **described(ScheduleView, problems=(404,)))
async def resume(
    request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: ScheduleName
) -> Response:
    """Resume a schedule; it fires from now on."""
    context: ServerContext = request.app.state.context
    schedule, now = await _seen(context, actor, name)
    following = Timetable.parse(schedule.rule, schedule.zone).cron.next_after(now) or NEVER
    moving = replace(schedule, paused=False, next_at=following)
    await context.call(context.store.put_schedule, moving)
    await record_action(context, actor, "cron resume", name)
    return Answer(_view(actor, moving, now))


@router.post("/cron/{name}/run", **described(ScheduleRun, status=202, problems=(404,)))
async def run(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: ScheduleName) -> Response:
    """Enqueue its job now, also while it is paused; its next fire times do not change."""
    context: ServerContext = request.app.state.context
    schedule, _ = await _seen(context, actor, name)
    receipt: Receipt = await context.call(run_now, context.store, schedule)
    await record_action(context, actor, "cron run", name, job=receipt.id, queue=schedule.draft.queue)
    return Answer(ScheduleRun(name, receipt.id, receipt.duplicate, receipt.copies), 202)


def _known(context: ServerContext) -> tuple[list[Schedule], Instant]:
    return context.store.schedules(), context.store.now()


def _sees(actor: Actor, schedule: Schedule) -> bool:
    return actor.sees(schedule.draft.queue, schedule.draft.tenant)


async def _seen(context: ServerContext, actor: Actor, name: str) -> tuple[Schedule, Instant]:
    schedules, now = await context.call(_known, context)
    for schedule in schedules:
        if schedule.name == name and _sees(actor, schedule):
            return schedule, now
    raise not_found(f"schedule {name}")


def _view(actor: Actor, schedule: Schedule, now: Instant) -> ScheduleView:
    draft = schedule.draft
    payload = draft.body if sees_secrets(actor) else encode_payload(redact(draft.kind, msgspec.json.decode(draft.body)))
    return ScheduleView(
        schedule.name,
        schedule.rule,
        schedule.zone,
        describe_schedule(schedule, now),
        to_datetime(schedule.next_at),
        moment(schedule.last_at),
        schedule.last_job,
        schedule.paused,
        draft.kind,
        draft.queue,
        draft.tenant,
        Raw(payload),
    )
