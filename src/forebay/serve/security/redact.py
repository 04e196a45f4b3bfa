"""What leaves the server without its secrets: payloads, results, errors and meta, by the rules of the process.

Workers get payloads as they are, and so do producers, who sent them, and admins; viewers and operators get this.
"""

from collections.abc import Collection

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


def redact_meta(meta: dict[str, str] | None, known: Collection[str] = ()) -> dict[str, str] | None:
    if meta is None:
        return None
    return {name: str(rules().payload("", {name: text}, known)[name]) for name, text in meta.items()}


def redact_job(job: Job) -> Job:
    """The whole job as it may be shown: a secret of its payload is in no other field either."""
    rule, known = rules(), secrets_of(job)
    return replace(
        job,
        body=encode_payload(rule.payload(job.kind, job.payload)),
        result_body=None if job.result_body is None else encode_payload(rule.payload(job.kind, job.result, known)),
        meta=redact_meta(job.meta, known),
        key=None if job.key is None else rule.text(job.key, known),
        subject=None if job.subject is None else rule.text(job.subject, known),
        errors=tuple(redact_failure(error, known) for error in job.errors),
        progress=None if job.progress is None else replace(job.progress, note=rule.text(job.progress.note, known)),
    )


def redact_note(note: str, job: Job) -> str:
    """What a worker says of its progress, as it is kept."""
    return rules().text(note, secrets_of(job)) if note else ""


def redact_errors(job: Job) -> tuple[Failure, ...]:
    """The failures of a job, also without the secrets of its payload."""
    known = secrets_of(job) if job.errors else ()
    return tuple(redact_failure(error, known) for error in job.errors)


def redact_failure(error: Failure, known: Collection[str]) -> Failure:
    rule = rules()
    return replace(error, message=rule.text(error.message, known), trace=rule.text(error.trace, known))


def redact_label(job: Job) -> str:
    """What a job is about, in a list: its subject, or else its key."""
    label = job.subject or job.key or ""
    return rules().text(label, secrets_of(job)) if label else ""


def secrets_of(job: Job) -> Collection[str]:
    """What stands under sensitive names in a job's payload and meta."""
    rule = rules()
    return rule.secrets(job.kind, job.payload) | rule.secrets("", job.meta)
