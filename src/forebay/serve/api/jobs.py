"""Jobs: hand one in, look at it, wait for its end, cancel it, ask why it is where it is.

A 202 means that the job is durable, where the store is. Many callers share one commit (`serve.enqueuer`).
"""

from functools import partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from starlette.datastructures import Headers

from forebay.core.errors import Invalid
from forebay.core.job import Draft, Job, State
from forebay.core.limits import BATCH_MOST
from forebay.core.spec import QueueSpec
from forebay.explain import place_of, reasons
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import Accepted, Cancelled, CancelledMany, Explained, JobPage, JobView, StateName
from forebay.serve.api.bodies import NAME_PATTERN, CancelMany, NewJob
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, gone, picture, pictured, seen_job, sees, sees_plainly
from forebay.serve.api.finding import find
from forebay.serve.ground import Ground
from forebay.serve.problems import Problem, absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.door import name_queues, need, spend
from forebay.serve.security.reach import as_seen
from forebay.serve.security.redact import redact_job
from forebay.serve.settings import PAGE_MOST, WAIT_MOST
from forebay.store.protocol import Query as Wanted
from forebay.store.protocol import Receipt, Store
from forebay.tracing import carried

router = APIRouter(tags=["jobs"])

JobId = Annotated[int, Path(ge=0, le=2**63 - 1)]
NameFilter = Annotated[str | None, Query(pattern=NAME_PATTERN)]
TextFilter = Annotated[str | None, Query(min_length=1, max_length=256)]
After = Annotated[int, Query(ge=0, le=2**63 - 1)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MOST)]

_new_job: Final = msgspec.json.Decoder(NewJob)
_cancel_many: Final = msgspec.json.Decoder(CancelMany)
_CANCEL_SENT: Final = {"queue": "mail", "kind": "newsletter", "limit": 100, "dry_run": True}
_CANCELLED_MANY: Final = {
    "cancelled": 1,
    "requested": 1,
    "gone": 0,
    "ids": [41, 57],
    "looked_at": 2,
    "dry_run": False,
    "next": None,
}
_SENT: Final = {"kind": "send_email", "payload": {"to": "ada@example.com"}, "queue": "mail", "key": "email-42"}
_ACCEPTED: Final = {"job_id": 41, "status": "accepted", "duplicate": False, "merged": False, "durable": True}


def draft_of(ground: Ground, actor: Actor, job: NewJob, headers: Headers, header_key: str | None = None) -> Draft:
    """The draft of what was sent, in the name of this actor, with where its request came from."""
    key = job.key if header_key is None else header_key
    if job.key is not None and key != job.key:
        raise Invalid("key", "the header Idempotency-Key says another one", "give one of the two")
    tenant = actor.stamped(job.tenant)
    if actor.tenant is not None and key is not None:
        # Tenants that share a queue do not share its keys.
        key = f"{actor.tenant}/{key}"
    draft = job.draft(ground.registry.get(job.kind), key, tenant, carried(job.meta, headers))
    if not actor.reaches(draft.queue):
        raise absent(f"queue {draft.queue}")
    return draft


@router.post(
    "/jobs",
    **described(Accepted, status=202, example=_ACCEPTED, body=NewJob, sent=_SENT, problems=(404, 409)),
)
async def enqueue(request: Request, actor: Annotated[Actor, need(Role.PRODUCER)]) -> Response:
    """Hand in a job. A key seen within its window is a 409 with the first job, and its result if it has one."""
    ground: Ground = request.app.state.ground
    job = await body_of(request, _new_job, ground.settings.body_most)
    draft = draft_of(ground, actor, job, request.headers, request.headers.get("idempotency-key"))
    name_queues(request, (draft.queue,))
    spend(request, 1)
    receipt = await ground.enqueuer.put(draft)
    if receipt.duplicate:
        raise await _duplicate(ground, actor, receipt)
    return Answer(Accepted(receipt.id, "accepted", False, receipt.merged, receipt.durable, receipt.copies), 202)


async def _duplicate(ground: Ground, actor: Actor, receipt: Receipt) -> Problem:
    """The first job, as far as it still exists."""
    job = (await ground.call(ground.store.get, [receipt.id]))[0]
    facts: dict[str, Any] = {"job_id": receipt.id, "state": "gone", "duplicate": True, "job": None, "result": None}
    if job is not None and sees(actor, job):
        shown = picture(actor, job)
        facts |= {"state": job.state.value, "job": shown, "result": shown.result}
    return Problem(409, "duplicate", "The key was seen before", f"the first job is {receipt.id}", extra=facts)


@router.get("/jobs/{job_id}", **described(JobView, problems=(404, 410)))
async def show(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER, Role.PRODUCER)],
    job_id: JobId,
    wait: Annotated[float, Query(ge=0, le=WAIT_MOST)] = 0,
) -> Response:
    """The job; with `wait`, once it has ended, or as it is after so many seconds."""
    ground: Ground = request.app.state.ground
    job = await seen_job(ground, actor, job_id)
    ended = await ground.watching.ended(job, wait, partial(gone, request))
    if ended is None:
        raise Problem(
            410, "gone", "The job ended and is gone", "its queue keeps none: give it keep-for to read results"
        )
    return Answer(await pictured(ground, actor, ended))


@router.get("/jobs", **described(JobPage))
async def browse(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER)],
    queue: NameFilter = None,
    state: Annotated[StateName | None, Query()] = None,
    kind: NameFilter = None,
    tenant: NameFilter = None,
    subject: TextFilter = None,
    after: After = 0,
    limit: Limit = 100,
) -> Response:
    """Jobs that match, in the order of their ids."""
    ground: Ground = request.app.state.ground
    query = Wanted(queue, None if state is None else State(state), kind, tenant, subject)

    def found() -> JobPage:
        jobs, _, place = find(ground.store, actor, query, after, limit)
        return JobPage([picture(actor, job) for job in jobs], place)

    return Answer(await ground.call(found))


@router.post(
    "/jobs/{job_id}/cancel",
    **described(Cancelled, example={"job_id": 41, "answer": "cancelled"}, problems=(404,)),
)
async def cancel(
    request: Request, actor: Annotated[Actor, need(Role.PRODUCER, Role.OPERATOR)], job_id: JobId
) -> Response:
    """Let it not run, or ask its holder to stop."""
    ground: Ground = request.app.state.ground
    job = await seen_job(ground, actor, job_id)
    answer = (await ground.call(ground.store.cancel, [job_id]))[0]
    await record_act(ground, actor, "cancel", "jobs", ids=[job_id], queue=job.queue, answer=answer.value)
    return Answer(Cancelled(job_id, answer.value))


@router.post("/jobs/cancel", **described(CancelledMany, example=_CANCELLED_MANY, body=CancelMany, sent=_CANCEL_SENT))
async def cancel_many(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)]) -> Response:
    """Cancel the jobs that match and have not ended, `limit` at most; go on with `after` until `next` is null."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _cancel_many, ground.settings.body_most)
    names = ("queue", "state", "kind", "tenant", "subject")
    given = {name: value for name in names if (value := getattr(asked, name)) is not None}
    if bool(given) == asked.all:
        raise Invalid("cancel", "it takes a filter or all: one of the two", 'send {"queue": "mail"} or {"all": true}')
    query = Wanted(asked.queue, asked.state and State(asked.state), asked.kind, asked.tenant, asked.subject)
    found, looked_at, place = await ground.call(
        find, ground.store, actor, query, asked.after, asked.limit, lambda job: not job.state.terminal
    )
    ids = [job.id for job in found]
    if asked.dry_run or not ids:
        return Answer(CancelledMany(0, 0, 0, ids, looked_at, asked.dry_run, place))
    answers = [answer.value for answer in await ground.call(ground.store.cancel, ids)]
    counts = {word: answers.count(word) for word in ("cancelled", "requested", "gone")}
    await record_act(ground, actor, "cancel many", f"{len(ids)} jobs", ids=ids[:100], filter=given, answers=counts)
    return Answer(CancelledMany(**counts, ids=ids, looked_at=looked_at, dry_run=False, next=place))


@router.get("/jobs/{job_id}/explain", **described(Explained, problems=(404,)))
async def why(request: Request, actor: Annotated[Actor, need(Role.VIEWER, Role.PRODUCER)], job_id: JobId) -> Response:
    """Why the job is where it is, in sentences."""
    ground: Ground = request.app.state.ground
    job = await seen_job(ground, actor, job_id)
    return Answer(Explained(job_id, await ground.call(_reasons, ground.store, actor, job)))


def _reasons(store: Store, actor: Actor, job: Job) -> list[str]:
    """Without secrets for those who only look, and without a word of other tenants' jobs."""
    job = as_seen(actor, job)
    shown = job if sees_plainly(actor) else redact_job(job)
    spec = next((spec for spec in store.specs() if spec.name == job.queue), QueueSpec(name=job.queue))
    backlog = store.backlog([job.queue])[0]
    place, workers = place_of(store, job), store.workers("", BATCH_MOST)
    return [*reasons(shown, backlog, store.now(), place, workers, others=actor.tenant is None), spec.vector()]
