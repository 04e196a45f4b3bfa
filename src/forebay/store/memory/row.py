"""The mutable record behind an immutable `Job`: one `Row` a job, changed in place by `facts.py` and by nobody else.

Rows are values without cycles, so the garbage collector need not walk a million of them (`gc=False`), and they encode
as they are into a snapshot.
"""

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.entries import Entry, Merge
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.outcome import Failure
from forebay.core.rank import rank_at
from forebay.engine.settle import Mark


class Row(Struct, array_like=True, gc=False):
    """`mark`: of the last settle, so that repeating it is answered alike. `home` as a `Job` has it."""

    entry: Entry
    state: State
    enqueued_at: Instant
    due_at: Instant
    rank: int
    attempt: int = 0
    delivery: int = 0
    owner: str | None = None
    claimed_at: Instant | None = None
    lease_until: Instant = 0
    finished_at: Instant = 0
    kept_until: Instant = 0
    cancel_requested: bool = False
    errors: tuple[Failure, ...] = ()
    result: bytes | None = None
    mark: Mark = (0, "")
    home: str | None = None

    @property
    def queue(self) -> str:
        """Where it belongs, wherever it lies when it is dead."""
        return self.home or self.entry.queue

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def rank_base(self) -> int:
        return self.entry.rank_base

    @property
    def rank_timed(self) -> int:
        return self.entry.rank_timed

    @property
    def cost(self) -> int:
        return self.entry.cost

    @property
    def expires_at(self) -> Instant | None:
        return self.entry.expires_at

    @property
    def suspect(self) -> bool:
        """As a `Job` says it."""
        return bool(self.errors) and self.errors[-1].abandoned

    def restamp(self, due_at: Instant, now: Instant) -> None:
        """A new due time is a new place in the line."""
        self.due_at = due_at
        self.rank = rank_at(self.entry.rank_base, self.entry.rank_timed, due_at, now)

    def take_over(self, merge: Merge, now: Instant) -> None:
        """Newer work, and how urgent it is; where the row stands is its own."""
        newer, base = merge.newer, self.entry.rank_base
        self.entry = replace(self.entry, kind=merge.kind, body=merge.body)
        if newer is None:
            return
        self.entry = replace(
            self.entry,
            priority=newer.priority,
            rank_base=newer.rank_base,
            deadline=newer.deadline,
            expires_at=newer.expires_at,
            meta=newer.meta,
        )
        if newer.due_at is None:
            self.rank += newer.rank_base - base
        else:
            self.restamp(newer.due_at, now)

    def picture(self) -> Job:
        """The immutable `Job` that leaves the store."""
        entry = self.entry
        running = self.state is State.RUNNING
        return Job(
            entry.id,
            entry.queue,
            entry.kind,
            entry.body,
            self.state,
            entry.priority,
            self.enqueued_at,
            self.due_at,
            self.attempt,
            entry.max_attempts,
            self.delivery,
            entry.key,
            entry.tenant,
            entry.subject,
            entry.deadline,
            entry.expires_at,
            None if entry.meta is None else dict(entry.meta),
            self.owner,
            self.claimed_at,
            self.lease_until if running else None,
            self.finished_at or None,
            self.cancel_requested,
            self.errors,
            self.result,
            entry.cost,
            self.home,
        )
