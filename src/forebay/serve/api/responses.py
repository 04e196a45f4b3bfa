"""Response types, which msgspec encodes and which the OpenAPI schemas are generated from.

Times are ISO 8601 in UTC, durations are seconds, and a job has the same fields in every response.
"""

from datetime import datetime
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Raw

from forebay.core.instant import Instant, to_datetime
from forebay.core.limits import MAX_INSTANT
from forebay.serve.api.schema import ResponseModel

Count = Annotated[int, Meta(ge=0)]
StateName: TypeAlias = Literal["waiting", "ready", "running", "done", "dead", "cancelled"]
SECOND = 1_000_000


class Accepted(ResponseModel, frozen=True, omit_defaults=True):
    """The job is accepted, and durable where the store is.

    merged   a waiting job took over the payload (`LatestWins`): this is its id
    durable  it survives a crash of the process and of the machine
    copies   for a broker: the ids in its queues. `job_id` is the first of them, or 0 when no route matched
    """

    EXAMPLE: ClassVar = {"job_id": 41, "status": "accepted", "duplicate": False, "merged": False, "durable": True}

    job_id: int
    status: Literal["accepted"]
    duplicate: bool
    merged: bool
    durable: bool
    copies: tuple[int, ...] = ()


class FailureView(ResponseModel, frozen=True):
    attempt: int
    at: datetime | None
    kind: str
    message: str
    trace: str


class ProgressView(ResponseModel, frozen=True):
    """The progress of a running job: `portion` from 0 to 1, a note, and when it was reported."""

    portion: float
    note: str
    at: datetime


class JobView(ResponseModel, frozen=True):
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


class JobPage(ResponseModel, frozen=True):
    """Jobs by id. Continue with `after=next` until it is null; a page before that may be empty."""

    jobs: list[JobView]
    next: int | None


class Cancelled(ResponseModel, frozen=True):
    """cancelled: it will not run. requested: it is running and its worker is notified. gone: it has ended."""

    EXAMPLE: ClassVar = {"job_id": 41, "answer": "cancelled"}

    job_id: int
    answer: Literal["cancelled", "requested", "gone"]


class Explained(ResponseModel, frozen=True):
    job_id: int
    sentences: list[str]


class LeaseView(ResponseModel, frozen=True):
    """A job that you own until `until`. `lease` is the token for /settle and /extend."""

    lease: str
    until: datetime
    job: JobView


class ClaimedLeases(ResponseModel, frozen=True):
    EXAMPLE: ClassVar = {"leases": []}

    leases: list[LeaseView]


class SettledView(ResponseModel, frozen=True):
    """applied: the outcome was written. stale: the lease is lost, and the outcome was discarded.

    `became` is the verdict: done, retry (due again in `after` seconds), dead, released or cancelled.
    """

    job_id: int
    answer: Literal["applied", "stale"]
    became: Literal["done", "retry", "dead", "released", "cancelled"] | None = None
    after: float | None = None


class SettledAll(ResponseModel, frozen=True):
    EXAMPLE: ClassVar = {"settled": [{"job_id": 41, "answer": "applied", "became": "done", "after": None}]}

    settled: list[SettledView]


class ExtendedView(ResponseModel, frozen=True):
    """`cancel_requested`: the job should stop; settle it as cancelled when it has."""

    lease: str
    job_id: int
    answer: Literal["extended", "lost"]
    until: datetime | None = None
    cancel_requested: bool = False


class ExtendedAll(ResponseModel, frozen=True):
    leases: list[ExtendedView]


class ReportedView(ResponseModel, frozen=True):
    """stale: the lease is lost. `cancel_requested`: the job should stop."""

    job_id: int
    answer: Literal["applied", "stale"]
    cancel_requested: bool = False


class ReportedAll(ResponseModel, frozen=True):
    reports: list[ReportedView]


class Requeued(ResponseModel, frozen=True):
    job_id: int
    status: Literal["requeued"]


class Redriven(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null. `scanned`: how many dead letters were read.

    `ids`: the redriven jobs; with a patch, the new ones. `stopped`: why it ended early, at `next`.
    """

    EXAMPLE: ClassVar = {
        "redriven": 2,
        "ids": [41, 57],
        "scanned": 2,
        "dry_run": False,
        "next": None,
        "stopped": None,
    }

    redriven: Count
    ids: list[int]
    scanned: Count
    dry_run: bool
    next: int | None
    stopped: str | None = None


class Purged(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null. `scanned`: how many dead letters were read.

    `ids`: those that were purged, or would be.
    """

    EXAMPLE: ClassVar = {"purged": 2, "ids": [41, 57], "scanned": 2, "dry_run": False, "next": None}

    purged: Count
    ids: list[int]
    scanned: Count
    dry_run: bool
    next: int | None


class CancelledMany(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null. `scanned`: how many jobs were read.

    cancelled  will not run;  requested: are running, and their workers are notified;  gone: ended meanwhile
    ids        the jobs that matched, in this order
    """

    EXAMPLE: ClassVar = {
        "cancelled": 1,
        "requested": 1,
        "gone": 0,
        "ids": [41, 57],
        "scanned": 2,
        "dry_run": False,
        "next": None,
    }

    cancelled: Count
    requested: Count
    gone: Count
    ids: list[int]
    scanned: Count
    dry_run: bool
    next: int | None


class CauseView(ResponseModel, frozen=True):
    """A cause of dead letters of one kind and queue. `message`: without variable parts. `example`: the newest job."""

    fingerprint: str
    queue: str
    kind: str
    error: str
    message: str
    count: Count
    example: int


class Causes(ResponseModel, frozen=True):
    """The causes of the dead letters that were read, most frequent first. Continue with `after=next` and add up.

    `more`: how many rarer causes are left out.
    """

    causes: list[CauseView]
    more: Count
    scanned: Count
    next: int | None


class BacklogView(ResponseModel, frozen=True):
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


class QueueView(ResponseModel, frozen=True):
    """A queue's spec in one line, axis by axis in words, and as the values that PUT takes.

    `cells`: those in which its jobs live; first the one that it leaves. Empty where the store has no cells.
    """

    name: str
    vector: str
    axes: dict[str, str]
    commit_point: str
    spec: Raw
    backlog: BacklogView | None
    cells: tuple[str, ...] = ()


class Queues(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null."""

    queues: list[QueueView]
    next: str | None


class Paused(ResponseModel, frozen=True):
    queue: str
    paused: bool
    until: datetime | None = None


class Stats(ResponseModel, frozen=True):
    """Current counts. `attempts_p99` is that of ended jobs; `attempts_from` names their source.

    For one queue, or for all together. In the latter case `queues` lists the deepest ones, `queues_total` is their
    number, `complete` is whether all of them were counted, and ages, lines and attempts are those of the deepest.
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


class ScheduleView(ResponseModel, frozen=True):
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


class ScheduleRun(ResponseModel, frozen=True):
    """The job that a schedule enqueued on request. `duplicate`: its idempotency key was used before."""

    name: str
    job_id: int
    duplicate: bool
    copies: tuple[int, ...] = ()


class Schedules(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null."""

    schedules: list[ScheduleView]
    next: str | None


class Extent(ResponseModel, frozen=True):
    """`first`: the oldest offset still held. `next`: the offset of the next append."""

    partition: int
    first: int
    next: int


class LogView(ResponseModel, frozen=True):
    name: str
    vector: str
    partitions: list[Extent]


class LogPage(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null."""

    logs: list[LogView]
    next: str | None


class EntryView(ResponseModel, frozen=True):
    partition: int
    offset: int
    at: datetime
    key: str | None
    body: Raw


class EntryPlace(ResponseModel, frozen=True):
    partition: int
    offset: int


class Appended(ResponseModel, frozen=True):
    entries: list[EntryPlace]


class Entries(ResponseModel, frozen=True):
    """Continue with `after=next`. `position`: what the requested group has committed."""

    entries: list[EntryView]
    next: int
    position: int | None = None


class Committed(ResponseModel, frozen=True):
    group: str
    position: int


class StandingView(ResponseModel, frozen=True):
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


class Standings(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null."""

    groups: list[StandingView]
    next: str | None = None


class OwnedView(ResponseModel, frozen=True):
    """Read after `position`, commit with `epoch`, renew before `until`."""

    partition: int
    epoch: int
    position: int
    until: datetime


class Ownership(ResponseModel, frozen=True):
    group: str
    member: str
    partitions: list[OwnedView]


class Freed(ResponseModel, frozen=True):
    freed: int


class ScaleAdvice(ResponseModel, frozen=True):
    """The open work in seconds of one worker. `workers`: how many would finish it `within` seconds."""

    queue: str
    depth: Count
    seconds_per_job: float | None
    work_seconds: float | None
    within: float
    workers: int | None
    scanned: Count


class GateView(ResponseModel, frozen=True):
    """A gate in use. `slots`: jobs that may run (for a rate: start) at once. `given`: the operator's override.

    `parked`: ready jobs whose lanes wait here; up to 1,000 are counted. Gates of whole queues park nothing.
    """

    name: str
    slots: Count
    used: Count
    given: Count | None
    parked: Count


class GatesView(ResponseModel, frozen=True):
    """Continue with `after=next` until it is null."""

    gates: list[GateView]
    next: str | None


class GateSet(ResponseModel, frozen=True):
    name: str
    slots: Count | None


class Released(ResponseModel, frozen=True):
    """How many jobs passed the condition."""

    condition: str
    value: str | None
    released: Count


def moment(instant: Instant | None) -> datetime | None:
    """None also for an instant that means never."""
    return None if instant is None or instant >= MAX_INSTANT else to_datetime(instant)
