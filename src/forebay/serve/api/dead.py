"""Dead letters: list, redrive and purge them, one by its id or many by a filter.

A redrive is bounded per call and proceeds by id: its response says where to continue, and a job that dies again keeps
its id, which is behind that point, so that it is not redriven twice.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Query
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.fingerprint import cause_of, fingerprint_of
from forebay.core.instant import from_datetime
from forebay.core.job import Job, State
from forebay.core.limits import MAX_BATCH
from forebay.redrive import RedrivePlan, RedriveRun, picked
from forebay.serve.actor import Actor
from forebay.serve.api.jobs import seen_job, view_job
from forebay.serve.api.requests import Purge, Redrive
from forebay.serve.api.responses import Causes, CauseView, JobPage, JobView, Purged, Redriven, Requeued
from forebay.serve.api.routing import (
    After,
    ContextDep,
    JobId,
    JsonBody,
    Limit,
    NameFilter,
    OperatorActor,
    TextFilter,
    ViewerActor,
    api_router,
)
from forebay.serve.api.schema import problems
from forebay.serve.context import ServerContext
from forebay.serve.problems import Problem, not_found
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.redact import redact_errors
from forebay.serve.security.visibility import MAX_SCANNED, find, sees_job, sees_secrets
from forebay.store.protocol import Query as Wanted
from forebay.store.protocol import Store

router = api_router("dead letters")

_ANY: Final = RedrivePlan(quarantined=True)
_TRIES: Final = 3
_MAX_CAUSES: Final = 200
_MAX_PACED: Final = 10.0
"""Seconds that one call may take to keep its rate."""


def _fits(actor: Actor, where: str | None, plan: RedrivePlan = _ANY) -> Callable[[Job], bool]:
    """Whether a job fits the plan and its last error contains a text.

    The error is read as this actor may read it: a search must not reveal secrets.
    """
    wanted = (where or "").lower()

    def fits(job: Job) -> bool:
        if not plan.fits(job) or not wanted:
            return plan.fits(job)
        errors = job.errors if sees_secrets(actor) else redact_errors(job)
        return bool(errors) and wanted in f"{errors[-1].kind}: {errors[-1].message}".lower()

    return fits


@router.get("/dlq")
def browse(
    context: ContextDep,
    actor: ViewerActor,
    queue: NameFilter = None,
    kind: NameFilter = None,
    tenant: NameFilter = None,
    subject: TextFilter = None,
    where: Annotated[str | None, Query(max_length=256)] = None,
    after: After = 0,
    limit: Limit = 100,
) -> JobPage:
    """Dead letters that match, by id. `where` is a text in the last error, ignoring case."""
    query = Wanted(queue, State.DEAD, kind, tenant, subject)
    jobs, _, next_id = find(context.store, actor, query, after, limit, _fits(actor, where))
    return JobPage([view_job(actor, job) for job in jobs], next_id)


@router.get("/dlq/causes")
def causes(
    context: ContextDep,
    actor: ViewerActor,
    queue: NameFilter = None,
    kind: NameFilter = None,
    tenant: NameFilter = None,
    after: After = 0,
) -> Causes:
    """The causes of dead letters: those with one fingerprint have the same error, apart from its variable parts."""
    query = Wanted(queue, State.DEAD, kind, tenant)
    jobs, scanned, next_id = find(context.store, actor, query, after, MAX_SCANNED)
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(fingerprint_of(job), []).append(job)
    views = [_cause(actor, name, group) for name, group in groups.items()]
    ranked = sorted(views, key=lambda view: -view.count)
    return Causes(ranked[:_MAX_CAUSES], max(0, len(ranked) - _MAX_CAUSES), scanned, next_id)


def _cause(actor: Actor, name: str, jobs: list[Job]) -> CauseView:
    newest = jobs[-1]
    shown = newest if sees_secrets(actor) else replace(newest, errors=redact_errors(newest))
    return CauseView(name, *cause_of(shown), len(jobs), newest.id)


@router.get("/dlq/{job_id}", responses=problems(404))
def show(context: ContextDep, actor: ViewerActor, job_id: JobId) -> JobView:
    """One dead letter, with the traces of its errors."""
    job = seen_job(context.store, actor, job_id)
    if job.state is not State.DEAD:
        raise not_found(f"dead letter {job_id}")
    return view_job(actor, job)


@router.post("/dlq/{job_id}/requeue", responses=problems(404, 409))
@router.post("/dlq/{job_id}/retry", responses=problems(404, 409))
def requeue(context: ContextDep, actor: OperatorActor, job_id: JobId) -> Requeued:
    """Redrive a dead letter: it gets all its attempts back and keeps its past errors."""
    store = context.store
    job = seen_job(store, actor, job_id)
    _move(store, store.redrive, job)
    record_action(store, actor.name, "dlq redrive", "dead letters", moved=1, ids=[job_id], queue=job.queue)
    return Requeued(job_id, "requeued")


@router.delete("/dlq/{job_id}", status_code=204, responses=problems(404, 409))
def purge_dead_letter(context: ContextDep, actor: OperatorActor, job_id: JobId) -> None:
    """Purge one dead letter."""
    store = context.store
    job = seen_job(store, actor, job_id)
    _move(store, store.purge_dead, job)
    record_action(store, actor.name, "dlq purge", "dead letters", purged=1, ids=[job_id], queue=job.queue)


def _move(store: Store, verb: Callable[[list[int]], list[int]], job: Job) -> None:
    """Apply the verb to a dead job, or report the job's state: another operator may have acted first."""
    for _ in range(_TRIES):
        if verb([job.id]):
            return
        found = store.get([job.id])[0]
        if found is None:
            raise Problem(409, "not-dead", "The job is not dead", f"job {job.id} was done and removed, or purged")
        if found.state is not State.DEAD:
            raise Problem(409, "not-dead", "The job is not dead", f"job {job.id} is {found.state.value}")
    detail = f"job {job.id} changed {_TRIES} times meanwhile: try again"
    raise Problem(409, "not-dead", "The job is not dead", detail)


@router.post("/dlq/purge", responses=problems(404))
def purge(context: ContextDep, actor: OperatorActor, body: JsonBody[Purge]) -> Purged:
    """Purge dead letters by id or by a filter, at most `limit` per call."""
    store, died_before = context.store, None if body.died_before is None else from_datetime(body.died_before)
    names = ("queue", "kind", "tenant", "subject", "fingerprint")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    plan = RedrivePlan(**given, died_before=died_before, quarantined=True)
    if (body.ids is not None) + (plan.filtered or body.where is not None) + body.all != 1:
        reason = "it needs exactly one of ids, a filter, all"
        raise Invalid("purge", reason, 'send {"ids": [41]}, {"queue": "mail"} or {"all": true}')
    if body.ids is not None:
        dead = _dead_of(store, actor, body.ids)
        scanned, next_id = len(body.ids), None
    else:
        fits = _fits(actor, body.where, plan)
        found, scanned, next_id = find(store, actor, plan.query, body.after, body.limit, fits)
        dead = [job.id for job in found]
    if body.dry_run or not dead:
        return Purged(len(dead), dead, scanned, body.dry_run, next_id)
    gone = store.purge_dead(dead)
    facts = given | {"where": body.where, "died_before": died_before, "all": body.all}
    record_action(store, actor.name, "dlq purge", "dead letters", purged=len(gone), ids=gone[:100], filter=facts)
    return Purged(len(gone), gone, scanned, False, next_id)


def _dead_of(store: Store, actor: Actor, ids: list[int]) -> list[int]:
    """The ids of the dead jobs among these; a 404 if this actor cannot see one of them."""
    jobs = store.get(ids)
    for job_id, job in zip(ids, jobs, strict=True):
        if job is None or not sees_job(actor, job):
            raise not_found(f"job {job_id}")
    return [job.id for job in jobs if job is not None and job.state is State.DEAD]


@router.post("/dlq/redrive")
async def redrive(context: ContextDep, actor: OperatorActor, body: JsonBody[Redrive]) -> Redriven:
    """Redrive the dead letters that match, at most `limit` per call; continue with `after` until `next` is null."""
    plan = _plan(body)
    limit = body.limit if body.rate is None else max(1, min(body.limit, int(body.rate * _MAX_PACED)))
    max_found, fits = MAX_BATCH if plan.sample else limit, _fits(actor, body.where, plan)
    found, scanned, next_id = await context.call(find, context.store, actor, plan.query, body.after, max_found, fits)
    run = RedriveRun(plan, [job.id for job in picked(iter(found), replace(plan, limit=limit))])
    if body.dry_run or not run.chosen:
        return Redriven(len(run.chosen), run.chosen, scanned, body.dry_run, next_id)
    await _run_to_end(context, run)
    if run.stopped:
        next_id = run.chosen[run.tried - 1] if run.tried else body.after
    # Of a patch only the names are recorded: its values may be secrets.
    given = {"queue": body.queue, "kind": body.kind, "where": body.where, "rate": body.rate}
    ids, names = run.moved, sorted(body.patch or ())
    facts: dict[str, Any] = {"moved": len(ids), "ids": ids[:100], "filter": given, "patched": names}
    await context.call(record_action, context.store, actor.name, "dlq redrive", "dead letters", **facts)
    return Redriven(len(ids), ids, scanned, False, next_id, run.stopped)


def _plan(body: Redrive) -> RedrivePlan:
    """The plan, without `where`, which is matched against what the actor may read, and without `limit`."""
    names = ("queue", "kind", "tenant", "subject", "fingerprint", "quarantined", "sample", "seed", "patch", "rate")
    return RedrivePlan(**{name: getattr(body, name) for name in (*names, "stop_at", "stop_after")})


async def _run_to_end(context: ServerContext, run: RedriveRun) -> None:
    clock = asyncio.get_running_loop().time
    while not run.over:
        await asyncio.sleep(run.due_in(clock()))
        await context.call(run.step, context.store)
