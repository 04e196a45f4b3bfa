"""Request types, which msgspec decodes and validates and which the OpenAPI schemas are generated from.

Times are ISO 8601 with a zone, durations are seconds.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from forebay.core.instant import Instant, from_datetime, from_seconds
from forebay.core.job import Draft
from forebay.core.limits import (
    ERROR_MESSAGE_LENGTH,
    ERROR_TRACE_LENGTH,
    MAX_ATTEMPTS,
    MAX_BATCH,
    MAX_COST,
    MAX_DURATION,
    MAX_LEASE,
    MAX_NOTE,
    MAX_PRIORITY,
    MAX_SLOTS,
    TEXT_LENGTH,
)
from forebay.serve.api.schema import RequestModel
from forebay.serve.problems import pattern
from forebay.serve.settings import MAX_WAIT
from forebay.work.cron import Overlap
from forebay.work.handler import Handler

NAME_PATTERN = pattern("^[A-Za-z0-9_.:-]{1,128}$", "a name has 1 to 128 of A-Z a-z 0-9 _ . : -")
TEXT_PATTERN = r"^[^\u0000]+$"

Name = Annotated[str, Meta(pattern=NAME_PATTERN, description="1 to 128 of A-Z a-z 0-9 _ . : -")]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH, pattern=TEXT_PATTERN)]
Timestamp = Annotated[datetime, Meta(tz=True, description="ISO 8601 with a zone, up to the year 2200")]
Seconds = Annotated[float, Meta(ge=0, le=MAX_DURATION.total_seconds(), description="seconds")]
Attempts = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
JobNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_LEASE: Final = "q83vEjRW…"
LeaseSeconds = Annotated[float, Meta(ge=0.001, le=MAX_LEASE.total_seconds(), description="seconds")]


class NewJob(RequestModel, frozen=True):
    """A job to enqueue; only `kind` is required."""

    EXAMPLE: ClassVar = {
        "kind": "send_email",
        "payload": {"to": "ada@example.com"},
        "queue": "mail",
        "key": "email-42",
    }

    kind: Name
    payload: Raw | UnsetType = UNSET
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="higher is sooner")] = 0
    run_at: Timestamp | None = None
    delay: Seconds = 0
    deadline: Timestamp | None = None
    expires_at: Timestamp | None = None
    key: Annotated[Text, Meta(description="idempotency key, as the header Idempotency-Key")] | None = None
    tenant: Name | None = None
    subject: Text | None = None
    max_attempts: Attempts | None = None
    meta: dict[str, str] | None = None
    cost: Annotated[int, Meta(ge=1, le=MAX_COST, description="slots of caps and rates that it uses")] | None = None

    def draft(self, handler: Handler | None, key: str | None, tenant: str | None, meta: dict[str, str] | None) -> Draft:
        """The checked draft; the handler of its kind supplies what the caller left out."""
        queue, max_attempts = (handler.queue, handler.max_attempts) if handler else ("default", None)
        return Draft(
            self.kind,
            None,
            queue if self.queue is None else self.queue,
            self.priority,
            _instant(self.run_at),
            from_seconds("delay", self.delay),
            _instant(self.deadline),
            _instant(self.expires_at),
            key,
            tenant,
            self.subject,
            max_attempts if self.max_attempts is None else self.max_attempts,
            meta,
            json_of(self.payload),
            cost=self.cost or (handler.cost if handler else 1),
        )


class Wanted(RequestModel, frozen=True):
    """Up to `count` jobs of one queue."""

    queue: Name
    count: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1


class Claim(RequestModel, frozen=True):
    """A worker's claim: from which queues, with what lease, and how long to wait for the first job."""

    EXAMPLE: ClassVar = {"wants": [{"queue": "mail", "count": 10}], "owner": "worker-1", "lease": 30, "wait": 20}

    wants: Annotated[list[Wanted], Meta(min_length=1, max_length=100)]
    owner: Annotated[Name, Meta(max_length=100, description="the worker's name, for people")] | None = None
    lease: LeaseSeconds = 30.0
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="seconds")] = 0


class Error(RequestModel, frozen=True):
    """An error. `kind` groups dead letters, for example by the name of the exception."""

    kind: Annotated[str, Meta(min_length=1, max_length=200)]
    message: Annotated[str, Meta(max_length=ERROR_MESSAGE_LENGTH)] = ""
    trace: Annotated[str, Meta(max_length=ERROR_TRACE_LENGTH)] = ""


class Settle(RequestModel, frozen=True):
    """The outcome of one job.

    ack      done; a `result` is kept with the finished job for `keep` seconds, by default an hour
    fail     retry or dead letter, by the queue's policy; `after` overrides the backoff
    drop     dead letter at once
    release  ready again, no attempt used
    snooze   the same, due again after `after` seconds
    cancel   stopped because a cancel was requested
    """

    lease: str
    outcome: Literal["ack", "fail", "drop", "release", "snooze", "cancel"]
    error: Error | None = None
    result: Raw | UnsetType = UNSET
    after: Seconds | None = None
    keep: Seconds | None = None


class Settlements(RequestModel, frozen=True):
    EXAMPLE: ClassVar = {
        "settlements": [
            {"lease": _LEASE, "outcome": "ack"},
            {"lease": _LEASE, "outcome": "fail", "error": {"kind": "SMTPError", "message": "greylisted"}},
        ]
    }

    settlements: Annotated[list[Settle], Meta(min_length=1, max_length=MAX_BATCH)]


class Extend(RequestModel, frozen=True):
    EXAMPLE: ClassVar = {"leases": [_LEASE], "lease": 30}

    leases: Annotated[list[str], Meta(min_length=1, max_length=MAX_BATCH)]
    lease: LeaseSeconds = 30.0


class Report(RequestModel, frozen=True):
    """The progress of one job: `portion` from 0 to 1, and a note."""

    lease: str
    portion: Annotated[float, Meta(ge=0, le=1)]
    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""


class Reports(RequestModel, frozen=True):
    EXAMPLE: ClassVar = {"reports": [{"lease": _LEASE, "portion": 0.4, "note": "page 40 of 100"}]}

    reports: Annotated[list[Report], Meta(min_length=1, max_length=MAX_BATCH)]


class Redrive(RequestModel, frozen=True):
    """Which dead letters to redrive. A call redrives at most `limit`; continue with `after` set to `next`.

    where        only those whose last error contains this text, ignoring case
    fingerprint  only those of this cause, as named by `GET /dlq/causes`
    quarantined  include jobs whose last worker died while running them
    sample       this many, drawn by `seed` from those that match; the same seed draws the same jobs
    patch        a JSON merge patch for the payloads; each job is replaced by a new one
    rate         jobs per second; the call then takes up to some seconds
    stop_at      with a rate: stop when more than this share of the redriven jobs that ended, and at least `stop_after`
                 of them, have died again
    dry_run      return the matching jobs, redrive none
    """

    EXAMPLE: ClassVar = {"queue": "mail", "where": "SMTPAuth", "limit": 100, "rate": 20, "dry_run": True}

    queue: Name | None = None
    kind: Name | None = None
    tenant: Name | None = None
    subject: Text | None = None
    where: Annotated[str, Meta(max_length=TEXT_LENGTH)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 100
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    dry_run: bool = False
    fingerprint: Annotated[str, Meta(max_length=TEXT_LENGTH)] | None = None
    quarantined: bool = False
    sample: Annotated[int, Meta(ge=1, le=MAX_BATCH)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0
    patch: dict[str, Any] | None = None
    stop_at: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop_after: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 20


class Purge(RequestModel, frozen=True):
    """Which dead letters to purge: by `ids`, by a filter, or `all`.

    A call purges at most `limit`; continue with `after` set to `next`. Quarantined jobs are included.

    where        only those whose last error contains this text, ignoring case
    fingerprint  only those of this cause, as named by `GET /dlq/causes`
    died_before  only those that died before this time
    dry_run      return the matching jobs, purge none
    """

    EXAMPLE: ClassVar = {"queue": "mail", "where": "BadAddress", "limit": 100, "dry_run": True}

    ids: Annotated[list[JobNumber], Meta(min_length=1, max_length=MAX_BATCH)] | None = None
    queue: Name | None = None
    kind: Name | None = None
    tenant: Name | None = None
    subject: Text | None = None
    where: Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH)] | None = None
    fingerprint: Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH)] | None = None
    died_before: Timestamp | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 100
    after: JobNumber = 0
    dry_run: bool = False


class CancelMany(RequestModel, frozen=True):
    """Which jobs to cancel: those that match the filter and have not ended, or `all` of them.

    A call cancels at most `limit`; continue with `after` set to `next`.

    dry_run  return the matching jobs, cancel none
    """

    EXAMPLE: ClassVar = {"queue": "mail", "kind": "newsletter", "limit": 100, "dry_run": True}

    queue: Name | None = None
    state: Literal["waiting", "ready", "running"] | None = None
    kind: Name | None = None
    tenant: Name | None = None
    subject: Text | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 100
    after: JobNumber = 0
    dry_run: bool = False


class SetGate(RequestModel, frozen=True):
    """`slots`: 0 closes the gate, null restores the number of the queue's spec."""

    EXAMPLE: ClassVar = {"slots": 20}

    slots: Annotated[int, Meta(ge=0, le=MAX_SLOTS)] | None


class ReleaseJobs(RequestModel, frozen=True):
    """`value`: the tenant, kind or subject of a condition that is counted per one of them."""

    EXAMPLE: ClassVar = {"count": 20}

    count: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1
    value: Text | None = None


class PutQueue(RequestModel, frozen=True):
    """The axes as `GET /queues/{name}` shows them under `spec`; those left out have their defaults."""

    EXAMPLE: ClassVar = {
        "retention": {"type": "keep-for", "duration": "P7D"},
        "selection": {"type": "fifo"},
        "capacity": {"type": "bounded", "limit": 10_000, "when_full": {"type": "reject"}},
    }

    name: Name | UnsetType = UNSET
    retention: Raw | UnsetType = UNSET
    selection: Raw | UnsetType = UNSET
    share: Raw | UnsetType = UNSET
    merge: Raw | UnsetType = UNSET
    eligibility: Raw | UnsetType = UNSET
    routing: Raw | UnsetType = UNSET
    capacity: Raw | UnsetType = UNSET
    key_window: Raw | UnsetType = UNSET
    unique: Raw | UnsetType = UNSET
    fan_out: Raw | UnsetType = UNSET


class Pause(RequestModel, frozen=True):
    """Pause until this time; without it, until the queue is resumed."""

    until: Timestamp | None = None


class PutSchedule(RequestModel, frozen=True):
    """A schedule: `rule` is a cron line, a nickname such as @daily, or `@every 90s` (docs/reference/cron.md)."""

    EXAMPLE: ClassVar = {"rule": "30 1 * * *", "kind": "report", "tz": "Europe/Berlin", "overlap": "skip"}

    rule: Text
    kind: Name
    payload: Raw | UnsetType = UNSET
    queue: Name = "default"
    tz: Text = "UTC"
    dst: Literal["once", "skip", "wall"] = "once"
    catch_up: Annotated[Text, Meta(description="none, last or all(N)")] = "last"
    overlap: Overlap = "allow"
    jitter: Annotated[int, Meta(ge=0, le=3_600, description="seconds")] = 0
    tenant: Name | None = None
    subject: Text | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    max_attempts: Attempts | None = None
    paused: bool = False


class NewEntry(RequestModel, frozen=True):
    """One entry of a log; entries of one key go to one partition, in order."""

    body: Raw
    key: Text | None = None


class Append(RequestModel, frozen=True):
    EXAMPLE: ClassVar = {"entries": [{"body": {"n": 1}}]}

    entries: Annotated[list[NewEntry], Meta(min_length=1, max_length=MAX_BATCH)]


class Commit(RequestModel, frozen=True):
    """Commit everything up to `offset` for the group; the position moves back only with `rewind`.

    With `epoch`, only the member that owns the partition in that epoch may commit.
    """

    EXAMPLE: ClassVar = {"group": "billing", "offset": 41}

    group: Name
    offset: Offset
    rewind: bool = False
    epoch: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class Own(RequestModel, frozen=True):
    """Assign a member of the group its share of the partitions, for `lease_seconds`."""

    EXAMPLE: ClassVar = {"group": "billing", "member": "reader-1"}

    group: Name
    member: Annotated[str, Meta(min_length=1, max_length=256)]
    lease_seconds: Annotated[float, Meta(ge=0.001, le=86_400)] = 30.0


class Disown(RequestModel, frozen=True):
    EXAMPLE: ClassVar = {"group": "billing", "member": "reader-1"}

    group: Name
    member: Annotated[str, Meta(min_length=1, max_length=256)]


def json_of(given: Raw | UnsetType) -> bytes:
    """The JSON value; null when it was left out."""
    return b"null" if isinstance(given, UnsetType) else bytes(given)


def _instant(moment: datetime | None) -> Instant | None:
    return None if moment is None else from_datetime(moment)
