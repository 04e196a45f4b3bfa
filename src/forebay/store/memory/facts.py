"""Everything that the in-process store must not lose, by table; `changes.apply` is the one way to change it.

Facts have no heaps, lanes or waiters: those are derived (`index.py`) and rebuilt from the rows. A `JobRow` is the
mutable record behind an immutable `Job`. Rows are values without cycles, so the garbage collector need not walk a
million of them (`gc=False`), and they encode as they are into a snapshot.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.changeset import LedgerChange, LogChange, StoredRecord
from forebay.core.entries import Entry, Ingested, LogEntry, Merge
from forebay.core.instant import Instant, micros
from forebay.core.job import Job, State
from forebay.core.ledger import LedgerRule
from forebay.core.limits import MAX_INSTANT, SETTLE_MEMORY, SOURCE_KEPT
from forebay.core.outcome import Failure
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.core.stamp import rank_at
from forebay.engine.intake import KeyFact
from forebay.engine.logs import Holding
from forebay.engine.settle import Mark
from forebay.store.memory.heaps import Deadlines

_SOURCE_KEPT: Final = micros(SOURCE_KEPT)
_AT: Final = attrgetter("at")

KeyName = tuple[str, str]
"""A queue and an idempotency key."""
GroupName = tuple[str, str]
"""A log and a group of its readers."""
GroupPartition = tuple[str, str, int]
"""A log, a group, a partition."""


class JobRow(Struct, array_like=True, gc=False):
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
        """The queue it belongs to, even where its dead letter is in another one."""
        return self.home or self.entry.queue

    @property
    def id(self) -> int:
        return self.entry.id

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state.terminal

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

    def is_expired(self, now: Instant) -> bool:
        expires_at = self.entry.expires_at
        return expires_at is not None and expires_at <= now

    @property
    def suspect(self) -> bool:
        """As a `Job` says it."""
        return bool(self.errors) and self.errors[-1].abandoned

    def restamp(self, due_at: Instant, now: Instant) -> None:
        """Another due time, and the rank that follows from it."""
        self.due_at = due_at
        self.rank = rank_at(self.entry.rank_base, self.entry.rank_timed, due_at, now)

    def take_over(self, merge: Merge, now: Instant) -> None:
        """The payload and urgency of a newer draft; the row keeps its due time, unless the draft has moved it."""
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

    def job(self) -> Job:
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


class LedgerState(Struct, array_like=True):
    """Records from `first` on; `next` is the offset of the one to come, `size` the bytes of those in between."""

    first: int = 0
    next: int = 0
    size: int = 0
    rule: LedgerRule = LedgerRule()

    def add(self, record: StoredRecord) -> None:
        self.next = record.offset + 1
        self.size += len(record.record)

    def apply(self, change: LedgerChange) -> None:
        if change.rule is not None:
            self.rule = change.rule
        else:
            self.first = change.first
            self.size -= change.freed


class Partition:
    """Entries from `first` on; `next` is the offset of the one to come."""

    __slots__ = ("_entries", "_gone", "first")

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self._entries: list[LogEntry] = []
        self._gone = 0

    @property
    def next(self) -> int:
        return self.first + len(self._entries) - self._gone

    def append(self, entry: LogEntry) -> None:
        self._entries.append(entry)

    def read(self, after: int, limit: int) -> list[LogEntry]:
        start = after + 1 - self.first + self._gone
        return self._entries[start : start + limit]

    def before(self, instant: Instant) -> int:
        """The last offset that was appended before the instant; the one before the first that is held, if none was."""
        return bisect_left(self._entries, instant, self._gone, key=_AT) - self._gone + self.first - 1

    def trim(self, before: int) -> None:
        """The freed front is given back once it is half of the list: amortised O(1) an entry."""
        self._gone += before - self.first
        self.first = before
        if self._gone * 2 > len(self._entries):
            del self._entries[: self._gone]
            self._gone = 0


class LogsByName:
    """All logs of a store by name.

    positions  the last offset that a group committed in a partition
    owners     the member of a group that reads a partition, and in which epoch
    members    until when each member of a group is alive
    seen       the groups of a log, and when each last committed or owned
    lost       how many entries left a partition before the group had read them
    """

    def __init__(self) -> None:
        self.partitions: dict[str, list[Partition]] = {}
        self.positions: dict[GroupPartition, int] = {}
        self.owners: dict[GroupPartition, tuple[str | None, int]] = {}
        self.members: dict[GroupName, dict[str, Instant]] = {}
        self.seen: dict[str, dict[str, Instant]] = {}
        self.lost: dict[GroupPartition, int] = {}

    def position(self, log: str, group: str, partition: int) -> int:
        return self.positions.get((log, group, partition), -1)

    def holding(self, log: str, group: str, partition: int) -> Holding:
        member, epoch = self.owners.get((log, group, partition), (None, 0))
        until = 0 if member is None else self.members[log, group][member]
        return Holding(member, epoch, until)

    def holdings(self, log: str, group: str) -> list[Holding]:
        return [self.holding(log, group, number) for number in range(len(self.partitions[log]))]

    def create(self, spec: QueueSpec) -> None:
        """A log with its partitions; more may be added later, never fewer: offsets are for ever."""
        assert isinstance(spec.retention, Retained)
        partitions = self.partitions.setdefault(spec.name, [])
        partitions.extend(Partition() for _ in range(spec.retention.partitions - len(partitions)))

    def apply(self, change: LogChange, at: Instant) -> None:
        log, group, partitions = change.log, change.group, self.partitions[change.log]
        for entry in change.entries:
            partitions[entry.partition].append(entry)
        for number, offset in change.committed.items():
            self.positions[log, group, number] = offset
        for number, before in change.trimmed.items():
            self._trim(log, number, before)
        if change.committed or change.until:
            self.seen.setdefault(log, {})[group] = at
        if change.member is not None:
            self._own(change, change.member, at)

    def _trim(self, log: str, number: int, before: int) -> None:
        partition = self.partitions[log][number]
        for group in self.seen.get(log, ()):
            missed = before - max(partition.first, self.position(log, group, number) + 1)
            if missed > 0:
                self.lost[log, group, number] = self.lost.get((log, group, number), 0) + missed
        partition.trim(before)

    def _own(self, change: LogChange, member: str, at: Instant) -> None:
        """Members whose time is over are dropped once they own nothing; there are never more than partitions."""
        log, group, epochs = change.log, change.group, change.owned
        busy = set()
        for number in range(len(self.partitions[log])):
            owner, epoch = self.owners.get((log, group, number), (None, 0))
            if number in epochs:
                owner, epoch = member, epochs[number]
            elif owner == member:
                owner = None
            if epoch:
                self.owners[log, group, number] = (owner, epoch)
            busy.add(owner)
        members = self.members.setdefault((log, group), {})
        members[member] = change.until
        for name in [name for name, until in members.items() if until <= at and name not in busy]:
            del members[name]


class Facts:
    """The durable state of one store."""

    def __init__(self) -> None:
        self.next_id = 1
        self.last_at: Instant = 0
        self.rows: dict[int, JobRow] = {}
        self.keys: dict[KeyName, KeyFact] = {}
        self.specs: dict[str, QueueSpec] = {}
        self.paused: dict[str, Instant] = {}
        self.gate_limits: dict[str, int] = {}
        self.tats: dict[str, Instant] = {}
        self.schedules: dict[str, Schedule] = {}
        self.last_ticks: dict[str, Instant] = {}
        self.logs = LogsByName()
        self.ledger = LedgerState()
        self.ingested: dict[str, tuple[Ingested, Instant]] = {}
        self.removed: dict[int, Mark] = {}
        self._removed_order: deque[int] = deque()
        self._key_ends: Deadlines[KeyName] = Deadlines(1_000_000)
        self._keys_by_state: dict[KeyName, None] = {}

    def spec(self, queue: str) -> QueueSpec:
        """The queue's spec; a queue that was not configured has the default one."""
        spec = self.specs.get(queue)
        return QueueSpec(name=queue) if spec is None else spec

    def state(self, job_id: int) -> State | None:
        """Where a job is; None: it is gone."""
        row = self.rows.get(job_id)
        return None if row is None else row.state

    def running(self, job_id: int, delivery: int) -> JobRow | None:
        """The row, if this lease is its current one; the fence decides, not the time."""
        row = self.rows.get(job_id)
        return row if row is not None and row.state is State.RUNNING and row.delivery == delivery else None

    def sweep_keys(self, now: Instant, limit: int) -> None:
        """Forget keys whose window has passed, and some whose job is gone; not a change, because they mean nothing."""
        for name in self._key_ends.due(now, limit):
            self._key_ends.remove(self.keys.pop(name).until, name)
        for name in list(islice(self._keys_by_state, limit)):
            del self._keys_by_state[name]
            if self.keys[name].job_id in self.rows:
                self._keys_by_state[name] = None
            else:
                del self.keys[name]

    def remember_key(self, name: KeyName, fact: KeyFact) -> None:
        known = self.keys.get(name)
        if known is not None:
            self._key_ends.remove(known.until, name)
            self._keys_by_state.pop(name, None)
        self.keys[name] = fact
        if fact.until < MAX_INSTANT:
            self._key_ends.add(fact.until, name)
        else:
            self._keys_by_state[name] = None

    def remember_removed(self, job_id: int, mark: Mark) -> None:
        self.removed[job_id] = mark
        self._removed_order.append(job_id)
        if len(self._removed_order) > SETTLE_MEMORY:
            del self.removed[self._removed_order.popleft()]

    def removed_in_order(self) -> Iterator[tuple[int, Mark]]:
        return ((job_id, self.removed[job_id]) for job_id in self._removed_order)

    def remember_ingested(self, ingested: Ingested, at: Instant) -> None:
        """Move the checkpoint of a source; checkpoints that have not moved for long are dropped."""
        self.ingested.pop(ingested.source, None)
        self.ingested[ingested.source] = (ingested, at)
        for source in [name for name, (_, last) in islice(self.ingested.items(), 2) if last < at - _SOURCE_KEPT]:
            del self.ingested[source]
