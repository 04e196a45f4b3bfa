"""Reading request bodies within their bounds, writing responses, and what an actor may see of a job or a queue.

What an actor cannot see does not exist: a job of another queue or tenant gets the same 404 as an unknown one. What
belongs to a whole queue (its counts, its spec, its claims) is for actors who see all its tenants.
"""

from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec import Raw

from forebay.core.job import Job
from forebay.serve.actor import Actor, Role
from forebay.serve.api.openapi import JSON
from forebay.serve.api.responses import FailureView, JobView, job_view, moment
from forebay.serve.context import ServerContext
from forebay.serve.problems import Problem, not_found
from forebay.serve.security.redact import redact_job
from forebay.serve.security.visibility import hide_owner

T = TypeVar("T")

NULL: Final = Raw(b"null")
INLINE_BYTES: Final = 4_096
_encode: Final = msgspec.json.Encoder().encode


class Answer(Response):
    """A value as JSON."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return _encode(content)


def check_media(request: Request, media: str) -> None:
    """Accept only this media type: a page of another site can make a browser send a form, but not JSON."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media:
        raise Problem(
            415, "media-type", "The route does not accept this media type", f"send it as Content-Type: {media}"
        )


async def body_of(request: Request, decoder: "msgspec.json.Decoder[T]", most: int) -> T:
    """The decoded body, bounded regardless of its headers."""
    check_media(request, JSON)
    return decoded(await bytes_of(request, most), decoder)


async def bytes_of(request: Request, most: int) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Problem(
                400, "incomplete-body", "The body is incomplete", "send all of it before closing the connection"
            )
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def too_large(most: int) -> Problem:
    return Problem(413, "too-large", "The request is too large", f"the limit is {most} bytes", extra={"limit": most})


def decoded(text: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The value, or a problem that names the field and does not repeat its value."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or "body"
        detail = f"{field}: {reason}"
        raise Problem(422, "invalid", "A value is invalid", detail, extra={"field": field}) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "not-json", "The body is not JSON", "send one JSON value in UTF-8") from None


def sees_queue(actor: Actor, queue: str) -> bool:
    """Whether the actor sees the whole queue, with every tenant."""
    return actor.sees(queue, None)


def require_queue(actor: Actor, queue: str) -> None:
    if not sees_queue(actor, queue):
        raise not_found(f"queue {queue}")


def sees_job(actor: Actor, job: Job) -> bool:
    return actor.sees(job.home or job.queue, job.tenant)


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
    errors = [FailureView(each.attempt, moment(each.at), each.kind, each.message, each.trace) for each in shown.errors]
    result = NULL if shown.result_body is None else Raw(shown.result_body)
    return job_view(shown, Raw(shown.body), result, errors, shown.meta)


async def view_job_async(context: ServerContext, actor: Actor, job: Job) -> JobView:
    """As `view_job`; the redaction of a large job, which takes a while, runs on the thread pool."""
    fast = sees_secrets(actor) or len(job.body) + len(job.result_body or b"") < INLINE_BYTES
    return view_job(actor, job) if fast else await context.call(view_job, actor, job)


def sees_secrets(actor: Actor) -> bool:
    """Whether payloads, results and errors are shown to this actor without redaction."""
    return actor.has(Role.PRODUCER) or actor.has(Role.WORKER)


async def wait_for_disconnect(request: Request) -> None:
    """Returns when the caller has disconnected. Call it after the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
