"""Response types, which msgspec encodes and which the OpenAPI schemas are generated from.

Times are ISO 8601 in UTC, durations are seconds, and a job has the same fields in every response.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Job, State
from forebay.core.limits import MAX_INSTANT

Count = Annotated[int, Meta(ge=0)]
StateName: TypeAlias = Literal["waiting", "ready", "running", "done", "dead", "cancelled"]
SECOND = 1_000_000


class Accepted(Struct, frozen=True, omit_defaults=True):
    """The job is accepted, and durable where the store is.

    merged   a waiting job took over the payload (`LatestWins`): this is its id
    durable  it survives a crash of the process and of the machine
    copies   for a broker: the ids in its queues. `job_id` is the first of them, or 0 when no route matched
    """

    job_id: int
    status: Literal["accepted"]
    duplicate: bool
    merged: bool
    durable: bool
    copies: tuple[int, ...] = ()


class FailureView(Struct, frozen=True):
    attempt: int
    at: datetime | None
    kind: str
    message: str
    trace: str


class ProgressView(Struct, frozen=True):
    """The progress of a running job: `portion` from 0 to 1, a note, and when it was reported."""

    portion: float
    note: str
    at: datetime


class JobView(Struct, frozen=True):
    """One job at the time of the response; `delivery` counts claims and only grows.

    `home`: the queue that a dead job died in, when it was moved to another one (`queue`).
    """

    id: int
    queue: str
    kind: str
    state: StateName
    payload: Raw
    priority: int
    attempt: int
    max_attempts: int
    delivery: int
    key: str | None
    tenant: str | None
    subject: str | None
    enqueued_at: datetime
    due_at: datetime
    deadline: datetime | None
    expires_at: datetime | None
    owner: str | None
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    cancel_requested: bool
    meta: dict[str, str] | None
    errors: list[FailureView]
    result: Raw
    home: str | None = None
    progress: ProgressView | None = None


class JobPage(Struct, frozen=True):
    """Jobs by id. Continue with `after=next` until it is null; a page before that may be empty."""

    jobs: list[JobView]
    next: int | None


class Cancelled(Struct, frozen=True):
    """cancelled: it will not run. requested: it is running and its worker is asked to stop. gone: it has ended."""

    job_id: int
    answer: Literal["cancelled", "requested", "gone"]


class Explained(Struct, frozen=True):
    job_id: int
    sentences: list[str]


class LeaseView(Struct, frozen=True):
    """A job that you own until `until`. `lease` is the token for /settle and /extend."""

    lease: str
    until: datetime
    job: JobView


class Leases(Struct, frozen=True):
    leases: list[LeaseView]


class SettledView(Struct, frozen=True):
    """applied: the outcome was written. stale: the lease is lost, and the outcome was discarded.

    `became` is the verdict: done, retry (due again in `after` seconds), dead, released or cancelled.
    """

    job_id: int
    answer: Literal["applied", "stale"]
    became: Literal["done", "retry", "dead", "released", "cancelled"] | None = None
    after: float | None = None


class SettledAll(Struct, frozen=True):
    settled: list[SettledView]


class ExtendedView(Struct, frozen=True):
    """`cancel_requested`: the job should stop; settle it as cancelled when it has."""

    lease: str
    job_id: int
    answer: Literal["extended", "lost"]
    until: datetime | None = None
    cancel_requested: bool = False


class ExtendedAll(Struct, frozen=True):
    leases: list[ExtendedView]


class ReportedView(Struct, frozen=True):
    """stale: the lease is lost. `cancel_requested`: the job should stop."""

    job_id: int
    answer: Literal["applied", "stale"]
    cancel_requested: bool = False


class ReportedAll(Struct, frozen=True):
    reports: list[ReportedView]


class Requeued(Struct, frozen=True):
    job_id: int
    status: Literal["requeued"]


class Redriven(Struct, frozen=True):
    """Continue with `after=next` until it is null. `scanned`: how many dead letters were read.

    `ids`: the redriven jobs; with a patch, the new ones. `stopped`: why it ended early, at `next`.
    """

    redriven: Count
    ids: list[int]
    scanned: Count
    dry_run: bool
    next: int | None
    stopped: str | None = None


class Purged(Struct, frozen=True):
    """Continue with `after=next` until it is null. `scanned`: how many dead letters were read.

    `ids`: those that were purged, or would be.
    """

    purged: Count
    ids: list[int]
    scanned: Count
    dry_run: bool
    next: int | None


class CancelledMany(Struct, frozen=True):
    """Continue with `after=next` until it is null. `scanned`: how many jobs were read.

    cancelled  will not run;  requested: are running, and their workers are asked to stop;  gone: ended meanwhile
    ids        the jobs that matched, in this order
    """

    cancelled: Count
    requested: Count
    gone: Count
    ids: list[int]
    scanned: Count
    dry_run: bool
    next: int | None


class CauseView(Struct, frozen=True):
    """A cause of dead letters of one kind and queue. `message`: without variable parts. `example`: the newest job."""

    fingerprint: str
    queue: str
    kind: str
    error: str
    message: str
    count: Count
    example: int


class Causes(Struct, frozen=True):
    """The causes of the dead letters that were read, most frequent first. Continue with `after=next` and add up.

    `more`: how many rarer causes are left out.
    """

    causes: list[CauseView]
    more: Count
    scanned: Count
    next: int | None


class BacklogView(Struct, frozen=True):
    """The counts of one queue.

    `oldest_age_s`: how long the oldest ready job has been due. `held`: ready jobs behind a closed gate.
    `blocked_lines`: ordered lines that a dead job at their head blocks.
    """

    waiting: Count
    ready: Count
    running: Count
    done: Count
    dead: Count
    cancelled: Count
    oldest_age_s: float
    held: Count
    blocked_lines: Count
    paused: bool
    paused_until: datetime | None


class QueueView(Struct, frozen=True):
    """A queue's spec in one line, axis by axis in words, and as the values that PUT takes."""

    name: str
    vector: str
    axes: dict[str, str]
    commit_point: str
    spec: Raw
    backlog: BacklogView | None


class Queues(Struct, frozen=True):
    """Continue with `after=next` until it is null."""

    queues: list[QueueView]
    next: str | None


class Paused(Struct, frozen=True):
    queue: str
    paused: bool
    until: datetime | None = None


class Stats(Struct, frozen=True):
    """Current counts. `attempts_p99` is that of ended jobs; `attempts_from` tells which ones.

    For one queue, or for all together. In the latter case `queues` lists the deepest ones, `queues_total` is their
    number, `complete` tells whether all of them were counted, and ages, lines and attempts are those of the deepest.
    """

    queue: str | None
    waiting: Count
    ready: Count
    running: Count
    done: Count
    dead: Count
    cancelled: Count
    depth: Count
    oldest_age_s: float
    held: Count
    blocked_lines: Count
    attempts_p99: int | None
    attempts_from: str
    paused: bool
    queues: "list[Stats] | None" = None
    queues_total: Count | None = None
    complete: bool = True


class ScheduleView(Struct, frozen=True):
    name: str
    rule: str
    zone: str
    words: str
    next_at: datetime
    last_at: datetime | None
    last_job: int | None
    paused: bool
    kind: str
    queue: str
    tenant: str | None
    payload: Raw


class ScheduleRun(Struct, frozen=True):
    """The job that a schedule enqueued on request. `duplicate`: its idempotency key was used before."""

    name: str
    job_id: int
    duplicate: bool
    copies: tuple[int, ...] = ()


class Schedules(Struct, frozen=True):
    """Continue with `after=next` until it is null."""

    schedules: list[ScheduleView]
    next: str | None


class Extent(Struct, frozen=True):
    """`first`: the oldest offset still held. `next`: the offset of the next append."""

    partition: int
    first: int
    next: int


class LogView(Struct, frozen=True):
    name: str
    vector: str
    partitions: list[Extent]


class Logs(Struct, frozen=True):
    """Continue with `after=next` until it is null."""

    logs: list[LogView]
    next: str | None


class EntryView(Struct, frozen=True):
    partition: int
    offset: int
    at: datetime
    key: str | None
    body: Raw


class EntryPlace(Struct, frozen=True):
    partition: int
    offset: int


class Appended(Struct, frozen=True):
    entries: list[EntryPlace]


class Entries(Struct, frozen=True):
    """Continue with `after=next`. `position`: what the requested group has committed."""

    entries: list[EntryView]
    next: int
    position: int | None = None


class Committed(Struct, frozen=True):
    group: str
    position: int


class StandingView(Struct, frozen=True):
    """`lag`: entries not yet committed. `lost`: trimmed before that. `loses_at`: when the next one is trimmed."""

    group: str
    partition: int
    position: int
    lag: int
    lost: int
    loses_at: datetime | None
    seen_at: datetime
    member: str | None
    epoch: int
    until: datetime | None


class Standings(Struct, frozen=True):
    """Continue with `after=next` until it is null."""

    groups: list[StandingView]
    next: str | None = None


class OwnedView(Struct, frozen=True):
    """Read after `position`, commit with `epoch`, renew before `until`."""

    partition: int
    epoch: int
    position: int
    until: datetime


class Ownership(Struct, frozen=True):
    group: str
    member: str
    partitions: list[OwnedView]


class Freed(Struct, frozen=True):
    freed: int


class Scale(Struct, frozen=True):
    """The open work in seconds of one worker. `workers`: how many would finish it `within` seconds."""

    queue: str
    depth: Count
    seconds_per_job: float | None
    work_seconds: float | None
    within: float
    workers: int | None
    scanned: Count


def moment(instant: Instant | None) -> datetime | None:
    """None also for an instant that means never."""
    return None if instant is None or instant >= MAX_INSTANT else to_datetime(instant)


def job_view(job: Job, payload: Raw, result: Raw, errors: list[FailureView], meta: dict[str, str] | None) -> JobView:
    said = job.progress
    return JobView(
        job.id,
        job.queue,
        job.kind,
        state_name(job.state),
        payload,
        job.priority,
        job.attempt,
        job.max_attempts,
        job.delivery,
        job.key,
        job.tenant,
        job.subject,
        to_datetime(job.enqueued_at),
        to_datetime(job.due_at),
        moment(job.deadline),
        moment(job.expires_at),
        job.owner,
        moment(job.claimed_at),
        moment(job.lease_until),
        moment(job.finished_at),
        job.cancel_requested,
        meta,
        errors,
        result,
        job.home,
        None if said is None else ProgressView(said.portion, said.note, to_datetime(said.at)),
    )


def state_name(state: State) -> StateName:
    name: Any = state.value
    return name  # type: ignore[no-any-return]
