"""Redaction of payloads, results, errors and meta, by the process's rules.

Viewers and operators get redacted jobs. Workers, producers and admins get them unchanged: a worker needs the payload,
and a producer sent it.
"""

from collections.abc import Collection

from msgspec.structs import replace

from forebay.core.job import Job
from forebay.core.outcome import Failure
from forebay.core.payload import Json, encode_payload
from forebay.work.redacting import rules


def redact(kind: str, payload: Json) -> Json:
    """The redacted payload or result of a job of this kind."""
    return rules().payload(kind, payload)


def redact_text(text: str, known: Collection[str] = ()) -> str:
    """A redacted error message, trace, subject or note; `known`: secrets of the job that it belongs to."""
    return rules().text(text, known)


def redact_meta(meta: dict[str, str] | None, known: Collection[str] = ()) -> dict[str, str] | None:
    if meta is None:
        return None
    return {name: str(rules().payload("", {name: text}, known)[name]) for name, text in meta.items()}


def redact_job(job: Job) -> Job:
    """The whole job, redacted: a secret of its payload is removed from every other field too."""
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
    """The redacted progress note of a worker, before it is stored."""
    return rules().text(note, secrets_of(job)) if note else ""


def redact_errors(job: Job) -> tuple[Failure, ...]:
    """The failures of a job, without the secrets of its payload."""
    known = secrets_of(job) if job.errors else ()
    return tuple(redact_failure(error, known) for error in job.errors)


def redact_failure(error: Failure, known: Collection[str]) -> Failure:
    rule = rules()
    return replace(error, message=rule.text(error.message, known), trace=rule.text(error.trace, known))


def redact_label(job: Job) -> str:
    """The label of a job in a list: its subject, or else its key."""
    label = job.subject or job.key or ""
    return rules().text(label, secrets_of(job)) if label else ""


def secrets_of(job: Job) -> Collection[str]:
    """The values under sensitive names in a job's payload and meta."""
    rule = rules()
    return rule.secrets(job.kind, job.payload) | rule.secrets("", job.meta)
