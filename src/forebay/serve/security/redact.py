"""What leaves the server without its secrets: payloads, results, errors and meta, by the rules of the process.

Workers get payloads as they are, and so do producers, who sent them, and admins; viewers and operators get this.
"""

from msgspec.structs import replace

from forebay.core.job import Job
from forebay.core.outcome import Failure
from forebay.core.payload import Json, encode_payload
from forebay.work.redacting import rules


def redact(kind: str, payload: Json) -> Json:
    """A payload or a result of a job of this kind, as it may be shown."""
    return rules().payload(kind, payload)


def redact_text(text: str) -> str:
    """An error's message or trace, a subject, a note."""
    return rules().text(text)


def redact_meta(meta: dict[str, str] | None) -> dict[str, str] | None:
    return None if meta is None else {name: str(rules().payload("", {name: text})[name]) for name, text in meta.items()}


def redact_job(job: Job) -> Job:
    """The whole job as it may be shown."""
    return replace(
        job,
        body=encode_payload(redact(job.kind, job.payload)),
        result_body=None if job.result_body is None else encode_payload(redact(job.kind, job.result)),
        meta=redact_meta(job.meta),
        errors=redact_errors(job),
    )


def redact_errors(job: Job) -> tuple[Failure, ...]:
    """The failures of a job, also without the secrets of its payload."""
    if not job.errors:
        return ()
    rule = rules()
    known = rule.secrets(job.kind, job.payload)
    return tuple(
        replace(error, message=rule.text(error.message, known), trace=rule.text(error.trace, known))
        for error in job.errors
    )
