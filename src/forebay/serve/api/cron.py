"""Schedules. A schedule belongs to the queue and the tenant of the job that it enqueues.

A resumed schedule fires from now on; what it missed while paused is not made up for.
"""

from heapq import nsmallest

import msgspec
from fastapi import Request
from msgspec import Raw
from msgspec.structs import replace

from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Draft
from forebay.core.payload import encode_payload
from forebay.core.schedule import Schedule
from forebay.serve.actor import Actor
from forebay.serve.api.requests import PutSchedule, json_of
from forebay.serve.api.responses import ScheduleRun, Schedules, ScheduleView, moment
from forebay.serve.api.routing import (
    ContextDep,
    JsonBody,
    Limit,
    NameFilter,
    OperatorActor,
    PathName,
    ViewerActor,
    api_router,
)
from forebay.serve.api.schema import problems
from forebay.serve.problems import not_found
from forebay.serve.security.auth import charge_queue_names
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.redact import redact
from forebay.serve.security.visibility import sees_secrets
from forebay.store.protocol import Store
from forebay.work.cron import NEVER, CatchUp, Cron, Timetable, describe_schedule
from forebay.work.ticker import run_now

router = api_router("schedules")


@router.get("/cron")
def browse(context: ContextDep, actor: ViewerActor, after: NameFilter = None, limit: Limit = 100) -> Schedules:
    """The schedules of the queues that this key can reach, each with its rule in words."""
    schedules, now = context.store.schedules(), context.store.now()
    seen = (each for each in schedules if _sees(actor, each) and each.name > (after or ""))
    shown = nsmallest(limit + 1, seen, key=lambda each: each.name)
    more = shown[limit - 1].name if len(shown) > limit else None
    return Schedules([_view(actor, schedule, now) for schedule in shown[:limit]], more)


@router.get("/cron/{name}", responses=problems(404))
def show(context: ContextDep, actor: ViewerActor, name: PathName) -> ScheduleView:
    """One schedule."""
    return _view(actor, find_schedule(context.store, actor, name), context.store.now())


@router.put("/cron/{name}", responses=problems(404))
def put(
    context: ContextDep, actor: OperatorActor, body: JsonBody[PutSchedule], request: Request, name: PathName
) -> ScheduleView:
    """Create or edit a schedule. With another rule or zone it fires from now on, not for past times."""
    timetable = Timetable(Cron(body.rule, body.tz, body.dst), CatchUp.parse(body.catch_up), body.overlap, body.jitter)
    draft = Draft(
        body.kind,
        queue=body.queue,
        body=json_of(body.payload),
        tenant=actor.stamped(body.tenant),
        subject=body.subject,
        priority=body.priority,
        max_attempts=body.max_attempts,
    )
    if not actor.reaches(draft.queue):
        raise not_found(f"queue {draft.queue}")
    charge_queue_names(request, (draft.queue,))
    store = context.store
    if any(each.name == name and not _sees(actor, each) for each in store.schedules()):
        raise not_found(f"schedule {name}")
    first = timetable.cron.next_after(store.now()) or NEVER
    schedule = Schedule(name, timetable.rule, first, draft, body.tz, paused=body.paused)
    store.put_schedule(schedule)
    record_action(store, actor.name, "cron put", name, rule=schedule.rule, zone=body.tz, kind=body.kind)
    return show(context, actor, name)


@router.delete("/cron/{name}", status_code=204, responses=problems(404))
def drop(context: ContextDep, actor: OperatorActor, name: PathName) -> None:
    """Remove a schedule; the jobs that it enqueued stay."""
    find_schedule(context.store, actor, name)
    context.store.drop_schedule(name)
    record_action(context.store, actor.name, "cron rm", name)


@router.post("/cron/{name}/pause", responses=problems(404))
def pause(context: ContextDep, actor: OperatorActor, name: PathName) -> ScheduleView:
    """Pause a schedule."""
    paused = replace(find_schedule(context.store, actor, name), paused=True)
    context.store.put_schedule(paused)
    record_action(context.store, actor.name, "cron pause", name)
    return _view(actor, paused, context.store.now())


@router.post("/cron/{name}/resume", responses=problems(404))
def resume(context: ContextDep, actor: OperatorActor, name: PathName) -> ScheduleView:
    """Resume a schedule; it fires from now on."""
    schedule, now = find_schedule(context.store, actor, name), context.store.now()
    following = Timetable.parse(schedule.rule, schedule.zone).cron.next_after(now) or NEVER
    resumed = replace(schedule, paused=False, next_at=following)
    context.store.put_schedule(resumed)
    record_action(context.store, actor.name, "cron resume", name)
    return _view(actor, resumed, now)


@router.post("/cron/{name}/run", status_code=202, responses=problems(404))
def run(context: ContextDep, actor: OperatorActor, name: PathName) -> ScheduleRun:
    """Enqueue its job now, also while it is paused; its next fire times do not change."""
    schedule = find_schedule(context.store, actor, name)
    receipt = run_now(context.store, schedule)
    record_action(context.store, actor.name, "cron run", name, job=receipt.id, queue=schedule.draft.queue)
    return ScheduleRun(name, receipt.id, receipt.duplicate, receipt.copies)


def find_schedule(store: Store, actor: Actor, name: str) -> Schedule:
    """The schedule, or a 404."""
    for schedule in store.schedules():
        if schedule.name == name and _sees(actor, schedule):
            return schedule
    raise not_found(f"schedule {name}")


def _sees(actor: Actor, schedule: Schedule) -> bool:
    return actor.sees(schedule.draft.queue, schedule.draft.tenant)


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
