"""In and out of every route: bodies read within their bounds and parsed, answers written, who sees what.

What an actor does not see does not exist: a job of another queue or tenant and a job that never was are one 404. What
belongs to a queue as a whole (its figures, its spec, its claims) is only for actors who see all its tenants.
"""

from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec import Raw

from forebay.core.job import Job
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import FailureView, JobView, job_view, moment
from forebay.serve.api.describe import JSON
from forebay.serve.ground import Ground
from forebay.serve.problems import Problem, absent
from forebay.serve.security.reach import as_seen
from forebay.serve.security.redact import redact_job

T = TypeVar("T")

NULL: Final = Raw(b"null")
ASIDE_BYTES: Final = 4_096
_encode: Final = msgspec.json.Encoder().encode


class Answer(Response):
    """A value as JSON."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return _encode(content)


def check_media(request: Request, media: str) -> None:
    """Only this: a body sent as a form is what a page of a stranger could make a browser send."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media:
        raise Problem(415, "media-type", "The body is not what this route takes", f"send it as Content-Type: {media}")


async def body_of(request: Request, decoder: "msgspec.json.Decoder[T]", most: int) -> T:
    """The body, parsed; bounded whatever the headers say."""
    check_media(request, JSON)
    return decoded(await bytes_of(request, most), decoder)


async def bytes_of(request: Request, most: int) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "cut-off", "The body ended early")
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def too_large(most: int) -> Problem:
    return Problem(413, "too-large", "The request is too large", f"the limit is {most} bytes", extra={"limit": most})


def decoded(text: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The value, or a problem that names the field; what was given is not said back."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or "body"
        detail = f"{field}: {reason}"
        raise Problem(422, "invalid", "A value is refused", detail, extra={"field": field}) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "not-json", "The body is not JSON", "send one JSON value in UTF-8") from None


def rules(actor: Actor, queue: str) -> bool:
    """Whether all of a queue is this actor's to see: its figures tell of every tenant."""
    return actor.sees(queue, None)


def must_rule(actor: Actor, queue: str) -> None:
    if not rules(actor, queue):
        raise absent(f"queue {queue}")


def sees(actor: Actor, job: Job) -> bool:
    return actor.sees(job.home or job.queue, job.tenant)


async def seen_job(ground: Ground, actor: Actor, job_id: int) -> Job:
    """The job, or the 404 of one that never was."""
    job = (await ground.call(ground.store.get, [job_id]))[0]
    if job is None or not sees(actor, job):
        raise absent(f"job {job_id}")
    return job


def picture(actor: Actor, job: Job) -> JobView:
    """The job for this actor: those who make or run jobs see them as they are, those who look see no secrets."""
    seen = as_seen(actor, job)
    shown = seen if sees_plainly(actor) else redact_job(seen)
    errors = [FailureView(each.attempt, moment(each.at), each.kind, each.message, each.trace) for each in shown.errors]
    result = NULL if shown.result_body is None else Raw(shown.result_body)
    return job_view(shown, Raw(shown.body), result, errors, shown.meta)


async def pictured(ground: Ground, actor: Actor, job: Job) -> JobView:
    """As `picture`. Secrets of a large job take a while to be found, and nobody else should wait for that."""
    plain = sees_plainly(actor) or len(job.body) + len(job.result_body or b"") < ASIDE_BYTES
    return picture(actor, job) if plain else await ground.call(picture, actor, job)


def sees_plainly(actor: Actor) -> bool:
    """Whether payloads, results and errors are shown to this actor as they are."""
    return actor.has(Role.PRODUCER) or actor.has(Role.WORKER)


async def gone(request: Request) -> None:
    """Returns when the caller has left; its body has been read by then."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
