"""Jobs, schedules and backlogs as JSON, the same in every command: times are ISO in UTC, durations are seconds."""

from typing import Any

from forebay.core.humanize import SECOND, iso
from forebay.core.job import Job, Progress
from forebay.core.outcome import Failure
from forebay.core.schedule import Schedule
from forebay.store.protocol import Backlog


def job_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "queue": job.queue,
        "kind": job.kind,
        "state": job.state.value,
        "payload": job.payload,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "delivery": job.delivery,
        "key": job.key,
        "tenant": job.tenant,
        "subject": job.subject,
        "enqueued_at": iso(job.enqueued_at),
        "due_at": iso(job.due_at),
        "deadline": iso(job.deadline),
        "expires_at": iso(job.expires_at),
        "owner": job.owner,
        "claimed_at": iso(job.claimed_at),
        "lease_until": iso(job.lease_until),
        "finished_at": iso(job.finished_at),
        "cancel_requested": job.cancel_requested,
        "meta": job.meta,
        "errors": [failure_json(failure) for failure in job.errors],
        "result": job.result,
        "home": job.home,
        "progress": None if job.progress is None else progress_json(job.progress),
    }


def progress_json(progress: Progress) -> dict[str, Any]:
    return {"portion": progress.portion, "note": progress.note, "at": iso(progress.at)}


def failure_json(failure: Failure) -> dict[str, Any]:
    return {
        "attempt": failure.attempt,
        "at": iso(failure.at),
        "kind": failure.kind,
        "message": failure.message,
        "trace": failure.trace,
    }


def backlog_json(backlog: Backlog) -> dict[str, Any]:
    return {
        "queue": backlog.queue,
        "depth": backlog.depth,
        "waiting": backlog.waiting,
        "ready": backlog.ready,
        "running": backlog.running,
        "done": backlog.done,
        "dead": backlog.dead,
        "cancelled": backlog.cancelled,
        "oldest_age_seconds": backlog.oldest_age / SECOND,
        "held": backlog.held,
        "blocked_lines": backlog.blocked,
        "paused": backlog.paused_until is not None,
        "paused_until": iso(backlog.paused_until),
        "keys": backlog.keys,
    }


def schedule_json(schedule: Schedule, words: str) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "rule": schedule.rule,
        "zone": schedule.zone,
        "words": words,
        "next_at": iso(schedule.next_at),
        "last_at": iso(schedule.last_at),
        "last_job": schedule.last_job,
        "paused": schedule.paused,
        "kind": schedule.draft.kind,
        "queue": schedule.draft.queue,
    }
