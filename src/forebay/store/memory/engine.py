"""What all verbs of the in-process store share: the lock, the clock, committing a change, and tending what fell due.

A verb plans a change under the lock, writes it to the journal, applies it to the facts and tells the index what
moved. Then, outside the lock, it waits until the journal is durable up to everything it has seen: no answer, not even
that of a read, tells of something a crash could take back.
"""

from abc import abstractmethod
from collections.abc import Iterable
from threading import Event as Sleeper
from threading import Lock
from typing import Final, Protocol

from forebay.core.changeset import PROMOTED, ChangeSet, JobChange, JobChanges, StoredRecord, encode_entry
from forebay.core.clock import Clock
from forebay.core.entries import DeadLetterRule
from forebay.core.errors import Closed, StoreFailed
from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import MAX_INSTANT
from forebay.core.record_builder import TEND
from forebay.store.memory.changes import Topic, apply, topics
from forebay.store.memory.facts import Facts
from forebay.store.memory.index import Index
from forebay.store.memory.intake import IntakeLookup
from forebay.store.memory.row import Row
from forebay.store.protocol import Capabilities

TEND_LIMIT: Final = 256
"""How much of what fell due a verb looks after in passing."""


class Recorder(Protocol):
    """Where changes become durable."""

    def append(self, body: bytes) -> int:
        """Buffer one record; called in order, under the store's lock. Returns its number."""

    def sync(self, lsn: int) -> None:
        """Return when every record up to this number is durable; raise `StoreFailed` if that cannot be said."""

    def close(self) -> None: ...


class Engine:
    """The common ground of the verbs."""

    def __init__(self, facts: Facts, clock: Clock, recorder: Recorder | None) -> None:
        self._facts = facts
        self._clock = clock
        self._recorder = recorder
        self._lock = Lock()
        self._lsn = 0
        self._closed = False
        self._broken: str | None = None
        self._asleep: dict[Sleeper, Instant] = {}
        self._watchers: dict[Topic, set[Sleeper]] = {}
        self._index = Index(facts)
        self._intake = IntakeLookup(facts, self._index, durable=recorder is not None)
        # A wall clock that was set back while the store was closed must not stretch leases and delays.
        self._shift = max(0, facts.last_at - clock.now())

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the whole store claims."""

    def now(self) -> Instant:
        return self._clock.now() + self._shift

    def close(self) -> None:
        """No verb works afterwards; sleepers wake up and find it closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for queue in self._index.queues.values():
                queue.claimers.wake_all()
                queue.producers.wake_all()
            self._wake(list(self._watchers))
        if self._recorder is not None:
            self._recorder.close()

    def _begin(self) -> Instant:
        """The start of every verb, under the lock."""
        if self._closed:
            raise Closed("the store")
        if self._broken is not None:
            raise StoreFailed("the store", self._broken)
        now = self._index.lanes.now = max(self._clock.now() + self._shift, self._facts.last_at)
        return now

    def _commit(self, change: ChangeSet) -> None:
        """Nothing happens if the change cannot be written down; if it is half done, the store stops for good."""
        record = self._recorded(change)
        body = None if self._recorder is None else encode_entry(change, record)
        try:
            apply(self._facts, change, record)
        except BaseException as error:
            self._broken = f"{type(error).__name__} while applying a change: {error}"
            raise
        if self._recorder is not None and body is not None:
            self._lsn = self._recorder.append(body)
        if self._watchers:
            self._wake(topics(self._facts, change))

    def _recorded(self, _: ChangeSet) -> StoredRecord | None:
        """What the ledger will say of a change that is about to happen; a store without a ledger says nothing."""
        return None

    def _settle_down(self, lsn: int) -> None:
        """The end of every verb, outside the lock."""
        if self._recorder is not None:
            self._recorder.sync(lsn)

    def _wake(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for sleeper in self._watchers.get(topic, ()):
                sleeper.set()

    def _rouse(self, now: Instant) -> None:
        """Something falls due earlier than some sleepers meant to look: they look again."""
        if not self._asleep:
            return
        due = min(self._index.next_due(now) or MAX_INSTANT, self._index.leases.next() or MAX_INSTANT)
        for sleeper in [sleeper for sleeper, planned in self._asleep.items() if planned > due]:
            del self._asleep[sleeper]
            sleeper.set()

    def _tend(self, now: Instant, limit: int = TEND_LIMIT) -> int:
        """Expire, promote, open and forget what is due, up to a bound; how many became ready."""
        index = self._index
        if not index.restless:
            return 0
        self._expire(now, limit)
        index.tick(now)
        rows = index.promote(now, limit)
        if rows:
            self._commit(ChangeSet(now, jobs=[JobChange(PROMOTED, [row.entry.id for row in rows])]))
            index.promoted(rows)
        forget_at = index.kept.next()
        if forget_at is not None and forget_at <= now:
            self._purge(index.kept.due(now, limit), now)
        while index.crowded and limit > 0:
            ids = index.too_many(next(iter(index.crowded)), limit)
            limit -= len(ids)
            if ids:
                self._purge(ids, now)
        return len(rows)

    def _expire(self, now: Instant, limit: int) -> None:
        """Jobs that nobody claimed in time go to the dead letters."""
        expires_at = self._index.expiring.next()
        if expires_at is None or expires_at > now:
            return
        self._let_expire([self._facts.rows[job_id] for job_id in self._index.expiring.due(now, limit)], now)

    def _let_expire(self, rows: list[Row], now: Instant) -> None:
        states = [row.state for row in rows]
        self._commit(ChangeSet(now, jobs=self._deaths(Change.EXPIRED, rows, now)))
        for row, state in zip(rows, states, strict=True):
            self._index.ended(row, state)

    def _grave(self, row: Row, now: Instant) -> DeadLetterRule | None:
        """Where a job that dies now will lie."""
        index = self._index
        return index.queues[row.entry.queue].stamper.grave(now, lambda queue: index.queue(queue).stamper)

    def _deaths(self, change: Change, rows: Iterable[Row], now: Instant) -> list[JobChange]:
        """Rows that die now, by where they will lie."""
        deaths = JobChanges()
        for row in rows:
            deaths.add(row.entry.id, 0, change, grave=self._grave(row, now))
        return deaths.jobs

    def _purge(self, ids: list[int], now: Instant, verb: str = TEND) -> None:
        rows = [self._facts.rows[job_id] for job_id in ids]
        states = [row.state for row in rows]
        self._commit(ChangeSet(now, verb, [JobChange(Change.PURGED, ids)]))
        for row, state in zip(rows, states, strict=True):
            self._index.forgotten(row, state)
