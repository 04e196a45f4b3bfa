"""What callers send, as checked values: msgspec parses them at wire speed, and the same types give the OpenAPI schemas.

Times are ISO 8601 with a zone, lengths are seconds. An unknown field is refused: it is a typing error, or a wish that
would silently not be granted.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from forebay.core.instant import Instant, Span, from_datetime, from_seconds
from forebay.core.job import Draft
from forebay.core.limits import (
    ATTEMPTS_MOST,
    BATCH_MOST,
    COST_MOST,
    ERROR_MESSAGE_LENGTH,
    ERROR_TRACE_LENGTH,
    LEASE_MOST,
    MAX_NOTE,
    PRIORITY_MOST,
    SLOTS_MOST,
    SPAN_MOST,
    TEXT_LENGTH,
)
from forebay.serve.settings import WAIT_MOST
from forebay.work.handler import Handler

NAME_PATTERN = "^[A-Za-z0-9_.:-]{1,128}$"
TEXT_PATTERN = r"^[^\u0000]+$"

Name = Annotated[str, Meta(pattern=NAME_PATTERN, description="1 to 128 of A-Z a-z 0-9 _ . : -")]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH, pattern=TEXT_PATTERN)]
Moment = Annotated[datetime, Meta(tz=True, description="ISO 8601 with a zone, up to the year 2200")]
Seconds = Annotated[float, Meta(ge=0, le=SPAN_MOST.total_seconds(), description="seconds")]
Lives = Annotated[int, Meta(ge=1, le=ATTEMPTS_MOST)]
Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
JobNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LeaseSeconds = Annotated[float, Meta(ge=0.001, le=LEASE_MOST.total_seconds(), description="seconds")]


class NewJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A job as its producer describes it; only `kind` is needed."""

    kind: Name
    payload: Raw | UnsetType = UNSET
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=-PRIORITY_MOST, le=PRIORITY_MOST, description="higher is sooner")] = 0
    run_at: Moment | None = None
    delay: Seconds = 0
    deadline: Moment | None = None
    expires_at: Moment | None = None
    key: Annotated[Text, Meta(description="idempotency key, as the header Idempotency-Key")] | None = None
    tenant: Name | None = None
    subject: Text | None = None
    max_attempts: Lives | None = None
    meta: dict[str, str] | None = None
    cost: Annotated[int, Meta(ge=1, le=COST_MOST, description="what it takes of caps and rates")] | None = None

    def draft(self, handler: Handler | None, key: str | None, tenant: str | None, meta: dict[str, str] | None) -> Draft:
        """Held to the same rules as any draft; what the app says of the kind fills in what the caller left out."""
        queue, lives = (handler.queue, handler.max_attempts) if handler else ("default", None)
        return Draft(
            self.kind,
            None,
            queue if self.queue is None else self.queue,
            self.priority,
            _instant(self.run_at),
            span_of("delay", self.delay),
            _instant(self.deadline),
            _instant(self.expires_at),
            key,
            tenant,
            self.subject,
            lives if self.max_attempts is None else self.max_attempts,
            meta,
            json_of(self.payload),
            cost=self.cost or (handler.cost if handler else 1),
        )


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Up to `count` jobs of one queue."""

    queue: Name
    count: Annotated[int, Meta(ge=1, le=BATCH_MOST)] = 1


class Claim(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker asks for: which queues, for how long, and how long it will wait for the first job."""

    wants: Annotated[list[Wanted], Meta(min_length=1, max_length=100)]
    owner: Annotated[Name, Meta(max_length=100, description="the worker's name, for people")] | None = None
    lease: LeaseSeconds = 30.0
    wait: Annotated[float, Meta(ge=0, le=WAIT_MOST, description="seconds")] = 0


class Error(Struct, frozen=True, forbid_unknown_fields=True):
    """What went wrong. `kind` groups dead letters: an exception's name, say."""

    kind: Annotated[str, Meta(min_length=1, max_length=200)]
    message: Annotated[str, Meta(max_length=ERROR_MESSAGE_LENGTH)] = ""
    trace: Annotated[str, Meta(max_length=ERROR_TRACE_LENGTH)] = ""


class Settle(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one job.

    ack      done; a `result` is kept with the finished job for `keep` seconds, an hour unless that is given
    fail     again by the queue's rules, or to the dead letters: the server decides; `after` overrides the backoff
    drop     to the dead letters at once
    release  back as it was, no life used
    snooze   the same, but not before `after` seconds
    cancel   stopped because it was asked to
    """

    lease: str
    outcome: Literal["ack", "fail", "drop", "release", "snooze", "cancel"]
    error: Error | None = None
    result: Raw | UnsetType = UNSET
    after: Seconds | None = None
    keep: Seconds | None = None


class Settlements(Struct, frozen=True, forbid_unknown_fields=True):
    settlements: Annotated[list[Settle], Meta(min_length=1, max_length=BATCH_MOST)]


class Extend(Struct, frozen=True, forbid_unknown_fields=True):
    leases: Annotated[list[str], Meta(min_length=1, max_length=BATCH_MOST)]
    lease: LeaseSeconds = 30.0


class Report(Struct, frozen=True, forbid_unknown_fields=True):
    """How far one job is: `portion` from 0 to 1, and a few words."""

    lease: str
    portion: Annotated[float, Meta(ge=0, le=1)]
    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""


class Reports(Struct, frozen=True, forbid_unknown_fields=True):
    reports: Annotated[list[Report], Meta(min_length=1, max_length=BATCH_MOST)]


class Redrive(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters live again. A call moves at most `limit`; go on with `after`: the answer's `next`.

    where        only whose last error holds this text, in any case
    fingerprint  only what died of this, as `GET /dlq/causes` names it
    quarantined  also those whose last holder died with them
    sample       so many, drawn from those that match by `seed`, which is the same draw each time
    patch        payloads are changed alike by a JSON merge patch; each job gives way to a new one
    rate         so many a second; the call then takes up to some seconds
    stop_at      with a rate: stop when more than this share of those that ended again, and at least `stop_after` of
                 them, have died again
    dry_run      say which, move none
    """

    queue: Name | None = None
    kind: Name | None = None
    tenant: Name | None = None
    subject: Text | None = None
    where: Annotated[str, Meta(max_length=TEXT_LENGTH)] | None = None
    limit: Annotated[int, Meta(ge=1, le=BATCH_MOST)] = 100
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    dry_run: bool = False
    fingerprint: Annotated[str, Meta(max_length=TEXT_LENGTH)] | None = None
    quarantined: bool = False
    sample: Annotated[int, Meta(ge=1, le=BATCH_MOST)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0
    patch: dict[str, Any] | None = None
    stop_at: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop_after: Annotated[int, Meta(ge=1, le=BATCH_MOST)] = 20


class Purge(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters are forgotten: those with these `ids`, those that match a filter, or `all`.

    A call forgets at most `limit`; go on with `after`: the answer's `next`. Quarantined ones are forgotten like others.

    where        only whose last error holds this text, in any case
    fingerprint  only what died of this, as `GET /dlq/causes` names it
    died_before  only what died before this moment
    dry_run      say which, forget none
    """

    ids: Annotated[list[JobNumber], Meta(min_length=1, max_length=BATCH_MOST)] | None = None
    queue: Name | None = None
    kind: Name | None = None
    tenant: Name | None = None
    subject: Text | None = None
    where: Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH)] | None = None
    fingerprint: Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH)] | None = None
    died_before: Moment | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=BATCH_MOST)] = 100
    after: JobNumber = 0
    dry_run: bool = False


class CancelMany(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs are cancelled: those that match the filter and have not ended, or `all` of them.

    A call cancels at most `limit`; go on with `after`: the answer's `next`.

    dry_run  say which, cancel none
    """

    queue: Name | None = None
    state: Literal["waiting", "ready", "running"] | None = None
    kind: Name | None = None
    tenant: Name | None = None
    subject: Text | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=BATCH_MOST)] = 100
    after: JobNumber = 0
    dry_run: bool = False


class SetGate(Struct, frozen=True, forbid_unknown_fields=True):
    """`slots`: 0 closes the gate, null goes back to what its jobs are stamped with."""

    slots: Annotated[int, Meta(ge=0, le=SLOTS_MOST)] | None


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """`value`: of a condition per tenant, kind or subject, which one."""

    count: Annotated[int, Meta(ge=1, le=BATCH_MOST)] = 1
    value: Text | None = None


class Pause(Struct, frozen=True, forbid_unknown_fields=True):
    """Until when; without it until somebody resumes it."""

    until: Moment | None = None


class PutSchedule(Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule: `rule` is a cron line, a nickname such as @daily, or `@every 90s` (docs/cron.md)."""

    rule: Text
    kind: Name
    payload: Raw | UnsetType = UNSET
    queue: Name = "default"
    tz: Text = "UTC"
    dst: Literal["once", "skip", "wall"] = "once"
    catch_up: Annotated[Text, Meta(description="none, last or all(N)")] = "last"
    overlap: Literal["allow", "skip"] = "allow"
    jitter: Annotated[int, Meta(ge=0, le=3_600, description="seconds")] = 0
    tenant: Name | None = None
    subject: Text | None = None
    priority: Annotated[int, Meta(ge=-PRIORITY_MOST, le=PRIORITY_MOST)] = 0
    max_attempts: Lives | None = None
    paused: bool = False


class NewEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a log; entries of one key go to one partition, in order."""

    body: Raw
    key: Text | None = None


class Append(Struct, frozen=True, forbid_unknown_fields=True):
    entries: Annotated[list[NewEntry], Meta(min_length=1, max_length=BATCH_MOST)]


class Commit(Struct, frozen=True, forbid_unknown_fields=True):
    """The group has done everything up to `offset`; its place only moves back with `rewind`.

    With `epoch` only the member that owns the partition in it may say so.
    """

    group: Name
    offset: Offset
    rewind: bool = False
    epoch: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class Own(Struct, frozen=True, forbid_unknown_fields=True):
    """A member of the group wants its share of the partitions, for so many seconds."""

    group: Name
    member: Annotated[str, Meta(min_length=1, max_length=256)]
    lease_seconds: Annotated[float, Meta(ge=0.001, le=86_400)] = 30.0


class Disown(Struct, frozen=True, forbid_unknown_fields=True):
    group: Name
    member: Annotated[str, Meta(min_length=1, max_length=256)]


def span_of(field: str, seconds: float) -> Span:
    return from_seconds(field, seconds)


def json_of(given: Raw | UnsetType) -> bytes:
    """What was left out is null."""
    return b"null" if isinstance(given, UnsetType) else bytes(given)


def length_of(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _instant(moment: datetime | None) -> Instant | None:
    return None if moment is None else from_datetime(moment)
