"""One call inside a transaction: its instant, its counters, its gates and lanes, and what waiters are notified of.

A verb works between the opening of a unit and `finish`, which writes counters, lanes and gates back.

Group commit: the calls of many threads share one transaction, and so one sync. The leader gives each call a unit of
work, commits, and only then lets their threads return. A unit that raises is rolled back to its own savepoint and fails
alone; when the commit fails, all units in it fail. While the leader waits for the disk, the next group gathers.

Maintenance is part of the verbs: expire, promote, remove, all bounded. One statement, `pulse`, says whether there is
anything to do; an idle store pays for nothing else. An expired job is never claimed, however many there are: `expire`
returns whether all are dead. A dead job is in the queue for dead letters, which limits their number and their time.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from forebay.core.errors import Closed
from forebay.core.instant import Duration, Instant
from forebay.core.ledger import RECORDS_PER_TRIM, TRIMMED_AT_ONCE, Change, LedgerRule, encode_record
from forebay.core.limits import MAINTAINED, MAX_BATCH, MAX_INSTANT, SETTLE_MEMORY
from forebay.core.outcome import OUT_OF_TIME, Failure
from forebay.core.record_builder import RecordBuilder
from forebay.engine.lines import expose
from forebay.engine.settle import Mark
from forebay.store.group_commit import GroupCommit, PendingCall
from forebay.store.sqlite.database import Database, Time
from forebay.store.sqlite.gates import Gates, LaneTable
from forebay.store.sqlite.lines import exposed_in_line, line_heads
from forebay.store.sqlite.tables import JobRow, QueueTable, SpecCache, failed, id_list, rows_of, statement
from forebay.store.states import DEAD, READY, WAITING

EXPIRE_LIMIT: Final = 4 * MAX_BATCH
"""How many expired jobs a verb removes: a claim waits for them, so they are more."""

_MAX_GROUP: Final = 128
_HEAD: Final = statement("head")
_PUT_HEAD: Final = statement("put_head")
_DIE: Final = statement("dead_letter")
_OVER_DEAD_LIMIT: Final = statement("queues_over_dead_limit")
_OLDEST_DEAD: Final = statement("oldest_dead")
_PULSE: Final = statement("next_maintenance")
_EXPIRED: Final = statement("expired")
_KEPT: Final = statement("kept")
_DROP_PAID: Final = statement("drop_paid")
_DROP_IDLE: Final = statement("drop_idle")
_SWEEP_KEYS: Final = statement("sweep_keys")
_KEYS_BY_STATE: Final = statement("keys_by_state")
_DROP_KEY: Final = statement("drop_key")
_DELETE: Final = statement("delete")
_STORE_SETTLES: Final = (statement("store_settles_0"), statement("store_settles_1"))
_DROP_SETTLES: Final = (statement("drop_settles_0"), statement("drop_settles_1"))
_FALL_DUE: Final = statement("make_ready")
_EXPOSE: Final = statement("expose")
_STEP_BACK: Final = statement("step_back")
_KEEP_RECORD: Final = statement("keep_record")
_RECORD_SIZES: Final = statement("record_sizes")
_DROP_RECORDS: Final = statement("drop_records")


class Head(Struct):
    """The counters of the whole store, and the rule of its ledger: every process reads it anew at every call."""

    next_id: int
    last_at: Instant
    half: int
    filled: int
    ledger_first: int
    ledger_next: int
    ledger_bytes: int
    ledger_on: int
    ledger_keep: Duration
    ledger_keep_bytes: int

    @property
    def ledger_rule(self) -> LedgerRule:
        return LedgerRule(self.ledger_on == 1, self.ledger_keep, self.ledger_keep_bytes)


class UnitOfWork:
    """What a verb works with. `builder`: writes down what becomes of jobs; kept if the ledger is on (`recording`).

    `topics`: jobs that ended, and owners whose jobs are to end. `exposed`: jobs that became ready in it.
    """

    def __init__(self, connection: sqlite3.Connection, specs: SpecCache, head: Head, now: Instant) -> None:
        self.connection = connection
        self.now = now
        self.head = head
        self.queues = QueueTable(connection, specs)
        self.queue = self.queues.queue
        self.builder = RecordBuilder(now)
        self.recording = bool(head.ledger_on)
        self.topics: set[int | str] = set()
        self.exposed = 0
        self._gates: Gates | None = None
        self._lanes: LaneTable | None = None
        self._changes = connection.total_changes

    @property
    def gates(self) -> Gates:
        if self._gates is None:
            self._gates = Gates(self.connection, self.now)
        return self._gates

    @property
    def lanes(self) -> LaneTable:
        if self._lanes is None:
            self._lanes = LaneTable(self.connection, self.queues, self.gates, self.now)
        return self._lanes

    def write_lanes(self) -> None:
        """Bring lanes and gates up to date, if any were touched."""
        if self._gates is not None:
            self.lanes.write()
            self._gates.write()

    def finish(self) -> None:
        """Write what the unit has counted; one that changed nothing costs no sync. The writer writes the head."""
        self.write_lanes()
        self.queues.write()
        self._keep_record()
        if self.connection.total_changes != self._changes:
            self.head.last_at = self.now

    def promote_due(self, limit: int) -> int:
        """Waiting jobs that are due become ready; how many."""
        rows = self.connection.execute(_FALL_DUE, (self.now, limit)).fetchall()
        for queue, lane, rank, job_id in rows:
            self._became_ready(queue, lane, rank, job_id)
        return len(rows)

    def expose(self, lines: Iterable[str], *, vacant: bool = True) -> None:
        """Expose the heads of these lines. `vacant`: the jobs that were exposed in them have ended or wait again."""
        hidden, shown = [], []
        for head in line_heads(self.connection, lines):
            hide, show = expose(head, exposed_in_line(self.connection, head, vacant))
            hidden += [] if hide is None else [hide]
            shown += [] if show is None else [show.id]
        if hidden:
            self.connection.execute(_STEP_BACK, (id_list(job.id for job in hidden),))
        for job in hidden:
            if job.state == READY:
                self.queues.moved(job.queue, job.lane, READY, WAITING)
                self.lanes.left(job.queue, job.lane)
        if shown:
            rows = self.connection.execute(_EXPOSE, (id_list(shown), self.now)).fetchall()
            for queue, lane, rank, job_id, state in rows:
                if state == READY:
                    self._became_ready(queue, lane, rank, job_id)

    def give_back(self, queue: str, lane: str, cost: int) -> None:
        """A job of this lane runs no longer: its slots are free."""
        for name in self.queue(queue).known.caps(lane):
            self.gates.give_back(name, cost)

    def _became_ready(self, queue: str, lane: str, rank: int, job_id: int) -> None:
        self.exposed += 1
        self.queues.moved(queue, lane, WAITING, READY)
        self.lanes.arrived(queue, lane, rank, job_id)

    def next_record(self) -> None:
        """What follows is another call, with a record of its own."""
        self._keep_record()
        self.builder = RecordBuilder(self.now)

    def _keep_record(self) -> None:
        record = self.builder.record() if self.recording else None
        if record is not None:
            head, kept = self.head, encode_record(record)
            self.connection.execute(_KEEP_RECORD, (head.ledger_next, self.now, kept))
            head.ledger_next += 1
            head.ledger_bytes += len(kept)
            if head.ledger_next % RECORDS_PER_TRIM == 0:
                self.trim_ledger(TRIMMED_AT_ONCE)

    def trim_ledger(self, limit: int) -> int:
        """Give up what the rule no longer keeps at the front of the ledger; returns how many records."""
        head = self.head
        if head.ledger_first == head.ledger_next:
            return 0
        oldest = self.connection.execute(_RECORD_SIZES, (head.ledger_first, limit))
        dropped, freed = head.ledger_rule.dropped(oldest, head.ledger_bytes, self.now)
        if dropped:
            head.ledger_first += dropped
            head.ledger_bytes -= freed
            self.connection.execute(_DROP_RECORDS, (head.ledger_first,))
        return dropped

    def remove(self, ids: Sequence[int], settled: Sequence[tuple[int, int, str]]) -> None:
        """Delete jobs; of those that were settled once, the last settle is kept."""
        self.connection.execute(_DELETE, (id_list(ids),))
        if settled:
            self.store_settles(settled)

    def store_settles(self, settled: Sequence[tuple[int, int, str]]) -> None:
        """The last settles of jobs that are gone; the oldest half of them is given up when there is no more room."""
        head = self.head
        self.connection.executemany(_STORE_SETTLES[head.half], settled)
        head.filled += len(settled)
        if head.filled >= SETTLE_MEMORY:
            head.half = 1 - head.half
            head.filled = 0
            self.connection.execute(_DROP_SETTLES[head.half])


def write_dead(unit: UnitOfWork, job_id: int, queue: str, errors: str | None, mark: Mark | tuple[None, None]) -> str:
    """The job is dead; the queue of its dead letter. The caller updates its gates, and counts it."""
    rule = unit.queue(queue).known.stamper.dead_letter(unit.now, lambda name: unit.queue(name).known.stamper)
    elsewhere, kept_until = (None, None) if rule is None else (rule.queue, rule.kept_until or None)
    unit.connection.execute(_DIE, (job_id, unit.now, errors, *mark, elsewhere, kept_until))
    return elsewhere or queue


def count_dead(unit: UnitOfWork, queue: str, lane: str, was: int, letter_queue: str, count: int = 1) -> None:
    """Count dead jobs: they belong to a queue, and their dead letters may be in another one."""
    if letter_queue == queue:
        unit.queues.moved(queue, lane, was, DEAD, count)
    else:
        unit.queues.moved(queue, lane, was, None, count)
        unit.queues.moved(letter_queue, "", None, DEAD, count)


def dead_letter(unit: UnitOfWork, rows: Iterable[JobRow], failure: Failure, change: Change) -> None:
    """Jobs without a holder die of this failure; their rows have their errors."""
    lines: dict[str, None] = {}
    for row in rows:
        errors = failed(row, failure, unit.now)
        count_dead(unit, row.queue, row.lane, row.state, write_dead(unit, row.id, row.queue, errors, (None, None)))
        if row.state == READY:
            unit.lanes.left(row.queue, row.lane)
        if row.line is not None and not row.behind:
            lines[row.line] = None
        unit.builder.job(change, row.id, row.queue, row.kind)
    if lines:
        unit.expose(lines)


def excess_dead(unit: UnitOfWork, limit: int) -> Iterator[list[JobRow]]:
    """The oldest dead jobs of queues that have more than they keep, for `remove_finished`; `limit` in all."""
    found = unit.connection.execute(_OVER_DEAD_LIMIT).fetchall()
    for name in {**dict.fromkeys(name for (name,) in found), **dict.fromkeys(unit.queues.over_dead_limit())}:
        queue = unit.queue(name)
        excess = min(limit, queue.counts[DEAD] - (queue.known.stamper.max_dead or queue.counts[DEAD]))
        if excess > 0:
            limit -= excess
            yield rows_of(unit.connection.execute(_OLDEST_DEAD, (name, excess)))


def maintain(unit: UnitOfWork, limit: int = MAINTAINED, expiring: int = EXPIRE_LIMIT) -> bool:
    """Whether every expired job is dead; at most `expiring` of them become dead in this call."""
    now = unit.now
    due_at, expires_at, kept_until, wake_at, over_dead_limit = unit.connection.execute(_PULSE).fetchone()
    through = expires_at is None or expires_at > now or expire(unit, expiring)
    if due_at is not None and due_at <= now:
        unit.promote_due(limit)
    if wake_at is not None and wake_at <= now:
        unit.lanes.open_rates(limit)
    if kept_until is not None and kept_until <= now:
        remove_finished(unit, rows_of(unit.connection.execute(_KEPT, (now, limit))))
    if over_dead_limit or unit.queues.over_dead_limit():
        for oldest in excess_dead(unit, limit):
            remove_finished(unit, oldest)
    return through


def expire(unit: UnitOfWork, limit: int) -> bool:
    """Jobs that were not claimed in time become dead letters; False: there may be more than `limit`."""
    while limit > 0:
        some = min(limit, MAX_BATCH)
        rows = rows_of(unit.connection.execute(_EXPIRED, (unit.now, some)))
        dead_letter(unit, rows, OUT_OF_TIME, Change.EXPIRED)
        if len(rows) < some:
            return True
        limit -= some
    return False


def remove_finished(unit: UnitOfWork, finished: Sequence[JobRow]) -> None:
    """Remove finished jobs; the last settle of each is kept."""
    lines: dict[str, None] = {}
    for row in finished:
        if row.line is not None and row.blocks and row.state == DEAD:
            lines[row.line] = None
        unit.queues.moved(row.queue, row.lane, row.state, None)
        unit.builder.job(Change.PURGED, row.id, row.home, row.kind)
    settled = [(row.id, row.settled_delivery, row.settled_code) for row in finished if row.settled_delivery]
    unit.remove([row.id for row in finished], settled)
    if lines:
        unit.expose(lines, vacant=False)


def sweep_idle(unit: UnitOfWork, limit: int) -> None:
    """Drop rates whose theoretical arrival time has passed, and classes whose turns are not ahead."""
    unit.connection.execute(_DROP_PAID, (unit.now, limit))
    unit.connection.execute(_DROP_IDLE, (limit,))


def _walk(unit: UnitOfWork, limit: int) -> list[tuple[str, str, int]]:
    """The next of the keys that are taken by state, round and round."""
    walked: list[tuple[str, str, int]] = []
    for start in dict.fromkeys((unit.queues.specs.walked, ("", ""))):
        if len(walked) < limit:
            walked += unit.connection.execute(_KEYS_BY_STATE, (MAX_INSTANT, *start, limit - len(walked))).fetchall()
    unit.queues.specs.walked = walked[-1][:2] if walked else ("", "")
    return walked


def sweep_keys(unit: UnitOfWork, limit: int, *, by_state: bool = True) -> None:
    """Delete keys whose window has passed; `by_state`: and some of those whose job is gone."""
    gone = unit.connection.execute(_SWEEP_KEYS, (unit.now, limit)).fetchall()
    for queue, key, alive in _walk(unit, limit) if by_state else ():
        if not alive:
            gone += unit.connection.execute(_DROP_KEY, (queue, key)).fetchall()
    for (queue,) in gone:
        counters = unit.queue(queue)
        counters.keys -= 1
        counters.changed = True


T = TypeVar("T")


class Notified(Protocol):
    """The waiters of this process. `registered`: how many there are."""

    registered: int

    def notify(self, unit: UnitOfWork) -> None: ...


class _Call(PendingCall):
    """The work of a verb, and its answer once it is durable."""

    __slots__ = ("answer", "unit", "work")

    def __init__(self, work: Callable[[UnitOfWork], Any]) -> None:
        super().__init__()
        self.work = work
        self.unit: UnitOfWork | None = None
        self.answer: Any = None


def _next(numbers: Iterator[int], _: _Call) -> bool:
    """Whether a group may have one more."""
    return next(numbers) <= _MAX_GROUP


class Writer:
    """The one connection of this process that writes; waiters are notified of every unit that was committed."""

    def __init__(self, database: Database, connection: sqlite3.Connection, time: Time, waiters: Notified) -> None:
        self._database = database
        self._connection = connection
        self._time = time
        self._waiters = waiters
        self.specs = SpecCache()
        self.callers: GroupCommit[_Call] = GroupCommit(database.name, self._commit)
        self._busy = Lock()
        self._closed = False

    def run(self, work: Callable[[UnitOfWork], T]) -> T:
        """The answer of the work, once it is durable."""
        self._database.check_process()
        call = _Call(work)
        self.callers.make(call)
        answer: T = call.answer
        return answer

    def close(self) -> None:
        """After the current group; later callers find the store closed."""
        if not self._database.ours:
            return
        with self._busy:
            self._closed = True
            self._connection.close()

    def _commit(self) -> None:
        with self._busy, self.callers.group(partial(_next, count(1))) as calls:
            try:
                if self._closed:
                    raise Closed("the store")
                self._transact(calls)
            except Exception as error:
                self._undo()
                failed = self._database.failure(error)
                for call in calls:
                    call.error = call.error or failed
            except BaseException:
                self._undo()
                raise
        if self._waiters.registered:
            for call in calls:
                if call.unit is not None and call.error is None:
                    self._waiters.notify(call.unit)

    def _transact(self, group: Sequence[_Call]) -> None:
        connection = self._connection
        self._database.retry_while_locked(lambda: connection.execute("BEGIN IMMEDIATE"))
        found = connection.execute(_HEAD).fetchone()
        head = Head(*found)
        alone = len(group) == 1
        for call in group:
            before = head if alone else replace(head)
            try:
                self._work(call, head, alone)
            except Exception as error:
                if alone or not connection.in_transaction:
                    raise
                connection.execute("ROLLBACK TO unit")
                connection.execute("RELEASE unit")
                call.error = self._database.failure(error)
                head = before
        written = astuple(head)
        if written != found:
            connection.execute(_PUT_HEAD, written)
        connection.execute("COMMIT")

    def _work(self, call: _Call, head: Head, alone: bool) -> None:
        if not alone:
            self._connection.execute("SAVEPOINT unit")
        unit = UnitOfWork(self._connection, self.specs, head, self._time.after(head.last_at))
        call.answer = call.work(unit)
        unit.finish()
        call.unit = unit
        if not alone:
            self._connection.execute("RELEASE unit")

    def _undo(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return
