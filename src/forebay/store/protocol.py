"""The contract of a store. Every store keeps it, and `forebay_proof.conformance` holds them to it.

Batch is the shape; one is a batch of one. Every verb is bounded (`limits.MAX_BATCH`), synchronous and atomic, and
durable before it returns wherever the store is. No verb takes "now": the store owns time. A store never computes a
backoff and never chooses between retry and dead letter; it stamps what core computed and moves state.

What a reply lost on the way means: `enqueue` with a key, `settle`, `fire` and `commit` may simply be called again.
A verb never blocks, but for those named `wait…`, which are there to, and `enqueue` into a queue whose capacity says
`Block`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.job import Draft, Job, Progress, State
from forebay.core.lease import Fence, Heartbeat, Lease, Settled, Settlement
from forebay.core.ledger import LedgerEntry, LedgerRule
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
    copies     what became of a draft for a broker: the ids in its queues, in the order of its routes. `id` is the first
               of them, or 0 where no route matched and the draft was dropped; `duplicate`, `merged`: all of them are
    """

    id: int
    durable: bool
    duplicate: bool = False
    merged: bool = False
    copies: tuple[int, ...] = ()


class Tally(Struct, frozen=True):
    """How far a stream of drafts has come: `taken` are those that are answered for, from the first one on."""

    taken: int = 0
    duplicates: int = 0
    merged: int = 0

    @classmethod
    def of(cls, receipts: Sequence[Receipt]) -> "Tally":
        return cls(len(receipts), sum(each.duplicate for each in receipts), sum(each.merged for each in receipts))

    def plus(self, more: "Tally") -> "Tally":
        return Tally(self.taken + more.taken, self.duplicates + more.duplicates, self.merged + more.merged)


class Checkpoint(Struct, frozen=True):
    """How far a source of drafts has come that may repeat itself: `taken` drafts of its `batch`, and their digest.

    The store moves it in the transaction that takes the drafts, so each draft is taken once, however often and however
    late it comes. Kept while the source moves and `limits.SOURCE_KEPT` beyond.
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
"""Of which delivery of which job, and how far it is."""


class Query(Struct, frozen=True):
    """Which jobs to show; every field that is set must match.

    `suspect`: whose last holder died with them, or only the others; dead and suspect is quarantined.
    """

    queue: str | None = None
    state: State | None = None
    kind: str | None = None
    tenant: str | None = None
    subject: str | None = None
    suspect: bool | None = None

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


class Page(Struct, frozen=True):
    """Jobs in the order of their ids; go on with `after=next`. `next` None: that was all. A page may be empty."""

    jobs: list[Job]
    next: int | None


class Backlog(Struct, frozen=True):
    """One queue at a glance.

    waiting     not due yet, or behind the head of their line
    ready       due, whether a gate holds them or not
    oldest_age  how long the oldest ready job has been due, in microseconds
    held        ready jobs behind a closed gate: all, where one of the whole queue is closed, else those of lanes that
                claims found closed; `limits.MAX_AHEAD` are counted
    blocked     lines (`InOrder`) with a dead head that nothing may pass; of the lines with dead jobs in them,
                `limits.MAX_BLOCKED` are looked at
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
    """All queues together: how many there are, and their jobs by state. `deepest`: those that hold most, in order."""

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

    slots     how many may run at once, for now; the operator's number, where there is one. A line has one
    used      slots that running jobs take; a job takes as many as it costs
    before    ready jobs of its lane, or jobs behind the head of its line, that go first; `limits.MAX_AHEAD` at most
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
    """A gate that running jobs use, a rate that starts are owed to, or one with an operator's number (`given`)."""

    name: str
    slots: int
    used: int
    given: int | None = None


class Capabilities(Struct, frozen=True):
    """What a store is; the conformance suite tests what is claimed here.

    order          exact: claims follow (rank, id);  banded: only approximately
    processes      how many processes may open it at once
    settle_memory  how many removed jobs it remembers in order to answer a repeated settle
    lease_grain    a lease may last this share longer than asked, never shorter
    unsafe         settings of the server behind it that break the store's promise, as it was seen last
    """

    name: str
    durable: bool
    order: Literal["exact", "banded"] = "exact"
    processes: Literal["one", "many"] = "one"
    settle_memory: int = 65_536
    lease_grain: float = 0.01
    unsafe: tuple[str, ...] = ()


class Store(Log, Protocol):
    """Where jobs live."""

    @property
    def capabilities(self) -> Capabilities: ...

    def now(self) -> Instant:
        """The store's clock: the only one that decides."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """One receipt per draft, all or nothing. `QueueFull`, `KeyConflict`, `WrongQueueKind` change nothing.

        A draft for a broker becomes its `core.fanout.copies`, all of them or none; with these a call has no more drafts
        than any other. Where `Shed` makes room, the jobs that give way die in the same step.
        """

    def promote(self, limit: int) -> Promotion:
        """waiting → ready, where due and first in line. `claim` does this for what it hands out.

        What outlived its time goes here too: jobs that were kept or expired, dead letters beyond their rule, entries
        that left the window of their log. `limit` bounds each of these. `next_due` is also when a rate opens.
        """

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        """Smallest (rank, id) first, within a class where classes share; attempt and delivery grow by one.

        Takes a slot of every gate of each claimed job, and never blocks. It returns fewer than wanted only if the queue
        is paused, each ready job has a gate without room for it, an earlier head waits for room at one of its
        gates, or `limits.LANES_MET` heads were met that could not start.
        """

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        """The survivors, with their new time and what their jobs look like now; the others are lost."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """The commit point: each applied if its fence is current, else STALE. Repeating it is APPLIED again.

        A verdict of abandonment is also STALE when the lease was renewed after the one it comes with was read.
        """

    def overdue(self, limit: int) -> list[Lease]:
        """Leases past their time, oldest first. Changes nothing: `overdue`, `decide` and `settle` are the reaper."""

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]: ...

    def redrive(self, ids: Sequence[int]) -> list[int]:
        """dead → waiting with all attempts back; delivery and past errors stay. Returns the ids that this call moved.

        A dead letter in another queue returns to its own, whose bound must have room for it.
        """

    def purge(self, state: State, before: Instant, limit: int, queue: str | None = None) -> int:
        """Remove finished jobs that ended before the instant, of all queues or of one; how many."""

    def discard(self, ids: Sequence[int]) -> list[int]:
        """Remove those of these jobs that are dead, in whichever queue; returns the ids that this call removed."""

    def report_progress(self, reports: Sequence[ProgressReport]) -> list[Settled]:
        """Progress of running jobs, for `get` to show; the newest report counts. STALE: the fence is not current.

        It ends with the delivery. A crash may lose it, and the ledger does not record it: nothing depends on it.
        """

    def get(self, ids: Sequence[int]) -> list[Job | None]: ...

    def browse(self, query: Query, after: int, limit: int) -> Page: ...

    def backlog(self, queues: Sequence[str] | None = None) -> list[Backlog]:
        """All queues that exist when none is named."""

    def queues(self, after: str, limit: int, prefix: str = "") -> list[str]:
        """Names of queues that are configured, paused or hold jobs and begin with the prefix, by name, behind `after`.

        A page: there may be any number of names, so servers read pages and not `backlog()`.
        """

    def totals(self, limit: int) -> Totals:
        """All queues together, and the `limit` deepest of them: by depth, then by dead letters, then by name."""

    def put_spec(self, spec: QueueSpec) -> None:
        """Gates of the spec hold at once, also for jobs already accepted, as far as these were stamped with them.

        A queue cannot become a log, nor a log a queue. An edge (a route, the way to dead letters) may lead to a queue
        that is not put yet, never to a log or a
        broker.
        """

    def specs(self) -> list[QueueSpec]: ...

    def pause(self, queue: str, until: Instant | None = None) -> None:
        """No claims from the queue until the instant, or until `resume`."""

    def resume(self, queue: str) -> None: ...

    def set_gate(self, name: str, limit: int | None) -> None:
        """Give a gate another number of slots; None goes back to the stamped one. Opens an `Until`.

        Of a rate it is the number that may start at once, and 0 closes it; its pace stays.
        """

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        """The first `count` ready jobs behind an `Until` pass it, and are never held by it again; how many.

        By rank; a job past its expiry dies instead and does not count. They take no slot of it, and still have to pass
        their other gates. Nothing is saved up for jobs that come later.
        """

    def gates(self, after: str, limit: int, prefix: str = "") -> list[GateUse]:
        """A page of the gates in use or with an operator's number whose names begin with the prefix, behind `after`."""

    def hold(self, job_id: int) -> Hold | None:
        """What holds this job; None: no gate does, or there is no such job. Changes nothing."""

    def ahead(self, job_id: int) -> int | None:
        """How many ready jobs of its lane go before this one, `limits.MAX_AHEAD` at most; None: it is not ready."""

    def put_schedule(self, schedule: Schedule) -> None:
        """Create or edit; `last_at` and, while it exists, `last_job` stay what they were, whatever it says.

        `next_at` moves only when rule or zone do, when it is resumed, or when its slot was taken (`schedule.edited`).
        """

    def drop_schedule(self, name: str) -> bool: ...

    def schedules(self) -> list[Schedule]: ...

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        """Take the slot (name, tick) and enqueue its job in one step; False when it was taken or moved.

        Without a draft the slot is given up: the schedule moves on and nothing is enqueued.
        """

    def announce(self, presence: Presence, keep_for: timedelta) -> None:
        """Keep the presence of a worker, until the time is up or it announces itself again.

        `since` and `seen_at` are the store's. Nothing of it is written to the ledger.
        """

    def withdraw(self, owner: str) -> bool:
        """Forget what this worker announced; False when nothing was known of it."""

    def workers(self, after: str, limit: int) -> list[Presence]:
        """Workers whose time is not up, by owner; go on with the last owner, begin with an empty one."""

    def ingested(self, source: str) -> Checkpoint | None:
        """How far a source of drafts has come; None: nothing of it is known."""

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        """Take up to `limits.MAX_INGEST` drafts and move the source on, both or neither. None: it is not at `before`.

        `BatchTooLarge`: their bytes are more than one record of a journal holds, where the store has one.
        """

    def replace_dead(self, pairs: Sequence[tuple[int, Draft]]) -> list[Receipt | None]:
        """Each dead job is gone and its draft is in, both or neither. None: there is no such dead job (any more)."""

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        """Up to `limit` records with an offset greater than `after` (-1: from the start), without a gap.

        The ledger of `core.ledger`: one record a mutating call, in its transaction. A store that keeps nothing on disk
        may have one that is off and empty. `OffsetGone` when records were trimmed. A record that commits late is never
        behind one that was read.
        """

    def ledger_extent(self) -> tuple[int, int]:
        """The first offset still held, and the next one to be given."""

    def ledger_rule(self) -> LedgerRule: ...

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        """For every process that uses the store, from its next call on. `Unsupported`: it cannot be switched on."""

    def trim_ledger(self, limit: int) -> int:
        """Drop up to `limit` records that the rule no longer keeps, oldest first; returns how many."""

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        """Sleep until a claim or a reaping may find something, or one of them is a log and grew; a hint.

        False: the time passed.
        """

    def wait_ended(self, ids: Sequence[int], timeout: timedelta) -> list[int]:
        """Sleep until some of these jobs have ended: done, dead, cancelled or gone; those that have.

        None of them: the time passed. A job that is kept, dies or is cancelled is noticed at once; one that goes with
        its acknowledgement, or whose notification was lost, within a second.
        """

    def wait_cancel_requests(self, owner: str, timeout: timedelta, known: Collection[Fence] = ()) -> list[Fence]:
        """Sleep until the end is requested of jobs that this owner runs, other than the known ones; those.

        None of them: the time passed. A store may answer only to the process that claimed them.
        """

    def close(self) -> None: ...


@runtime_checkable
class Streaming(Protocol):
    """What a store may have besides: a way in for millions. `forebay.store.streams` works on every store."""

    def enqueue_stream(self, drafts: Iterable[Draft], progress: Callable[[Tally], object]) -> Tally:
        """Any number of drafts, read as it goes, in bounded memory. `progress` is called with what is durable."""


@runtime_checkable
class Pipelining(Protocol):
    """What a store may have besides: verdicts that ride on the next claim, in one round trip and one commit."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        """As `settle`, then `claim`. When it fails both may have happened: settle again, claim anew."""


class Vitals(Struct, frozen=True):
    """The state of the server behind a store, as far as it can be read.

    settings   what decides whether a commit outlives a crash, by name: `fsync`, …
    writable   False on a standby, or where it was made read-only
    held       seconds for which the oldest of the long transactions has been open; 0: there is none
    dead_rows  by table: what is yet to be cleared away
    listening  whether notifications of other processes arrive; None: no thread of this process has waited yet
    """

    settings: dict[str, str]
    writable: bool
    held: float
    dead_rows: dict[str, int]
    connections: int
    max_connections: int
    listening: bool | None


@runtime_checkable
class Inspecting(Protocol):
    """What a store behind a server may have besides: one bounded read of its state, which changes nothing."""

    def vitals(self) -> Vitals: ...


@runtime_checkable
class Transacting(Protocol):
    """What a store may have besides: a handler's transaction, which commits with the end of its job or not at all.

    The job is settled by `verdict` inside that transaction, just before its commit. `LeaseLost`: rolled back.
    """

    def transaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AbstractContextManager[Any]: ...

    def atransaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AbstractAsyncContextManager[Any]: ...

    def settle_in(self, connection: object, lease: Lease, verdict: Verdict) -> Callable[[], None]:
        """Settle the job in the transaction of the caller's own connection. What is returned is for after its commit.

        `LeaseLost`: the caller must roll back.
        """


@runtime_checkable
class Exporting(Protocol):
    """What a store may have besides: all jobs of a range of ids in its own form, quicker than page by page."""

    def id_extent(self) -> tuple[int, int]:
        """The first and the last id that may exist; (1, 0) where there is none."""

    def export(self, query: Query, first: int, last: int) -> Iterator[tuple[str, list[str], bytes]]:
        """Blocks of whole CSV rows: whether of "runs" or "ended", their columns, the rows. One snapshot for all.

        Rows may hold jobs outside of the range, and jobs that do not match by kind, tenant or subject.
        """


@runtime_checkable
class Beating(Protocol):
    """What a store may have besides: one heartbeat for all that an owner has claimed, done or under way."""

    def beat(self, leases: Sequence[Lease], lease_for: timedelta) -> Heartbeat: ...


OPTIONAL: Final = (Streaming, Pipelining, Inspecting, Transacting, Exporting, Beating)
"""What some stores have besides the contract, each whole or not at all. Who uses one has another way without it."""
