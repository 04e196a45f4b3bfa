"""What callers get, as values that msgspec writes; the same types give the OpenAPI schemas.

Times are ISO 8601 in UTC, lengths are seconds, and a job is shown alike wherever it is shown.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Job, State
from forebay.core.limits import INSTANT_MOST

Count = Annotated[int, Meta(ge=0)]
StateName: TypeAlias = Literal["waiting", "ready", "running", "done", "dead", "cancelled"]
SECOND = 1_000_000


class Accepted(Struct, frozen=True, omit_defaults=True):
    """The job is in, and durable where the store is.

    merged   a job that still waited took over the payload (`LatestWins`): this is its id
    durable  it outlives a crash of the process and of the machine
    copies   of a job for a broker: the ids in its queues. `job_id` is the first of them, or 0: no route was for it
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
    """How far a running job says it is: `portion` from 0 to 1, a note, and when it was reported."""

    portion: float
    note: str
    at: datetime


class JobView(Struct, frozen=True):
    """One job as it was at that moment; `delivery` counts hand-outs and only ever grows.

    `home`: the queue that a dead job died in, where it lies in another one (`queue`).
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
    """In the order of their ids; go on with `after=next` until that is null. A page may be empty before."""

    jobs: list[JobView]
    next: int | None


class Cancelled(Struct, frozen=True):
    """cancelled: it will not run. requested: it runs, and its holder will be told. gone: it has ended."""

    job_id: int
    answer: Literal["cancelled", "requested", "gone"]


class Explained(Struct, frozen=True):
    job_id: int
    sentences: list[str]


class LeaseView(Struct, frozen=True):
    """A job in your hands until `until`. `lease` is the proof: send it back with /settle and /extend."""

    lease: str
    until: datetime
    job: JobView


class Leases(Struct, frozen=True):
    leases: list[LeaseView]


class SettledView(Struct, frozen=True):
    """applied: it counted. stale: somebody else has the job by now, and what was done does not count.

    `became` says what the verdict was: retry (after so many seconds), dead, done, released or cancelled.
    """

    job_id: int
    answer: Literal["applied", "stale"]
    became: Literal["done", "retry", "dead", "released", "cancelled"] | None = None
    after: float | None = None


class SettledAll(Struct, frozen=True):
    settled: list[SettledView]


class ExtendedView(Struct, frozen=True):
    """`cancel_requested`: somebody wants it to stop; settle it as cancelled when it has."""

    lease: str
    job_id: int
    answer: Literal["extended", "lost"]
    until: datetime | None = None
    cancel_requested: bool = False


class ExtendedAll(Struct, frozen=True):
    leases: list[ExtendedView]


class ReportedView(Struct, frozen=True):
    """stale: the job is in other hands. `cancel_requested`: somebody wants it to stop."""

    job_id: int
    answer: Literal["applied", "stale"]
    cancel_requested: bool = False


class ReportedAll(Struct, frozen=True):
    reports: list[ReportedView]


class Requeued(Struct, frozen=True):
    job_id: int
    status: Literal["requeued"]


class Redriven(Struct, frozen=True):
    """`next` null: there are no more; else go on with `after=next`. `looked_at`: how many dead letters were read.

    `ids` are those that live again, with a patch the new ones. `stopped`: why it ended early; `next` is where.
    """

    redriven: Count
    ids: list[int]
    looked_at: Count
    dry_run: bool
    next: int | None
    stopped: str | None = None


class Purged(Struct, frozen=True):
    """`next` null: there are no more; else go on with `after=next`. `looked_at`: how many dead letters were read.

    `ids` are those that were forgotten, or would be.
    """

    purged: Count
    ids: list[int]
    looked_at: Count
    dry_run: bool
    next: int | None


class CancelledMany(Struct, frozen=True):
    """`next` null: there are no more; else go on with `after=next`. `looked_at`: how many jobs were read.

    cancelled  they will not run;  requested: they run, and their workers are told to stop;  gone: they ended meanwhile
    ids        those that were chosen, in this order
    """

    cancelled: Count
    requested: Count
    gone: Count
    ids: list[int]
    looked_at: Count
    dry_run: bool
    next: int | None


class CauseView(Struct, frozen=True):
    """What killed jobs of one kind in one queue. `message` is without particulars, `example` the newest of them."""

    fingerprint: str
    queue: str
    kind: str
    error: str
    message: str
    count: Count
    example: int


class Causes(Struct, frozen=True):
    """What the dead letters that were read died of, most frequent first; go on with `after=next` and add up.

    `more`: so many causes, rarer than these, are left out.
    """

    causes: list[CauseView]
    more: Count
    looked_at: Count
    next: int | None


class BacklogView(Struct, frozen=True):
    """One queue at a glance.

    `oldest_age_s` is how long the oldest ready job has been due; a closed gate holds `held` of the ready ones;
    `blocked_lines` have a dead head that nothing may pass.
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
    """A queue as a point on five axes: in one line, axis by axis in words, and as the values that PUT takes."""

    name: str
    vector: str
    axes: dict[str, str]
    commit_point: str
    spec: Raw
    backlog: BacklogView | None


class Queues(Struct, frozen=True):
    """Go on with `after=next`; null: that was all."""

    queues: list[QueueView]
    next: str | None


class Paused(Struct, frozen=True):
    queue: str
    paused: bool
    until: datetime | None = None


class Stats(Struct, frozen=True):
    """Counts right now. `attempts_p99` is of jobs that ended; `attempts_from` says which ones were looked at.

    Of one queue, or of all together; then `queues` has the deepest ones one by one, `queues_total` says how many there
    are, and `whole` whether all of them were counted. What takes a look at each queue (ages, lines, attempts) is of the
    deepest ones then.
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
    whole: bool = True


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
    """The job that a schedule was made to enqueue. `duplicate`: its idempotency key was seen before."""

    name: str
    job_id: int
    duplicate: bool
    copies: tuple[int, ...] = ()


class Schedules(Struct, frozen=True):
    """Go on with `after=next`; null: that was all."""

    schedules: list[ScheduleView]
    next: str | None


class Extent(Struct, frozen=True):
    """`first` is the oldest offset still held, `next` the one to be written next."""

    partition: int
    first: int
    next: int


class LogView(Struct, frozen=True):
    name: str
    vector: str
    partitions: list[Extent]


class Logs(Struct, frozen=True):
    """Go on with `after=next`; null: that was all."""

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
    """Go on with `after=next`; `position` is what the group named in the question has committed."""

    entries: list[EntryView]
    next: int
    position: int | None = None


class Committed(Struct, frozen=True):
    group: str
    position: int


class StandingView(Struct, frozen=True):
    """`lag`: entries it has still to read; `lost`: entries that went before it had them; `loses_at`: when the next."""

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
    """Go on with `after=next`; null: there are no more."""

    groups: list[StandingView]
    next: str | None = None


class OwnedView(Struct, frozen=True):
    """Read after `position`, commit with `epoch`, own again before `until`."""

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
    """How much work waits, in seconds of one worker: `workers` is how many would have it done in `within` seconds."""

    queue: str
    depth: Count
    seconds_a_job: float | None
    work_seconds: float | None
    within: float
    workers: int | None
    looked_at: Count


def moment(instant: Instant | None) -> datetime | None:
    """None also for what has no end."""
    return None if instant is None or instant >= INSTANT_MOST else to_datetime(instant)


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
