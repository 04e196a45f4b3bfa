"""The contract of a store. Every store keeps it, and `forebay_proof.conformance` holds them to it.

Batch is the shape; one is a batch of one. Every verb is bounded (`limits.MAX_BATCH`), synchronous and atomic, and
durable before it returns wherever the store is. No verb takes "now": the store owns time. A store never computes a
backoff and never chooses between retry and dead letter; it stamps what core computed and moves state.

After a lost reply, `enqueue` with a key, `settle`, `fire` and `commit` may be called again. A verb never blocks, except
those named `wait…` and `enqueue` into a full queue whose capacity is `Block`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

from msgspec import Struct

from forebay.core.content import Conditions, checked_conditions
from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.job import Draft, Job, Progress, State
from forebay.core.lease import Fence, Heartbeat, Lease, Settled, Settlement
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.limits import MAX_BATCH
from forebay.core.names import check_name, check_text
from forebay.core.outcome import Verdict
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.log import Log


class Receipt(Struct, frozen=True):
    """The answer to one draft: the job's id, and whether this call created it.

    duplicate  the key was seen within its window: this is the first job's id
    merged     a waiting job took over the payload (`LatestWins`): this is its id
    durable    the job outlives a crash of the process and of the machine
    copies     of a draft for a broker: the ids in its queues, in the order of the routes. `id` is the first of them, or
               0 if no route matched and the draft was dropped; `duplicate` and `merged` hold for all of them
    """

    id: int
    durable: bool
    duplicate: bool = False
    merged: bool = False
    copies: tuple[int, ...] = ()


class Tally(Struct, frozen=True):
    """The position in a stream of drafts: the first `taken` drafts have been accepted."""

    taken: int = 0
    duplicates: int = 0
    merged: int = 0

    @classmethod
    def of(cls, receipts: Sequence[Receipt]) -> "Tally":
        return cls(len(receipts), sum(each.duplicate for each in receipts), sum(each.merged for each in receipts))

    def plus(self, more: "Tally") -> "Tally":
        return Tally(self.taken + more.taken, self.duplicates + more.duplicates, self.merged + more.merged)


class Checkpoint(Struct, frozen=True):
    """The position of a source that may repeat drafts: `taken` drafts of its `batch`, and their digest.

    The store moves it in the transaction that accepts the drafts, so each draft is accepted once, however often it is
    sent. It is kept for `limits.SOURCE_KEPT` after its last change.
    """

    batch: int
    taken: int
    digest: bytes


class Want(Struct, frozen=True):
    """Up to `count` jobs of a queue; with `cls`, only of that class."""

    queue: str
    count: int
    cls: str | None = None


class Promotion(Struct, frozen=True):
    """How many jobs became ready, and when the next one is due."""

    ready: int
    next_due: Instant | None


class CancelAnswer(StrEnum):
    """CANCELLED: it will not run. REQUESTED: it runs, its holder is notified. GONE: unknown or finished."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    GONE = "gone"


ProgressReport: TypeAlias = tuple[Fence, Progress]
"""The progress of one delivery of a job."""


class Query(Struct, frozen=True):
    """Which jobs to show; every field that is set must match.

    `suspect`: only jobs whose last holder died, or only the others; a dead suspect is quarantined.
    `meta`, `payload`: what they carry (`core.content`). A page reads `limits.CONTENT_SCAN` jobs that match the rest,
    or that many of an index on one of them.
    """

    queue: str | None = None
    state: State | None = None
    kind: str | None = None
    tenant: str | None = None
    subject: str | None = None
    suspect: bool | None = None
    meta: Conditions = ()
    payload: Conditions = ()

    def __post_init__(self) -> None:
        for field, name in (("queue", self.queue), ("kind", self.kind), ("tenant", self.tenant)):
            if name is not None:
                check_name(field, name)
        if self.subject is not None:
            check_text("subject", self.subject)
        if self.state is not None and type(self.state) is not State:
            raise Invalid("state", f"{self.state!r} is not a State", f"use {', '.join(State)}")
        if self.suspect is not None and type(self.suspect) is not bool:
            raise Invalid("suspect", f"{self.suspect!r} is not a boolean", "say True, False, or nothing")
        checked_conditions("meta", self.meta)
        checked_conditions("payload", self.payload)

    def admits(self, job: Job) -> bool:
        """Whether the job matches, whatever it carries."""
        return all(
            wanted is None or wanted == found
            for wanted, found in (
                (self.queue, job.queue),
                (self.state, job.state),
                (self.kind, job.kind),
                (self.tenant, job.tenant),
                (self.subject, job.subject),
                (self.suspect, job.suspect),
            )
        )


class JobFields(TypedDict, total=False):
    """Fields of a `Query`; a state also by its name."""

    queue: str | None
    state: State | str | None
    kind: str | None
    tenant: str | None
    subject: str | None
    suspect: bool | None


class Page(Struct, frozen=True):
    """Jobs in the order of their ids; continue with `after=next`. `next` None: the last page. A page may be empty."""

    jobs: list[Job]
    next: int | None


class Backlog(Struct, frozen=True):
    """One queue at a glance.

    waiting     not due yet, or behind the head of their line
    ready       due, whether a gate holds them or not
    oldest_age  how long the oldest ready job has been due, in microseconds
    held        ready jobs behind a closed gate: all of them if a gate of the whole queue is closed, else those of
                lanes that claims found closed; at most `limits.MAX_AHEAD` are counted
    blocked     lines (`InOrder`) that a dead head blocks; at most `limits.MAX_BLOCKED` lines with dead jobs are
                examined
    """

    queue: str
    waiting: int
    ready: int
    running: int
    done: int
    dead: int
    cancelled: int
    oldest_age: int
    paused_until: Instant | None
    keys: int
    held: int = 0
    blocked: int = 0

    @property
    def depth(self) -> int:
        """What counts against the capacity."""
        return self.waiting + self.ready + self.running


class Totals(Struct, frozen=True):
    """All queues together: how many there are, and their jobs by state. `deepest`: the largest, in order."""

    deepest: list[Backlog]
    queues: int
    waiting: int
    ready: int
    running: int
    done: int
    dead: int
    cancelled: int


class Hold(Struct, frozen=True):
    """What holds a due job: a closed gate of its queue or lane, or the line in which it is not the first.

    slots     how many may run at once; the operator's number if there is one. A line has one
    used      slots that running jobs take; a job takes as many as it costs
    before    ready jobs of its lane, or jobs of its line, that are ahead of it; at most `limits.MAX_AHEAD`
    head      of a line: its first job that has not finished, which may be dead
    opens_at  of a rate: when it admits the next job; None: only an operator can open it
    """

    gate: str
    slots: int
    used: int
    before: int
    head: int | None = None
    opens_at: Instant | None = None


class GateUse(Struct, frozen=True):
    """A gate that running jobs use, a rate with unpaid starts, or a gate with an operator's number (`given`).

    parked  ready jobs of the lanes that claims parked here, 0 once it has room; at most `limits.MAX_PARKED` are
            counted. A gate of a whole queue parks nothing: see `Backlog.held`
    """

    name: str
    slots: int
    used: int
    given: int | None = None
    parked: int = 0


class Capabilities(Struct, frozen=True):
    """The properties of a store; the conformance suite tests them.

    order          exact: claims follow (rank, id);  banded: only approximately
    processes      how many processes may open it at once
    settle_memory  of how many removed jobs it keeps the last settle, in order to answer a repeated one
    lease_grain    a lease may last longer than requested by this fraction, never shorter
    unsafe         settings of the server that break the store's durability, when last read
    """

    name: str
    durable: bool
    order: Literal["exact", "banded"] = "exact"
    processes: Literal["one", "many"] = "one"
    settle_memory: int = 65_536
    lease_grain: float = 0.01
    unsafe: tuple[str, ...] = ()


class Store(Log, Protocol):
    """The interface of every store."""

    @property
    def capabilities(self) -> Capabilities: ...

    def now(self) -> Instant:
        """The time of the store's clock, which decides what is due and what has expired."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """One receipt per draft, all or nothing. `QueueFull`, `KeyConflict`, `WrongQueueKind` change nothing.

        A draft for a broker becomes its `core.fanout.copies`, all of them or none; they count towards the size of the
        call. If the capacity is `Shed`, the jobs that are shed become dead letters in the same step.
        """

    def promote(self, limit: int) -> Promotion:
        """waiting → ready, for jobs that are due and first in their line. `claim` does so for the jobs it returns.

        Also removes what is past its time: finished jobs that were kept, dead letters beyond their rule, entries beyond
        the window of their log; and dead-letters expired jobs. `limit` bounds each of these. `next_due` is also when a
        rate opens.
        """

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        """Smallest (rank, id) first, within a class where classes share; attempt and delivery grow by one.

        Takes a slot of every gate of each claimed job, and never blocks. It returns fewer than requested only if the
        queue is paused, every ready job has a gate without free slots or with an earlier head waiting at it, or
        `limits.LANES_MET` heads could not start.
        """

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        """The extended leases with their jobs as they are now; leases that are not returned are lost."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """The commit point: each applied if its fence is current, else STALE. Repeating it is APPLIED again.

        A verdict about a lost holder is also STALE if the lease was renewed after it was read.
        """

    def overdue(self, limit: int) -> list[Lease]:
        """Expired leases, oldest first. Changes nothing: the reaper calls `overdue`, `decide` and `settle`."""

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        """Cancel jobs that no worker holds, and request the end of those that run. An answer for each id."""

    def redrive(self, ids: Sequence[int]) -> list[int]:
        """dead → waiting with all attempts back; delivery and past errors stay. Returns the ids that this call moved.

        A dead letter in another queue returns to its own queue, which must have capacity for it.
        """

    def purge(self, state: State, before: Instant, limit: int, queue: str | None = None) -> int:
        """Remove finished jobs that ended before the instant, of all queues or of one; returns how many."""

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        """Remove those of these jobs that are dead, in whichever queue; returns the ids that this call removed."""

    def report_progress(self, reports: Sequence[ProgressReport]) -> list[Settled]:
        """Progress of running jobs, for `get` to show; the newest report counts. STALE: the fence is not current.

        It ends with the delivery. A crash may lose it, and the ledger does not record it: nothing depends on it.
        """

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        """The jobs with these ids; None where the store has none."""

    def browse(self, query: Query, after: int, limit: int) -> Page:
        """A page of the jobs that match, by id, after `after`."""

    def backlog(self, queues: Sequence[str] | None = None) -> list[Backlog]:
        """Without names: all queues that exist."""

    def queues(self, after: str, limit: int, prefix: str = "") -> list[str]:
        """A page of the names, after `after`, of queues with this prefix that are configured, paused or hold jobs.

        There may be any number of queues, so servers read these pages instead of `backlog()`.
        """

    def totals(self, limit: int) -> Totals:
        """All queues together, and the `limit` deepest of them: by depth, then by dead letters, then by name."""

    def put_spec(self, spec: QueueSpec) -> None:
        """Gates of the spec hold at once, also for jobs already accepted, as far as these were stamped with them.

        A queue cannot become a log, nor a log a queue. A route or a dead-letter target may name a queue
        that does not exist yet, but not a log or a broker.

        Not bounded: a spec with other gates or shares examines every lane with ready jobs and counts every running job
        of the queue; how long that takes is in decision 0027. On Redis claims examine the lanes, some at a time.
        """

    def specs(self) -> list[QueueSpec]:
        """Every spec that was put."""

    def pause(self, queue: str, until: Instant | None = None) -> None:
        """No claims from the queue until the instant, or until `resume`."""

    def resume(self, queue: str) -> None:
        """End the pause of a queue."""

    def set_gate(self, name: str, limit: int | None) -> None:
        """Set the number of slots of a gate; None restores that of the spec. Opens an `Until`.

        For a rate it is the number that may start at once, and 0 closes it; the rate itself stays.
        """

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        """Admit the first `count` ready jobs behind an `Until` permanently; returns how many.

        By rank. An expired job becomes a dead letter instead and does not count. They take no slot of it; their other
        gates still apply. Later jobs are not admitted. Bounded by `count`, but not in lanes: except on Redis, the
        place of each lane behind the condition is read, however few jobs are admitted (decision 0027).
        """

    def gates(self, after: str, limit: int, prefix: str = "") -> list[GateUse]:
        """A page of the gates with this prefix, after `after`, that are in use or have an operator's number."""

    def hold(self, job_id: int) -> Hold | None:
        """What holds this job; None: no gate holds it, or it does not exist. Changes nothing."""

    def ahead(self, job_id: int) -> int | None:
        """How many ready jobs of its lane are ahead of this one, at most `limits.MAX_AHEAD`; None: it is not ready."""

    def put_schedule(self, schedule: Schedule) -> None:
        """Create or edit; the stored `last_at` and `last_job` are kept.

        `next_at` changes only with the rule or the zone, on resume, or if its slot was fired (`schedule.edited`).
        """

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; False if there was none."""

    def schedules(self) -> list[Schedule]:
        """Every schedule."""

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        """Fire the slot (name, tick) and enqueue its job in one step; False if it was fired already or has moved.

        Without a draft the slot is skipped: the schedule moves on and nothing is enqueued.
        """

    def announce(self, presence: Presence, keep_for: timedelta) -> None:
        """Keep the presence of a worker for this long, or until it announces itself again.

        The store sets `since` and `seen_at`. The ledger does not record it.
        """

    def withdraw(self, owner: str) -> bool:
        """Delete the presence of a worker; False if there was none."""

    def workers(self, after: str, limit: int) -> list[Presence]:
        """A page of the present workers by owner, after `after`; begin with an empty string."""

    def ingested(self, source: str) -> Checkpoint | None:
        """The position of a source of drafts; None: the source is unknown."""

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        """Accept up to `limits.MAX_INGEST` drafts and move the source, both or neither. None: it is not at `before`.

        `BatchTooLarge`: they do not fit into one record of the store's journal. `HalfIngested`, only with cells: a
        batch with another end was interrupted between two of them, and has to be finished first.
        """

    def replace_dead(self, pairs: Sequence[tuple[int, Draft]]) -> list[Receipt | None]:
        """Replace each dead job by its draft, both or neither; new jobs come in this order. None: no such dead job.

        `Invalid`: a draft has a key. It could be a duplicate of the very job that it replaces.
        """

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        """Up to `limit` records with an offset greater than `after` (-1: from the start), without a gap.

        The ledger of `core.ledger`: one record a mutating call, in its transaction. A store that keeps nothing on disk
        may have one that is off and empty. `OffsetGone` when records were trimmed. A record that commits late is never
        behind one that was read.
        """

    def ledger_extent(self) -> tuple[int, int]:
        """The first offset still held, and the next one to be given."""

    def ledger_rule(self) -> LedgerRule:
        """What the ledger records and how much of it is kept."""

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        """Holds for every process that uses the store, from its next call on. `Unsupported`: it cannot be on."""

    def trim_ledger(self, limit: int) -> int:
        """Drop up to `limit` records that the rule no longer keeps, oldest first; returns how many."""

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        """Sleep until a claim or the reaper may find something, or one of them is a log and grew; a hint.

        False: the timeout passed.
        """

    def wait_ended(self, ids: Sequence[int], timeout: timedelta) -> list[int]:
        """Sleep until some of these jobs have ended (done, dead, cancelled or deleted); returns those.

        An empty result: the timeout passed. A job that is kept, dead or cancelled is noticed at once; one that is
        deleted with its acknowledgement, or whose notification was lost, within a second.
        """

    def wait_cancel_requests(self, owner: str, timeout: timedelta, known: Collection[Fence] = ()) -> list[Fence]:
        """Sleep until a cancel is requested of jobs that this owner runs, other than the known ones; returns those.

        An empty result: the timeout passed. A store may report only to the process that claimed them.
        """

    def close(self) -> None:
        """Close the store; further calls raise `Closed`."""


def matching(store: Store, query: Query, after: int = 0) -> Iterator[Job]:
    """Every job that matches, by id, page by page."""
    following: int | None = after
    while following is not None:
        page = store.browse(query, following, MAX_BATCH)
        yield from page.jobs
        following = page.next


@runtime_checkable
class Streaming(Protocol):
    """Optional: bulk enqueue of millions of drafts. `forebay.store.streams` works on every store."""

    def enqueue_stream(self, drafts: Iterable[Draft], progress: Callable[[Tally], object]) -> Tally:
        """Any number of drafts from an iterator, in bounded memory. `progress` is called with what is durable."""


@runtime_checkable
class Pipelining(Protocol):
    """Optional: verdicts and the next claim in one round trip and one commit."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        """As `settle`, then `claim`. If it fails, both may have happened: settle again, then claim."""


class Vitals(Struct, frozen=True):
    """The state of the server behind a store, as far as it can be read.

    settings   what decides whether a commit outlives a crash, by name: `fsync`, …
    writable   False on a standby, or where it was made read-only
    held       seconds for which the oldest long transaction has been open; 0: there is none
    dead_rows  by table: rows that are not vacuumed yet
    listening  whether notifications of other processes arrive; None: no thread of this process has waited yet
    standbys   by name: bytes of the log that a standby has yet to replay
    slots      by name: bytes of the log that the server keeps for a replication slot that nothing reads
    """

    settings: dict[str, str]
    writable: bool
    held: float
    dead_rows: dict[str, int]
    connections: int
    max_connections: int
    listening: bool | None
    standbys: dict[str, int] = {}
    slots: dict[str, int] = {}


@runtime_checkable
class Inspecting(Protocol):
    """Optional, for stores on a server: one bounded read of the server's state."""

    def vitals(self) -> Vitals: ...


@runtime_checkable
class Transacting(Protocol):
    """Optional: a handler's transaction that commits together with the settle of its job.

    The job is settled by `verdict` inside that transaction, just before its commit. `LeaseLost`: rolled back.
    """

    def transaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AbstractContextManager[Any]: ...

    def atransaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AbstractAsyncContextManager[Any]: ...

    def settle_in(self, connection: object, lease: Lease, verdict: Verdict) -> Callable[[], None]:
        """Settle the job in the transaction of the caller's own connection. Call what it returns after the commit.

        `LeaseLost`: the caller must roll back.
        """


@runtime_checkable
class Exporting(Protocol):
    """Optional: all jobs of a range of ids in the store's own format, faster than page by page."""

    def id_extent(self) -> tuple[int, int]:
        """The first and the last id that may exist; (1, 0) if there is none."""

    def export(self, query: Query, first: int, last: int) -> Iterator[tuple[str, list[str], bytes]]:
        """Blocks of whole CSV rows: whether of "runs" or "ended", their columns, the rows. One snapshot for all.

        Rows may hold jobs outside of the range, and jobs that do not match by kind, tenant or subject.
        """


@runtime_checkable
class Beating(Protocol):
    """Optional: one heartbeat for all leases of an owner."""

    def beat(self, leases: Sequence[Lease], lease_for: timedelta) -> Heartbeat: ...


@runtime_checkable
class Cellular(Protocol):
    """Optional: cells, each a store with a ledger of its own. Ids are those of the whole."""

    def cells(self) -> dict[str, Store]: ...

    def home(self, job_id: int) -> Store | None:
        """The cell of a job; None: no cell has such ids."""

    def homes(self, queue: str) -> list[str]:
        """The cells in which jobs of a queue live; first the one that it leaves."""

    def held_by(self, job: Job) -> str | None:
        """The cell whose jobs of this queue have to finish before this one starts; None: there is none."""


OPTIONAL: Final = (Streaming, Pipelining, Inspecting, Transacting, Exporting, Beating, Cellular)
"""The optional parts of the contract. Their callers work without them, too."""
