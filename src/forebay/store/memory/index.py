"""Everything derived from the facts: which job is next, what is due, whose lease ran out, which lane is open.

Verbs commit a change of the facts and then call the index for what moved. Every operation is O(log n); nothing walks
all jobs in flight. `Index(facts)` rebuilds it all, which is how a recovered store gets its index.
"""

from collections.abc import Iterable
from heapq import heappop, merge
from itertools import groupby, islice
from operator import attrgetter

from forebay.core.instant import Instant, micros
from forebay.core.job import State
from forebay.core.limits import MAX_DEPTH, MAX_INSTANT, MAX_LEASE
from forebay.core.spec import QueueSpec
from forebay.engine.lanes import GateState
from forebay.engine.lines import in_line
from forebay.store.memory.facts import Facts, JobRow
from forebay.store.memory.heaps import Deadlines, LazyHeap
from forebay.store.memory.lines import Lines
from forebay.store.memory.queue_state import MemoryLanes, QueueState

_SECOND = 1_000_000
_GRAIN = 10_000
"""What is kept or expires may go so much later: fine enough for milliseconds, coarse enough to share buckets."""
_QUEUE = attrgetter("entry.queue")
_MAX_LEASE = micros(MAX_LEASE)
_READY, _RUNNING, _WAITING = State.READY, State.RUNNING, State.WAITING


class Index:
    """The moving parts of one store; guarded by its lock."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.queues: dict[str, QueueState] = {}
        self.lanes = MemoryLanes(facts)
        self.paced: set[str] = set()
        self.leases: Deadlines[int] = Deadlines()
        self.kept: Deadlines[int] = Deadlines(_GRAIN)
        self.expiring: Deadlines[int] = Deadlines(_GRAIN)
        self.over_dead_limit: dict[str, None] = {}
        self._finished: dict[State, dict[str, Deadlines[int]]] = {state: {} for state in State if state.terminal}
        self._due: LazyHeap[JobRow] = LazyHeap()
        self.lines = Lines(self._due)
        self._shedding: set[str] = set()
        self.cancel_requested = {job_id for job_id, row in facts.rows.items() if row.cancel_requested}
        running: dict[str, list[JobRow]] = {}
        for row in facts.rows.values():
            if row.state is _RUNNING:
                running.setdefault(row.entry.queue, []).append(row)
        for queue in (*facts.specs, *facts.paused, *running):
            self.queue(queue, running.get(queue, ()))
        for row in facts.rows.values():
            self._restore(row)
        for name in list(self.lines):
            self.lines.expose(name)

    def queue(self, name: str, running: Iterable[JobRow] = ()) -> QueueState:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueState(self._facts.spec(name), self.lanes, running)
            self._configured(queue)
        return queue

    def configure(self, spec: QueueSpec) -> None:
        queue = self.queue(spec.name)
        rows = self._facts.rows
        running = (rows[job_id] for job_id in self.leases.walk(MAX_INSTANT + _MAX_LEASE))
        queue.configure(spec, [row for row in running if row.entry.queue == spec.name])
        self._configured(queue)
        if queue.shed_order is not None:
            for row in rows.values():
                if row.entry.queue == spec.name and row.state in (_WAITING, _READY):
                    queue.shed_order.add(row)
        self.crowd(spec.name)

    def _configured(self, queue: QueueState) -> None:
        name = queue.spec.name
        for names, belongs in ((self._shedding, queue.shed_order is not None), (self.paced, queue.stamper.paced)):
            names.discard(name)
            if belongs:
                names.add(name)

    def accept(self, rows: Iterable[JobRow]) -> None:
        """New rows: ready at once, or waiting for their time and their lines."""
        queues = self.queues
        for row in rows:
            entry, state = row.entry, row.state
            if entry.merges or entry.expires_at is not None:
                self._enter(row)
            queue = queues.get(entry.queue) or self.queue(entry.queue)
            queue.counts[state] += 1
            if queue.shed_order is not None:
                queue.shed_order.add(row)
            if state is _READY:
                queue.push(row)
                if queue.claimers.waiting:
                    self.notify(queue, 1)
            elif entry.line is None:
                self._due.push(row.due_at, entry.id, row)
            elif self.lines.join(entry.line, row):
                self.lines.expose(entry.line)

    def merged(self, before: JobRow, row: JobRow) -> None:
        """A row that was not claimed yet took over newer work."""
        entry, expired_at = row.entry, before.entry.expires_at
        if expired_at != entry.expires_at:
            if expired_at is not None:
                self.expiring.remove(expired_at, entry.id)
            if entry.expires_at is not None:
                self.expiring.add(entry.expires_at, entry.id)
        if before.due_at != row.due_at and self._waits(row):
            self._due.discard(before.due_at, row.entry.id)
            self._due.push(row.due_at, row.entry.id, row)
        if before.rank != row.rank:
            self._reranked(before, row, self.queues[entry.queue])

    def claimed(self, rows: list[JobRow], until: Instant) -> None:
        """Rows that were taken are running now."""
        for row in rows:
            entry = row.entry
            self.leases.add(until, entry.id)
            if entry.merges:
                self._drop_merge(row)
            if entry.expires_at is not None:
                self.expiring.remove(entry.expires_at, entry.id)
        if self._shedding:
            for row in rows:
                shed_order = self.queues[row.entry.queue].shed_order
                if shed_order is not None:
                    shed_order.drop(row)

    def _reranked(self, before: JobRow, row: JobRow, queue: QueueState) -> None:
        if queue.shed_order is not None:
            queue.shed_order.drop(before)
            queue.shed_order.add(row)
        if row.state is _READY:
            queue.withdraw(before)
            queue.push(row)

    def extended(self, row: JobRow, was: Instant) -> None:
        self.leases.remove(was, row.entry.id)
        self.leases.add(row.lease_until, row.entry.id)

    def settled(self, row: JobRow) -> None:
        """A running row ended or waits again, as its new state says."""
        entry = row.entry
        self.leases.remove(row.lease_until, entry.id)
        queue = self._home(row)
        queue.counts[_RUNNING] -= 1
        if queue.queue_lanes.whole or entry.gates:
            for state in self.lanes.give_back(queue.queue_lanes, entry.gates, entry.cost):
                self.has_room(state, entry.cost)
        if row.state is _WAITING:
            self._wait(row, queue)
        else:
            self._end(row, queue)

    def ended(self, row: JobRow, was: State, *, taken: bool = False) -> None:
        """A row without a lease was cancelled, or died; `taken`: a claim has reached it, and it has left its lane."""
        queue = self._home(row)
        queue.counts[was] -= 1
        if queue.shed_order is not None:
            queue.shed_order.drop(row)
        if was is _READY and not taken:
            queue.withdraw(row)
            if queue.claimers.waiting:
                self.notify(queue, 1)
        elif was is _WAITING and self._waits(row):
            self._due.discard(row.due_at, row.entry.id)
        self._drop_merge(row)
        self._end(row, queue)

    def purged(self, row: JobRow, was: State) -> None:
        """A finished row was purged."""
        self.queues[row.entry.queue].counts[was] -= 1
        self._unkeep(row, was)
        line = row.entry.line
        if line is not None and in_line(was, blocks=row.entry.blocks):
            self.lines.unblock(line, row)
            self.lines.leave(line, row)
            self.lines.expose(line)

    def passed_by(self, rows: Iterable[JobRow]) -> list[JobRow]:
        """Ready rows that go behind one of these dead rows of their line, when that is alive again."""
        found: dict[int, JobRow] = {}
        for row in rows:
            exposed = None if row.entry.line is None else self.lines.exposed(row.entry.line)
            if exposed is not None and exposed.state is _READY and exposed.entry.id > row.entry.id:
                found[exposed.entry.id] = exposed
        return list(found.values())

    def withdrawn(self, row: JobRow) -> None:
        """A ready row is behind another one of its line again, and waits."""
        queue = self.queues[row.entry.queue]
        queue.withdraw(row)
        queue.counts[_READY] -= 1
        queue.counts[_WAITING] += 1
        if row.entry.line is not None:
            self.lines.step_back(row.entry.line, row)

    def redriven(self, row: JobRow, left: str, died_at: Instant, kept_until: Instant) -> None:
        """A dead row has left that queue and is back in its own."""
        self.queues[left].counts[State.DEAD] -= 1
        self._finished[State.DEAD][left].remove(died_at, row.entry.id)
        self.kept.remove(kept_until, row.entry.id)
        if row.entry.line is not None:
            if row.entry.blocks:
                self.lines.unblock(row.entry.line, row)
            else:
                self.lines.join(row.entry.line, row)
        self._wait(row, self.queues[row.entry.queue])

    def take_due(self, now: Instant, limit: int) -> list[JobRow]:
        """Rows that become ready now; `promoted` is called once they are."""
        rows: list[JobRow] = []
        while len(rows) < limit and (head := self._due.head()) is not None and head[0] <= now:
            heappop(self._due.items)
            rows.append(head[2])
        return rows

    def promoted(self, rows: list[JobRow]) -> None:
        for name, alike in groupby(rows, _QUEUE):
            some, queue = list(alike), self.queues[name]
            queue.counts[_WAITING] -= len(some)
            queue.counts[_READY] += len(some)
            for row in some:
                queue.push(row)
            if queue.claimers.waiting:
                self.notify(queue, len(some))

    def notify(self, queue: QueueState, count: int) -> None:
        """Wake this many waiters for work, if a claim may find some now."""
        now = self.lanes.now
        if self._facts.paused.get(queue.spec.name, 0) <= now and queue.workable_at(now) <= now:
            queue.claimers.wake(count)

    def has_room(self, state: GateState, count: int) -> None:
        """A gate may have this many free slots: wake waiters of its queues."""
        for name in state.numbers:
            queue = self.queues[name]
            if queue.claimers.waiting:
                self.notify(queue, count)

    def tick(self, now: Instant) -> None:
        """Rates open in time."""
        for state in self.lanes.tick(now):
            self.has_room(state, MAX_DEPTH)

    def finished_before(self, state: State, before: Instant, limit: int, queue: str | None = None) -> list[int]:
        """The oldest first, of those in one queue or in all of them."""
        rows = self._facts.rows
        by_queue = self._finished[state]
        wanted = by_queue.values() if queue is None else [by_queue[queue]] if queue in by_queue else []
        walks = [deadlines.walk(before + _SECOND) for deadlines in wanted]
        ids = walks[0] if len(walks) == 1 else merge(*walks, key=lambda job_id: rows[job_id].finished_at)
        return list(islice((job_id for job_id in ids if rows[job_id].finished_at < before), limit))

    def crowd(self, queue: str) -> None:
        """The queue may have more dead letters than it keeps."""
        if self._excess(queue) > 0:
            self.over_dead_limit[queue] = None

    def too_many(self, queue: str, limit: int) -> list[int]:
        """The oldest dead letters of the queue beyond the number that it keeps; none: it has no more than that."""
        excess = min(limit, self._excess(queue))
        if excess > 0:
            return self._finished[State.DEAD][queue].due(MAX_INSTANT, excess)
        self.over_dead_limit.pop(queue, None)
        return []

    def _excess(self, queue: str) -> int:
        state = self.queues[queue]
        maximum = state.stamper.max_dead
        return 0 if maximum is None else state.counts[State.DEAD] - maximum

    def next_due(self, now: Instant) -> Instant | None:
        """When the next row falls due, or the next rate opens that holds ready rows."""
        openings = (self.queues[name].workable_at(now) for name in self.paced)
        instants = [self.next_due_job(), self.lanes.next_opening(), *(at for at in openings if now < at < MAX_INSTANT)]
        return min((at for at in instants if at is not None), default=None)

    def next_due_job(self) -> Instant | None:
        row = self._due.peek()
        return None if row is None else row.due_at

    @property
    def needs_maintenance(self) -> bool:
        """Whether anything may have to be promoted, opened, expired or purged, now or later."""
        timers = self._due.items or self.expiring.instants or self.kept.instants or self.lanes.timers
        return bool(timers or self.over_dead_limit or self.paced)

    def _enter(self, row: JobRow) -> None:
        entry = row.entry
        # A job that was claimed once, or redriven, no longer takes newer payloads.
        if entry.merges and entry.subject is not None and not row.delivery and not row.errors:
            self.queue(entry.queue).newest[entry.subject] = entry.id
        if entry.expires_at is not None:
            self.expiring.add(entry.expires_at, entry.id)

    def _waits(self, row: JobRow) -> bool:
        """Whether a waiting row waits for its time, and not for its turn in a line."""
        return row.entry.line is None or self.lines.exposed(row.entry.line) is row

    def _wait(self, row: JobRow, queue: QueueState) -> None:
        queue.counts[_WAITING] += 1
        if row.entry.line is None:
            self._due.push(row.due_at, row.entry.id, row)
        else:
            self.lines.step_back(row.entry.line, row)
            self.lines.expose(row.entry.line)
        if queue.shed_order is not None:
            queue.shed_order.add(row)
        if row.entry.expires_at is not None:
            self.expiring.add(row.entry.expires_at, row.entry.id)

    def _end(self, row: JobRow, queue: QueueState) -> None:
        entry = row.entry
        if entry.line is not None:
            if in_line(row.state, blocks=entry.blocks):
                self.lines.step_back(entry.line, row)
                self.lines.block(entry.line, row)
            else:
                self.lines.leave(entry.line, row)
            self.lines.expose(entry.line)
        if entry.expires_at is not None:
            self.expiring.remove(entry.expires_at, entry.id)
        if entry.id in self._facts.rows:
            self._keep(row)
        if queue.producers.waiting:
            queue.producers.wake(queue.room)

    def _home(self, row: JobRow) -> QueueState:
        """The queue that a job belongs to, even where its dead letter is in another one."""
        return self.queues[row.queue]

    def _keep(self, row: JobRow) -> None:
        queue = row.entry.queue
        self.queue(queue).counts[row.state] += 1
        deadlines = self._finished[row.state].get(queue)
        if deadlines is None:
            deadlines = self._finished[row.state][queue] = Deadlines(_SECOND)
        deadlines.add(row.finished_at, row.entry.id)
        if row.kept_until:
            self.kept.add(row.kept_until, row.entry.id)
        if row.state is State.DEAD:
            self.crowd(queue)

    def _unkeep(self, row: JobRow, was: State) -> None:
        self._finished[was][row.entry.queue].remove(row.finished_at, row.entry.id)
        if row.kept_until:
            self.kept.remove(row.kept_until, row.entry.id)

    def _drop_merge(self, row: JobRow) -> None:
        if row.entry.merges and row.entry.subject is not None:
            newest = self._home(row).newest
            if newest.get(row.entry.subject) == row.entry.id:
                del newest[row.entry.subject]

    def _restore(self, row: JobRow) -> None:
        """One row of a recovered store; which row of a line is exposed is worked out when all are there."""
        entry, state = row.entry, row.state
        queue = self.queue(entry.queue)
        if entry.line is not None and in_line(state, blocks=entry.blocks):
            self.lines.join(entry.line, row, exposed=state in (_READY, _RUNNING))
            if state.terminal:
                self.lines.block(entry.line, row)
        if state.terminal:
            self._keep(row)
            return
        queue.counts[state] += 1
        if state is _RUNNING:
            self.leases.add(row.lease_until, entry.id)
            return
        self._enter(row)
        if queue.shed_order is not None:
            queue.shed_order.add(row)
        if state is _READY:
            queue.push(row)
        elif entry.line is None:
            self._due.push(row.due_at, row.entry.id, row)
