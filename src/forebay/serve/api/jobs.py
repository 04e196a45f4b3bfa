"""Jobs: enqueue, show, wait for the end, cancel, explain.

A 202 means that the job is durable, where the store is. Concurrent callers share one commit (`serve.enqueuer`).
"""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import Query, Request
from msgspec import Raw
from starlette.datastructures import Headers

from forebay.core.content import MAX_CONDITIONS, Conditions, checked_conditions, parse_condition
from forebay.core.errors import Invalid
from forebay.core.instant import to_datetime
from forebay.core.job import Draft, Job, State
from forebay.core.limits import MAX_BATCH, TEXT_LENGTH
from forebay.core.spec import QueueSpec
from forebay.explain import position_of, reasons, with_cell
from forebay.serve.actor import Actor, Role
from forebay.serve.api.requests import CancelMany, NewJob
from forebay.serve.api.responses import (
    Accepted,
    Cancelled,
    CancelledMany,
    Explained,
    FailureView,
    JobPage,
    JobView,
    ProgressView,
    StateName,
    moment,
)
from forebay.serve.api.routing import (
    After,
    ContextDep,
    JobId,
    JsonBody,
    Limit,
    NameFilter,
    OperatorActor,
    ProducerActor,
    TextFilter,
    ViewerActor,
    api_router,
    wait_for_disconnect,
)
from forebay.serve.api.schema import problems
from forebay.serve.context import ServerContext
from forebay.serve.problems import Problem, not_found, pattern
from forebay.serve.security.auth import charge_jobs, charge_queue_names, require_role
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.redact import redact_job
from forebay.serve.security.visibility import carries, find, hide_owner, sees_job, sees_secrets
from forebay.serve.settings import MAX_WAIT
from forebay.store.protocol import Query as Wanted
from forebay.store.protocol import Receipt, Store
from forebay.tracing import carried

router = api_router("jobs")

NULL: Final = Raw(b"null")
INLINE_BYTES: Final = 4_096
CONDITION_PATTERN: Final = pattern("^[^=]+=", "write a condition such as customer.id=7")

Content = Annotated[
    list[Annotated[str, Query(pattern=CONDITION_PATTERN, max_length=2 * TEXT_LENGTH)]],
    Query(max_length=MAX_CONDITIONS),
]


def draft_of(
    context: ServerContext, actor: Actor, job: NewJob, headers: Headers, header_key: str | None = None
) -> Draft:
    """The checked draft of a request, with this actor's tenant and the request's trace context."""
    key = job.key if header_key is None else header_key
    if job.key is not None and key != job.key:
        raise Invalid("key", "it differs from the header Idempotency-Key", "send one of the two")
    tenant = actor.stamped(job.tenant)
    if actor.tenant is not None and key is not None:
        # Tenants that share a queue do not share its keys.
        key = f"{actor.tenant}/{key}"
    draft = job.draft(context.registry.get(job.kind), key, tenant, carried(job.meta, headers))
    if not actor.reaches(draft.queue):
        raise not_found(f"queue {draft.queue}")
    return draft


@router.post("/jobs", status_code=202, responses=problems(404, 409))
async def enqueue(context: ContextDep, actor: ProducerActor, job: JsonBody[NewJob], request: Request) -> Accepted:
    """Enqueue a job. A key that was used within its window is a 409 with the first job and its result."""
    draft = draft_of(context, actor, job, request.headers, request.headers.get("idempotency-key"))
    charge_queue_names(request, (draft.queue,))
    charge_jobs(request, 1)
    receipt = await context.enqueuer.put(draft)
    if receipt.duplicate:
        raise await _duplicate(context, actor, receipt)
    return Accepted(receipt.id, "accepted", False, receipt.merged, receipt.durable, receipt.copies)


async def _duplicate(context: ServerContext, actor: Actor, receipt: Receipt) -> Problem:
    """The 409, with the first job if it still exists."""
    job = (await context.call(context.store.get, [receipt.id]))[0]
    facts: dict[str, Any] = {"job_id": receipt.id, "state": "gone", "duplicate": True, "job": None, "result": None}
    if job is not None and sees_job(actor, job):
        shown = view_job(actor, job)
        facts |= {"state": job.state.value, "job": shown, "result": shown.result}
    return Problem(409, "duplicate", "The key was used before", f"the first job is {receipt.id}", extra=facts)


@router.get("/jobs/{job_id}", responses=problems(404, 410))
async def show(
    context: ContextDep,
    actor: Annotated[Actor, require_role(Role.VIEWER, Role.PRODUCER)],
    request: Request,
    job_id: JobId,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0,
) -> JobView:
    """The job; with `wait`, once it has ended, or as it is after `wait` seconds."""
    job = await context.call(seen_job, context.store, actor, job_id)
    ended = await context.job_polls.ended(job, wait, partial(wait_for_disconnect, request))
    if ended is None:
        raise Problem(
            410, "gone", "The job has ended and was removed", "set the queue's retention to keep-for to read results"
        )
    # The redaction of a large job takes a while.
    fast = sees_secrets(actor) or len(ended.body) + len(ended.result_body or b"") < INLINE_BYTES
    return view_job(actor, ended) if fast else await context.call(view_job, actor, ended)


@router.get("/jobs")
def browse(
    context: ContextDep,
    actor: ViewerActor,
    queue: NameFilter = None,
    state: Annotated[StateName | None, Query()] = None,
    kind: NameFilter = None,
    tenant: NameFilter = None,
    subject: TextFilter = None,
    meta: Content = [],  # noqa: B006
    payload: Content = [],  # noqa: B006
    after: After = 0,
    limit: Limit = 100,
) -> JobPage:
    """Jobs that match, by id. `meta` and `payload` are conditions such as `customer.id=7`; secrets never match.

    A search may end early, with few jobs or none and a `next`: it reads a bounded number of jobs.
    """
    content = _conditions("meta", meta), _conditions("payload", payload)
    query = Wanted(queue, None if state is None else State(state), kind, tenant, subject, None, *content)
    fits = partial(carries, actor, *content) if meta or payload else None
    jobs, _, next_id = find(context.store, actor, query, after, limit, fits)
    return JobPage([view_job(actor, job) for job in jobs], next_id)


def _conditions(field: str, given: list[str]) -> Conditions:
    return checked_conditions(field, tuple(parse_condition(field, each) for each in given))


@router.post("/jobs/{job_id}/cancel", responses=problems(404))
def cancel(
    context: ContextDep, actor: Annotated[Actor, require_role(Role.PRODUCER, Role.OPERATOR)], job_id: JobId
) -> Cancelled:
    """Cancel a job: it will not run, or, if it runs, its worker is notified."""
    job = seen_job(context.store, actor, job_id)
    (answer,) = context.store.cancel([job_id])
    record_action(context.store, actor.name, "cancel", "jobs", ids=[job_id], queue=job.queue, answer=answer.value)
    return Cancelled(job_id, answer.value)


@router.post("/jobs/cancel")
def cancel_many(context: ContextDep, actor: OperatorActor, body: JsonBody[CancelMany]) -> CancelledMany:
    """Cancel the jobs that match and have not ended, at most `limit`; continue with `after` until `next` is null."""
    names = ("queue", "state", "kind", "tenant", "subject")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if bool(given) == body.all:
        raise Invalid("cancel", "it needs either a filter or all", 'send {"queue": "mail"} or {"all": true}')
    store = context.store
    query = Wanted(body.queue, body.state and State(body.state), body.kind, body.tenant, body.subject)
    found, scanned, next_id = find(store, actor, query, body.after, body.limit, lambda job: not job.state.terminal)
    ids = [job.id for job in found]
    if body.dry_run or not ids:
        return CancelledMany(0, 0, 0, ids, scanned, body.dry_run, next_id)
    answers = [answer.value for answer in store.cancel(ids)]
    counts = {word: answers.count(word) for word in ("cancelled", "requested", "gone")}
    facts: dict[str, Any] = {"ids": ids[:100], "filter": given, "answers": counts}
    record_action(store, actor.name, "cancel many", f"{len(ids)} jobs", **facts)
    return CancelledMany(**counts, ids=ids, scanned=scanned, dry_run=False, next=next_id)


@router.get("/jobs/{job_id}/explain", responses=problems(404))
def why(
    context: ContextDep, actor: Annotated[Actor, require_role(Role.VIEWER, Role.PRODUCER)], job_id: JobId
) -> Explained:
    """Why the job is in its state, in sentences."""
    store = context.store
    job = hide_owner(actor, seen_job(store, actor, job_id))
    shown = job if sees_secrets(actor) else redact_job(job)
    spec = next((spec for spec in store.specs() if spec.name == job.queue), QueueSpec(name=job.queue))
    backlog = store.backlog([job.queue])[0]
    position, workers = position_of(store, job), store.workers("", MAX_BATCH)
    sentences = reasons(shown, backlog, store.now(), position, workers, others=actor.tenant is None)
    if actor.tenant is None:
        sentences = with_cell(store, job, sentences)
    return Explained(job_id, [*sentences, spec.vector()])


def seen_job(store: Store, actor: Actor, job_id: int) -> Job:
    """The job, or a 404."""
    job = store.get([job_id])[0]
    if job is None or not sees_job(actor, job):
        raise not_found(f"job {job_id}")
    return job


def view_job(actor: Actor, job: Job) -> JobView:
    """The job as this actor may see it: unchanged for producers and workers, redacted for others."""
    seen = hide_owner(actor, job)
    shown = seen if sees_secrets(actor) else redact_job(seen)
    state: Any = shown.state.value
    progress = shown.progress
    return JobView(
        shown.id,
        shown.queue,
        shown.kind,
        state,
        Raw(shown.body),
        shown.priority,
        shown.attempt,
        shown.max_attempts,
        shown.delivery,
        shown.key,
        shown.tenant,
        shown.subject,
        to_datetime(shown.enqueued_at),
        to_datetime(shown.due_at),
        moment(shown.deadline),
        moment(shown.expires_at),
        shown.owner,
        moment(shown.claimed_at),
        moment(shown.lease_until),
        moment(shown.finished_at),
        shown.cancel_requested,
        shown.meta,
        [FailureView(each.attempt, moment(each.at), each.kind, each.message, each.trace) for each in shown.errors],
        NULL if shown.result_body is None else Raw(shown.result_body),
        shown.home,
        None if progress is None else ProgressView(progress.portion, progress.note, to_datetime(progress.at)),
    )
