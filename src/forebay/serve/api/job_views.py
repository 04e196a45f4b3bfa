"""Jobs as responses: what an actor may see of one."""

from typing import Any, Final

from msgspec import Raw

from forebay.core.instant import to_datetime
from forebay.core.job import Job
from forebay.serve.actor import Actor
from forebay.serve.api.responses import FailureView, JobView, ProgressView, moment
from forebay.serve.context import ServerContext
from forebay.serve.problems import not_found
from forebay.serve.security.redact import redact_job
from forebay.serve.security.visibility import hide_owner, sees_job, sees_secrets

NULL: Final = Raw(b"null")
INLINE_BYTES: Final = 4_096


async def seen_job(context: ServerContext, actor: Actor, job_id: int) -> Job:
    """The job, or a 404."""
    job = (await context.call(context.store.get, [job_id]))[0]
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


async def view_job_async(context: ServerContext, actor: Actor, job: Job) -> JobView:
    """As `view_job`; the redaction of a large job, which takes a while, runs on the thread pool."""
    fast = sees_secrets(actor) or len(job.body) + len(job.result_body or b"") < INLINE_BYTES
    return view_job(actor, job) if fast else await context.call(view_job, actor, job)
