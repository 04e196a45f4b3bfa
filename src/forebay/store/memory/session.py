"""An open store: the facts, the index derived from them, the lock, the clock, and the one way to commit a change.

A verb plans a change under the lock, writes it to the journal, applies it to the facts and updates the index. Then,
outside the lock, it waits until the journal is durable up to everything it has seen: no answer, not even that of a
read, says anything that a crash could take back. `verb` is that frame; the three verbs of every job (enqueue, claim,
settle) have it in their own text, since a call inside a call costs them a few percent.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from threading import Event, Lock
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from forebay.core.changeset import PROMOTED, ChangeSet, JobChange, JobChanges, StoredRecord, encode_entry
from forebay.core.clock import Clock
from forebay.core.entries import DeadLetterRule
from forebay.core.errors import Closed, StoreFailed
from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import MAINTAINED, MAX_INSTANT
from forebay.core.record_builder import MAINTAIN
from forebay.store.memory.changes import Topic, apply, topics
from forebay.store.memory.facts import Facts, JobRow
from forebay.store.memory.index import Index


class Recorder(Protocol):
    """Where changes become durable."""

    def append(self, body: bytes) -> int:
        """Buffer one record; called in order, under the store's lock. Returns its number."""

    def sync(self, lsn: int) -> None:
        """Return when every record up to this number is durable; raise `StoreFailed` if that cannot be said."""

    def close(self) -> None: ...


class Session:
    """What all parts of the backend share.

    recorded  what the ledger will say of a change that is about to happen; nothing where there is no ledger
    sync      the end of every verb, outside the lock: returns when this record is durable
    idle      waiters for work, each with the instant at which it wakes up by itself
    watchers  waiters for what becomes of jobs, by topic
    """

    def __init__(self, facts: Facts, clock: Clock, recorder: Recorder | None) -> None:
        self.facts = facts
        self.clock = clock
        self.recorder = recorder
        self.lock = Lock()
        self.lsn = 0
        self.index = Index(facts)
        self.idle: dict[Event, Instant] = {}
        self.watchers: dict[Topic, set[Event]] = {}
        self.recorded: Callable[[ChangeSet], StoredRecord | None] = _no_record
        self.sync: Callable[[int], None] = _no_sync if recorder is None else recorder.sync
        self._lanes = self.index.lanes
        self._time = clock.now
        self.closed = False
        self._broken: str | None = None
        # A wall clock that was set back while the store was closed must not stretch leases and delays.
        self._shift = max(0, facts.last_at - clock.now())

    def now(self) -> Instant:
        return self._time() + self._shift

    def close(self) -> None:
        """No verb works afterwards; waiters wake up and find it closed."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            for queue in self.index.queues.values():
                queue.claimers.wake_all()
                queue.producers.wake_all()
            self._notify(list(self.watchers))
        if self.recorder is not None:
            self.recorder.close()

    def begin(self) -> Instant:
        """The start of every verb, under the lock."""
        if self.closed:
            raise Closed("the store")
        if self._broken is not None:
            raise StoreFailed("the store", self._broken)
        now, last = self._time() + self._shift, self.facts.last_at
        now = max(now, last)
        self._lanes.now = now
        return now

    def commit(self, change: ChangeSet) -> None:
        """Nothing happens if the change cannot be written down; if it is half done, the store stops for good."""
        recorder = self.recorder
        record, body = None, b""
        if recorder is not None:
            record = self.recorded(change)
            body = encode_entry(change, record)
        try:
            apply(self.facts, change, record)
        except BaseException as error:
            self._broken = f"{type(error).__name__} while applying a change: {error}"
            raise
        if recorder is not None:
            self.lsn = recorder.append(body)
        if self.watchers:
            self._notify(topics(self.facts, change))

    def wake_idle(self, now: Instant) -> None:
        """Something falls due earlier than some waiters expected: they check again."""
        if not self.idle:
            return
        index = self.index
        due = min(index.next_due(now) or MAX_INSTANT, index.leases.next() or MAX_INSTANT)
        for waiter in [waiter for waiter, planned in self.idle.items() if planned > due]:
            del self.idle[waiter]
            waiter.set()

    def maintain(self, now: Instant, limit: int = MAINTAINED) -> int:
        """Expire, promote, open and purge what is due, up to a bound; how many jobs became ready."""
        index, rows = self.index, self.facts.rows
        if not index.needs_maintenance:
            return 0
        expires_at = index.expiring.next()
        if expires_at is not None and expires_at <= now:
            self.expire([rows[job_id] for job_id in index.expiring.due(now, limit)], now)
        index.tick(now)
        due = index.take_due(now, limit)
        if due:
            self.commit(ChangeSet(now, jobs=[JobChange(PROMOTED, [row.entry.id for row in due])]))
            index.promoted(due)
        purge_at = index.kept.next()
        if purge_at is not None and purge_at <= now:
            self.purge(index.kept.due(now, limit), now)
        while index.over_dead_limit and limit > 0:
            ids = index.too_many(next(iter(index.over_dead_limit)), limit)
            limit -= len(ids)
            if ids:
                self.purge(ids, now)
        return len(due)

    def expire(self, rows: list[JobRow], now: Instant, *, taken: bool = False) -> None:
        """Jobs that were not claimed in time die; `taken`: a claim has reached them, and they have left their lanes."""
        states = [row.state for row in rows]
        self.commit(ChangeSet(now, jobs=self.deaths(Change.EXPIRED, rows, now)))
        for row, state in zip(rows, states, strict=True):
            self.index.ended(row, state, taken=taken)

    def purge(self, ids: list[int], now: Instant, verb: str = MAINTAIN) -> None:
        rows = [self.facts.rows[job_id] for job_id in ids]
        states = [row.state for row in rows]
        self.commit(ChangeSet(now, verb, [JobChange(Change.PURGED, ids)]))
        for row, state in zip(rows, states, strict=True):
            self.index.purged(row, state)

    def dead_letter(self, queue: str, now: Instant) -> DeadLetterRule | None:
        """The queue of the dead letter of a job of this queue that dies now, and how long it is kept there."""
        index = self.index
        return index.queues[queue].stamper.dead_letter(now, lambda name: index.queue(name).stamper)

    def deaths(self, change: Change, rows: Iterable[JobRow], now: Instant) -> list[JobChange]:
        deaths = JobChanges()
        for row in rows:
            deaths.add(row.entry.id, 0, change, dead_letter=self.dead_letter(row.entry.queue, now))
        return deaths.jobs

    def _notify(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for waiter in self.watchers.get(topic, ()):
                waiter.set()


class BackendPart(Protocol):
    """A group of verbs."""

    session: Session


S = TypeVar("S", bound=BackendPart)
P = ParamSpec("P")
T = TypeVar("T")


def verb(work: Callable[Concatenate[S, Instant, P], T]) -> Callable[Concatenate[S, P], T]:
    """The work under the lock, given its instant; the answer once everything it has seen is durable."""

    @wraps(work)
    def call(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        session = self.session
        with session.lock:
            answer = work(self, session.begin(), *args, **options)
            lsn = session.lsn
        session.sync(lsn)
        return answer

    return call


def _no_record(_: ChangeSet) -> StoredRecord | None:
    return None


def _no_sync(_: int) -> None:
    return
