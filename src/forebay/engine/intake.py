"""What a batch of drafts becomes: keys, merges, copies of brokers, capacity and shedding, on every store alike.

A batch is all or nothing. Drafts of one batch see each other: the second of two equal keys is a duplicate of the
first, a newer payload of the same subject replaces an older one, and all count against the capacity.

How a store uses it, inside the step that writes:

    plan = plan_intake(tables, drafts)     what the drafts become; reads `IntakeTables` and changes nothing
    plan.make_room()                       `plan.shed` are the jobs to shed; or raises `QueueFull`
    new_jobs(plan.entries, now, taken)       the rows to insert: lane, rank, ready or waiting
    plan.merged, plan.keys                 waiting jobs that take newer work over; keys to store
    plan.receipts                          the answer, one for each draft

A store that assigns ids before it plans returns them from `new_id`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from forebay.core.entries import Entry, Replaced
from forebay.core.errors import KeyConflict, QueueFull, WrongQueueKind
from forebay.core.gate import lane_key
from forebay.core.instant import Instant
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_DEPTH, MAX_INSTANT
from forebay.core.outcome import SHED, Failure
from forebay.core.policy import Bounded, Shed
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper, rank_at
from forebay.store.brokers import Spread
from forebay.store.checks import ALWAYS_FIT, check_bytes
from forebay.store.protocol import Receipt

RETRY_AFTER_SECONDS: Final = 1.0
KEYS_SWEPT: Final = 2
"""How many expired keys a store deletes for each draft that it accepts."""

GAVE_WAY: Final = Failure(SHED, "it gave way to newer work in a full queue")

RankedId = tuple[int, int]
"""The rank of a job and its id; the smaller is first."""


class KeyFact(NamedTuple):
    """What is stored with an idempotency key: its job, a digest of kind and payload, the end of its window."""

    job_id: int
    digest: bytes
    until: Instant


class MergeTarget(NamedTuple):
    """A job that has not run yet, and takes over newer work of its subject."""

    id: int
    enqueued_at: Instant
    due_at: Instant
    rank_timed: int


class MergedDraft(NamedTuple):
    """A draft that a waiting job takes over. `rank`: new if its due time changes; else it moves with its base."""

    target: MergeTarget
    draft: Draft
    newer: Replaced
    rank: int | None


class QueueDepths(Protocol):
    """What capacity is checked against."""

    def stamper(self, queue: str) -> Stamper: ...

    def depth(self, queue: str) -> int:
        """How many jobs of the queue have not ended."""


class IntakeTables(QueueDepths, Protocol):
    """What planning reads: jobs and keys as they are before the batch."""

    @property
    def now(self) -> Instant: ...

    def new_id(self, place: int) -> int:
        """The id of a new job; `place` is the index of its draft in the batch, counting copies of brokers."""

    def taken_key(self, queue: str, key: str) -> KeyFact | None:
        """What is stored with the key, if it is still taken (`key_is_taken`); called once for each key."""

    def merge_target(self, queue: str, subject: str) -> MergeTarget | None:
        """The newest job of the subject that can take over a draft: it has neither run nor expired."""

    def unclaimed(self, queue: str, shed: Shed, limit: int) -> Iterable[RankedId]:
        """Jobs that do not run, in the order in which they are shed; at least `limit` of them if they exist."""


class IntakePlan:
    """What one call changes."""

    def __init__(self, tables: IntakeTables, *, durable: bool) -> None:
        self.receipts: list[Receipt] = []
        self.entries: list[Entry] = []
        self.merged: list[MergedDraft] = []
        self.keys: dict[tuple[str, str], KeyFact] = {}
        self.shed: list[int] = []
        self._tables = tables
        self._durable = durable
        self._stampers: dict[str, Stamper] = {}
        self._newest: dict[tuple[str, str], MergeTarget | None] = {}

    @property
    def is_new(self) -> bool:
        """Whether the drafts change anything."""
        return bool(self.entries or self.merged)

    @property
    def arrivals(self) -> dict[str, int]:
        """How many new jobs each queue gets."""
        return Counter([entry.queue for entry in self.entries])

    def take(self, drafts: Iterable[Draft], *, keyed: bool = True) -> None:
        """Drafts for queues of jobs; the one loop that every job of every store passes. `keyed`: keys are checked."""
        now, durable, new_id, stampers = self._tables.now, self._durable, self._tables.new_id, self._stampers
        for place, draft in enumerate(drafts):
            stamper = stampers.get(draft.queue) or self._stamper(draft.queue)
            key = draft.key if keyed else None
            digest, until = (b"", 0) if key is None else stamper.key(draft, now)
            if key is not None and (taken := self._taken(draft.queue, key, digest)) is not None:
                self.receipts.append(Receipt(taken, durable, duplicate=True))
                continue
            target = self._target(draft) if stamper.spec.merge is not None else None
            if target is None:
                job_id = new_id(place)
                entry = stamper.entry(draft, job_id, now, digest, until)
                self.entries.append(entry)
                self.receipts.append(Receipt(job_id, durable))
                if entry.merges:
                    target = MergeTarget(job_id, now, entry.due_at, entry.rank_timed)
            else:
                job_id = target.id
                self.merged.append(_merged(target, draft, stamper, now))
                self.receipts.append(Receipt(job_id, durable, merged=True))
            if target is not None:
                alive = draft.expires_at is None or draft.expires_at > now
                self._newest[draft.queue, draft.subject or ""] = target if alive else None
            if key is not None:
                self.keys[draft.queue, key] = KeyFact(job_id, digest, until)

    def _stamper(self, queue: str) -> Stamper:
        stamper = self._stampers[queue] = self._tables.stamper(queue)
        if stamper.is_log:
            raise WrongQueueKind(queue, is_log=True)
        return stamper

    def _taken(self, queue: str, key: str, digest: bytes) -> int | None:
        """The job that has the key, if its draft is a duplicate of that job's."""
        fact = self.keys.get((queue, key)) or self._tables.taken_key(queue, key)
        if fact is None:
            return None
        # A key that came by SQL has another kind of digest, which cannot be compared.
        if len(fact.digest) == len(digest) and fact.digest != digest:
            raise KeyConflict(queue, key, fact.job_id)
        return fact.job_id

    def _target(self, draft: Draft) -> MergeTarget | None:
        if draft.subject is None:
            return None
        name = (draft.queue, draft.subject)
        return self._newest[name] if name in self._newest else self._tables.merge_target(*name)

    def make_room(self) -> None:
        """Check the capacity of every bounded queue, and choose the jobs to shed; called before anything is counted."""
        bounded = sorted(name for name, each in self._stampers.items() if isinstance(each.spec.capacity, Bounded))
        arrivals = self.arrivals if bounded else {}
        for queue in (queue for queue in bounded if queue in arrivals):
            depth = self._tables.depth(queue)
            if excess_of(self._stampers[queue].spec, depth, arrivals[queue]) > 0:
                self.shed += self._victims(queue, depth)

    def _victims(self, queue: str, depth: int) -> list[int]:
        """The jobs to shed so that all of these fit; a job that takes over a draft of this call is not among them."""
        stamper, count = self._tables.stamper(queue), self.arrivals[queue]
        excess, shed, doomed = excess_of(stamper.spec, depth, count), stamper.sheds, None
        if shed is not None:
            spared = {merge.target.id for merge in self.merged}
            offered = self._tables.unclaimed(queue, shed, excess + len(spared))
            arriving = [(first_rank(each, self._tables.now), each.id) for each in self.entries if each.queue == queue]
            doomed = victims(shed, excess, (place for place in offered if place[1] not in spared), arriving)
        if doomed is None:
            raise queue_full(stamper.spec, depth, count)
        return doomed


def plan_intake(tables: IntakeTables, drafts: Sequence[Draft], *, durable: bool = True) -> IntakePlan:
    """What the drafts become; those for brokers become their copies, and one receipt."""
    plan = IntakePlan(tables, durable=durable)
    for queue in {draft.queue for draft in drafts}:
        if tables.stamper(queue).is_broker:
            return _plan_copies(plan, Spread(drafts, lambda queue: tables.stamper(queue).spec), durable)
    if len(drafts) > ALWAYS_FIT:
        check_bytes("enqueue", [draft.body for draft in drafts])
    plan.take(drafts)
    return plan


def _merged(target: MergeTarget, draft: Draft, stamper: Stamper, now: Instant) -> MergedDraft:
    newer = stamper.newer(draft, target.enqueued_at, target.due_at, now)
    rank = None if newer.due_at is None else rank_at(newer.rank_base, target.rank_timed, newer.due_at, now)
    return MergedDraft(target, draft, newer, rank)


def _plan_copies(plan: IntakePlan, spread: Spread, durable: bool) -> IntakePlan:
    plan.take(spread.drafts)
    plan.receipts = spread.folded(plan.receipts, durable)
    return plan


def key_is_taken(stamper: Stamper, fact: KeyFact, state_of: Callable[[int], State | None], now: Instant) -> bool:
    """Whether a key still makes a draft a duplicate: until its window ends, or by the state that its job is in."""
    return stamper.key_counts(fact.until, state_of(fact.job_id) if fact.until >= MAX_INSTANT else None, now)


def victims(shed: Shed, excess: int, unclaimed: Iterable[RankedId], arriving: Sequence[RankedId]) -> list[int] | None:
    """Ids of the `excess` jobs to shed; None: not enough can be shed, and the call is refused.

    `unclaimed` are jobs that wait or are ready: for the oldest by their ids, for the lowest the last in rank first. No
    more of them are read than needed. If an arriving job is the lowest of all, none is shed.
    """
    offered = list(islice(unclaimed, excess))
    if len(offered) < excess:
        return None
    if shed.victim == "lowest" and arriving and max(arriving) > offered[-1]:
        return None
    return [job_id for _, job_id in offered]


def room_in(spec: QueueSpec, depth: int) -> int:
    """How many more jobs fit into a queue that holds `depth`."""
    return spec.capacity.limit - depth if isinstance(spec.capacity, Bounded) else MAX_DEPTH


def excess_of(spec: QueueSpec, depth: int, count: int) -> int:
    """How many of `count` more jobs a queue that holds `depth` has no room for; none if it is zero or less."""
    return count - room_in(spec, depth)


def queue_full(spec: QueueSpec, depth: int, count: int) -> QueueFull:
    assert isinstance(spec.capacity, Bounded)
    return QueueFull(spec.name, depth, spec.capacity.limit, count, RETRY_AFTER_SECONDS)


def check_capacity(tables: QueueDepths, arrivals: Mapping[str, int]) -> None:
    """Check the capacity of every bounded queue for jobs that return to it; nothing is shed for them."""
    for queue, count in sorted(arrivals.items()):
        spec, depth = tables.stamper(queue).spec, tables.depth(queue)
        if excess_of(spec, depth, count) > 0:
            raise queue_full(spec, depth, count)


def first_rank(entry: Entry, now: Instant) -> int:
    return rank_at(entry.rank_base, entry.rank_timed, entry.due_at, now)


class NewJobRow(NamedTuple):
    """The row of a new job. `behind`: its line has a job before it. `ready`: it is due and not behind another job."""

    entry: Entry
    lane: str
    rank: int
    ready: bool
    behind: bool


def new_jobs(entries: Iterable[Entry], now: Instant, taken_lines: Iterable[str] = ()) -> Iterator[NewJobRow]:
    """The rows of new jobs, in order; the first job of a free line is exposed."""
    taken = set(taken_lines)
    for entry in entries:
        behind = entry.line is not None and entry.line in taken
        if entry.line is not None:
            taken.add(entry.line)
        lane = lane_key(entry.cls, entry.gates) if entry.gates else entry.cls
        yield NewJobRow(entry, lane, first_rank(entry, now), entry.due_at <= now and not behind, behind)
