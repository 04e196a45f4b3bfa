"""Dead letters: look at them, give them their attempts back or forget them, one by its id or many by a filter.

A redrive is bounded per call and goes by ids: its answer says where to go on, and a job that dies again at once lies
behind that place, so it is not moved twice.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.fingerprint import cause_of, fingerprint_of
from forebay.core.instant import from_datetime
from forebay.core.job import Job, State
from forebay.core.limits import BATCH_MOST
from forebay.redrive import Course, Plan, picked
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import Causes, CauseView, JobPage, JobView, Purged, Redriven, Requeued
from forebay.serve.api.bodies import Purge, Redrive
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, picture, pictured, seen_job, sees, sees_plainly
from forebay.serve.api.finding import LOOKED_MOST, find
from forebay.serve.api.jobs import After, JobId, Limit, NameFilter, TextFilter
from forebay.serve.ground import Ground
from forebay.serve.problems import Problem, absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.door import need
from forebay.serve.security.redact import redact_errors
from forebay.store.protocol import Query as Wanted

router = APIRouter(tags=["dead letters"])

_redrive: Final = msgspec.json.Decoder(Redrive)
_purge: Final = msgspec.json.Decoder(Purge)
_TRIES: Final = 3
_CAUSES_MOST: Final = 200
_PACED_MOST: Final = 10.0
"""Seconds that one call may take to keep a rate."""

_SENT: Final = {"queue": "mail", "where": "SMTPAuth", "limit": 100, "rate": 20, "dry_run": True}
_PURGE_SENT: Final = {"queue": "mail", "where": "BadAddress", "limit": 100, "dry_run": True}
_PURGED: Final = {"purged": 2, "ids": [41, 57], "looked_at": 2, "dry_run": False, "next": None}
_REDRIVEN: Final = {"redriven": 2, "ids": [41, 57], "looked_at": 2, "dry_run": False, "next": None, "stopped": None}


def _fits(actor: Actor, where: str | None) -> Callable[[Job], bool]:
    """Whose last error holds a text, as this actor may read it: a search must not find what is not shown."""
    wanted = (where or "").lower()

    def fits(job: Job) -> bool:
        errors = job.errors if sees_plainly(actor) else redact_errors(job)
        return bool(errors) and wanted in f"{errors[-1].kind}: {errors[-1].message}".lower()

    return fits if wanted else lambda _: True


@router.get("/dlq", **described(JobPage))
async def browse(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER)],
    queue: NameFilter = None,
    kind: NameFilter = None,
    tenant: NameFilter = None,
    subject: TextFilter = None,
    where: Annotated[str | None, Query(max_length=256)] = None,
    after: After = 0,
    limit: Limit = 100,
) -> Response:
    """Dead letters that match, in the order of their ids; `where` is a text that the last error holds, in any case."""
    ground: Ground = request.app.state.ground
    query = Wanted(queue, State.DEAD, kind, tenant, subject)

    def found() -> JobPage:
        jobs, _, place = find(ground.store, actor, query, after, limit, _fits(actor, where))
        return JobPage([picture(actor, job) for job in jobs], place)

    return Answer(await ground.call(found))


@router.get("/dlq/causes", **described(Causes))
async def causes(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER)],
    queue: NameFilter = None,
    kind: NameFilter = None,
    tenant: NameFilter = None,
    after: After = 0,
) -> Response:
    """What dead letters died of: those with one fingerprint had the same error, but for its particulars."""
    ground: Ground = request.app.state.ground
    query = Wanted(queue, State.DEAD, kind, tenant)

    def counted() -> Causes:
        jobs, looked_at, place = find(ground.store, actor, query, after, LOOKED_MOST)
        groups: dict[str, list[Job]] = {}
        for job in jobs:
            groups.setdefault(fingerprint_of(job), []).append(job)
        views = [_cause(actor, name, group) for name, group in groups.items()]
        ranked = sorted(views, key=lambda view: -view.count)
        return Causes(ranked[:_CAUSES_MOST], max(0, len(ranked) - _CAUSES_MOST), looked_at, place)

    return Answer(await ground.call(counted))


def _cause(actor: Actor, name: str, jobs: list[Job]) -> CauseView:
    newest = jobs[-1]
    shown = newest if sees_plainly(actor) else replace(newest, errors=redact_errors(newest))
    return CauseView(name, *cause_of(shown), len(jobs), newest.id)


@router.get("/dlq/{job_id}", **described(JobView, problems=(404,)))
async def show(request: Request, actor: Annotated[Actor, need(Role.VIEWER)], job_id: JobId) -> Response:
    """One dead letter, with the traces of its errors."""
    ground: Ground = request.app.state.ground
    job = await seen_job(ground, actor, job_id)
    if job.state is not State.DEAD:
        raise absent(f"dead letter {job_id}")
    return Answer(await pictured(ground, actor, job))


@router.post("/dlq/{job_id}/requeue", **described(Requeued, problems=(404, 409)))
@router.post("/dlq/{job_id}/retry", **described(Requeued, problems=(404, 409)))
async def requeue(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], job_id: JobId) -> Response:
    """Give a dead letter all its lives back; its past errors stay."""
    ground: Ground = request.app.state.ground
    job = await seen_job(ground, actor, job_id)
    await ground.call(_moved, ground, ground.store.redrive, job)
    await record_act(ground, actor, "dlq redrive", "dead letters", moved=1, ids=[job_id], queue=job.queue)
    return Answer(Requeued(job_id, "requeued"))


@router.delete("/dlq/{job_id}", **described(status=204, problems=(404, 409)))
async def forget(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], job_id: JobId) -> Response:
    """Forget one dead letter for ever."""
    ground: Ground = request.app.state.ground
    job = await seen_job(ground, actor, job_id)
    await ground.call(_moved, ground, ground.store.discard, job)
    await record_act(ground, actor, "dlq purge", "dead letters", purged=1, ids=[job_id], queue=job.queue)
    return Response(status_code=204)


def _moved(ground: Ground, verb: Callable[[list[int]], list[int]], job: Job) -> None:
    """Do it to a dead job, or say what the job is now: another operator may have been quicker, and it may die again."""
    for _ in range(_TRIES):
        if verb([job.id]):
            return
        found = ground.store.get([job.id])[0]
        if found is None:
            raise Problem(409, "not-dead", "The job is not dead", f"job {job.id} is gone: it ended, or was purged")
        if found.state is not State.DEAD:
            raise Problem(409, "not-dead", "The job is not dead", f"job {job.id} is {found.state.value}")
    detail = f"job {job.id} was moved by others {_TRIES} times meanwhile"
    raise Problem(409, "not-dead", "The job is not dead", detail)


@router.post("/dlq/purge", **described(Purged, example=_PURGED, body=Purge, sent=_PURGE_SENT, problems=(404,)))
async def purge(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)]) -> Response:
    """Forget dead letters for ever: by their ids, or those that match, at most `limit` in a call."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _purge, ground.settings.body_most)
    died_before = None if asked.died_before is None else from_datetime(asked.died_before)
    names = ("queue", "kind", "tenant", "subject", "fingerprint")
    given = {name: value for name in names if (value := getattr(asked, name)) is not None}
    plan = Plan(**given, died_before=died_before, quarantined=True)
    if (asked.ids is not None) + (plan.filtered or asked.where is not None) + asked.all != 1:
        reason = "it takes ids, a filter or all: one of the three"
        raise Invalid("purge", reason, 'send {"ids": [41]}, {"queue": "mail"} or {"all": true}')
    if asked.ids is not None:
        dead = await ground.call(_dead_of, ground, actor, asked.ids)
        looked_at, place = len(asked.ids), None
    else:
        readable = _fits(actor, asked.where)
        found, looked_at, place = await ground.call(
            find,
            ground.store,
            actor,
            plan.query,
            asked.after,
            asked.limit,
            lambda job: plan.fits(job) and readable(job),
        )
        dead = [job.id for job in found]
    if asked.dry_run or not dead:
        return Answer(Purged(len(dead), dead, looked_at, asked.dry_run, place))
    gone = await ground.call(ground.store.discard, dead)
    facts = given | {"where": asked.where, "died_before": died_before, "all": asked.all}
    await record_act(ground, actor, "dlq purge", "dead letters", purged=len(gone), ids=gone[:100], asked=facts)
    return Answer(Purged(len(gone), gone, looked_at, False, place))


def _dead_of(ground: Ground, actor: Actor, ids: list[int]) -> list[int]:
    """Those of these that are dead. One that is not there for this actor makes the whole call one about that job."""
    jobs = ground.store.get(ids)
    for job_id, job in zip(ids, jobs, strict=True):
        if job is None or not sees(actor, job):
            raise absent(f"job {job_id}")
    return [job.id for job in jobs if job is not None and job.state is State.DEAD]


@router.post("/dlq/redrive", **described(Redriven, example=_REDRIVEN, body=Redrive, sent=_SENT))
async def redrive(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)]) -> Response:
    """Give those that match their lives back, at most `limit` in a call; go on with `after` until `next` is null."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _redrive, ground.settings.body_most)
    plan = _plan(asked)
    limit = asked.limit if asked.rate is None else max(1, min(asked.limit, int(asked.rate * _PACED_MOST)))
    most = BATCH_MOST if plan.sample else limit
    readable = _fits(actor, asked.where)

    def fits(job: Job) -> bool:
        return plan.fits(job) and readable(job)

    found, looked_at, place = await ground.call(find, ground.store, actor, plan.query, asked.after, most, fits)
    course = Course(plan, [job.id for job in picked(iter(found), replace(plan, limit=limit))])
    if asked.dry_run or not course.chosen:
        return Answer(Redriven(len(course.chosen), course.chosen, looked_at, asked.dry_run, place))
    await _carry(ground, course)
    if course.stopped:
        place = course.chosen[course.tried - 1] if course.tried else asked.after
    # The names of what a patch changes; its values may be nobody else's business.
    given = {"queue": asked.queue, "kind": asked.kind, "where": asked.where, "rate": asked.rate}
    ids, names = course.moved, sorted(asked.patch or ())
    await record_act(
        ground, actor, "dlq redrive", "dead letters", moved=len(ids), ids=ids[:100], asked=given, patched=names
    )
    return Answer(Redriven(len(ids), ids, looked_at, False, place, course.stopped))


def _plan(asked: Redrive) -> Plan:
    """All but `where`, which is looked for in what the actor may read, and `limit`, which is this call's."""
    names = ("queue", "kind", "tenant", "subject", "fingerprint", "quarantined", "sample", "seed", "patch", "rate")
    said = {name: getattr(asked, name) for name in (*names, "stop_at", "stop_after")}
    return Plan(**said)


async def _carry(ground: Ground, course: Course) -> None:
    clock = asyncio.get_running_loop().time
    while not course.over:
        await asyncio.sleep(course.due_in(clock()))
        await ground.call(course.step, ground.store)
