"""Everything derived from the facts: which job is next, what is due, whose lease ran out, which gate has room.

Verbs change the facts by an event and then tell the index what moved. Every operation is O(log n); nothing walks all
jobs in flight. `Index(facts)` rebuilds it all, which is how a recovered store gets its index.
"""

from heapq import merge
from itertools import islice

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import INSTANT_MOST
from forebay.core.spec import QueueSpec
from forebay.store.memory.deadlines import Deadlines
from forebay.store.memory.facts import Facts
from forebay.store.memory.gates import Gates
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.line import Line
from forebay.store.memory.row import Row

_SECOND = 1_000_000
_GRAIN = 10_000
"""What is kept or expires may go so much later: fine enough for milliseconds, coarse enough to share buckets."""
_READY, _RUNNING, _WAITING = State.READY, State.RUNNING, State.WAITING


class Tries:
    """How many that a rate lets in, and another gate does not, a claim still looks at in passing."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 64


class Index:
    """The moving parts of one store; guarded by its lock."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.lines: dict[str, Line] = {}
        self.gates = Gates(facts.gate_limits, facts.tides)
        self.leases: Deadlines[int] = Deadlines()
        self.kept: Deadlines[int] = Deadlines(_GRAIN)
        self.expiring: Deadlines[int] = Deadlines(_GRAIN)
        self.crowded: dict[str, None] = {}
        self._finished: dict[State, dict[str, Deadlines[int]]] = {state: {} for state in State if state.terminal}
        self._due = LazyHeap()
        self.brokers = {spec.name for spec in facts.specs.values() if spec.is_broker}
        self.shedding: set[str] = set()
        self.asked = {job_id for job_id, row in facts.rows.items() if row.cancel_requested}
        for queue in (*facts.specs, *facts.paused):
            self.line(queue)
        for row in facts.rows.values():
            self._restore(row)

    def line(self, queue: str) -> Line:
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = Line(self._facts.spec(queue))
            if line.resting is not None:
                self.shedding.add(queue)
        return line

    def configure(self, spec: QueueSpec) -> None:
        line = self.line(spec.name)
        line.configure(spec)
        self.shedding.discard(spec.name)
        if line.resting is not None:
            self.shedding.add(spec.name)
            for row in self._facts.rows.values():
                if row.entry.queue == spec.name and row.state in (_WAITING, _READY):
                    line.resting.add(row)
        self.crowd(spec.name)
        if spec.is_broker:
            self.brokers.add(spec.name)
        else:
            self.brokers.discard(spec.name)

    def accept(self, row: Row) -> None:
        """A new row: ready at once, or waiting for its time and its gates."""
        entry, state = row.entry, row.state
        if entry.gates or entry.merges or entry.expires_at is not None:
            self._enter(row)
        line = self.lines.get(entry.queue) or self.line(entry.queue)
        line.counts[state] += 1
        if line.resting is not None:
            line.resting.add(row)
        if state is _READY:
            line.push(row)
            if line.claimers.sleepers:
                line.claimers.wake(1)
        else:
            self._due.push(row.due_at, row)

    def merged(self, before: Row, row: Row) -> None:
        """A row that nobody has claimed took over newer work."""
        entry, expired_at = row.entry, before.entry.expires_at
        if expired_at != entry.expires_at:
            if expired_at is not None:
                self.expiring.remove(expired_at, entry.id)
            if entry.expires_at is not None:
                self.expiring.add(entry.expires_at, entry.id)
        if before.due_at != row.due_at:
            self._due.forget(before.due_at, row)
            self._due.push(row.due_at, row)
        if before.rank != row.rank:
            self._reranked(before, row, self.lines[entry.queue])

    def claimed(self, rows: list[Row], until: Instant) -> None:
        """Rows that were popped, or started, are running now."""
        self.gates.moved.clear()
        for row in rows:
            entry = row.entry
            self.leases.add(until, entry.id)
            if entry.merges:
                self._forget_merge(row)
            if entry.expires_at is not None:
                self.expiring.remove(entry.expires_at, entry.id)
        if self.shedding:
            for row in rows:
                resting = self.lines[row.entry.queue].resting
                if resting is not None:
                    resting.drop(row)

    def _reranked(self, before: Row, row: Row, line: Line) -> None:
        if line.resting is not None:
            line.resting.drop(before)
            line.resting.add(row)
        if row.state is _READY:
            line.withdraw(before)
            line.push(row)
        else:
            self.gates.reranked(before, row)

    def extended(self, row: Row, was: Instant) -> None:
        self.leases.remove(was, row.entry.id)
        self.leases.add(row.until, row.entry.id)

    def settled(self, row: Row) -> None:
        """A running row ended or waits again, as its new state says."""
        entry = row.entry
        self.leases.remove(row.until, entry.id)
        if entry.gates:
            self.gates.release(row)
        line = self._home(row)
        line.counts[_RUNNING] -= 1
        if row.state is _WAITING:
            self._wait(row, line)
        else:
            self._end(row, line)

    def ended(self, row: Row, was: State) -> None:
        """A row that nobody held was cancelled, or died."""
        line = self._home(row)
        line.counts[was] -= 1
        if line.resting is not None:
            line.resting.drop(row)
        if was is State.READY:
            line.withdraw(row)
            self.gates.release(row)
        elif was is State.WAITING and self.gates.where(row) is None:
            self._due.forget(row.due_at, row)
        self._forget_merge(row)
        self._end(row, line)

    def expired(self, row: Row) -> None:
        """A ready row was popped by a claim that found it expired."""
        line = self._home(row)
        line.counts[State.READY] -= 1
        if line.resting is not None:
            line.resting.drop(row)
        self.gates.release(row)
        self._forget_merge(row)
        self._end(row, line)

    def forgotten(self, row: Row, was: State) -> None:
        """A finished row was purged."""
        self.lines[row.entry.queue].counts[was] -= 1
        self._unkeep(row, was)
        self.gates.forget(row)

    def redriven(self, row: Row, lay_in: str, died_at: Instant, kept_until: Instant) -> None:
        """A dead row that lay in that queue is back in its own."""
        self.lines[lay_in].counts[State.DEAD] -= 1
        self._finished[State.DEAD][lay_in].remove(died_at, row.entry.id)
        self.kept.remove(kept_until, row.entry.id)
        self.gates.rejoin(row)
        self._wait(row, self.lines[row.entry.queue])

    def promote(self, now: Instant, limit: int) -> list[Row]:
        """Rows that may become ready now, their slots taken.

        First those that are due: one that was taken back is the first in rank for the slot that it gave back, and a
        newcomer parks behind those that are parked. Then parked rows.
        """
        rows: list[Row] = []
        while limit > 0:
            row, turn = self._due.peek(), None
            if row is not None and row.due_at <= now:
                self._due.pop()
            else:
                found = self.gates.next_candidate(now) if self.gates.opened else None
                if found is None:
                    break
                row, turn = found
            limit -= 1
            if not row.entry.gates or self.gates.admit(row, now, turn=turn):
                rows.append(row)
        if self.gates.paces:
            for queue in self.gates.paces.ripen(now):
                self.lines[queue].claimers.wake(1)
        return rows

    def passed(self, name: str, rows: list[Row]) -> None:
        """They left the gate for good, and wait for what else may hold them."""
        for row in rows:
            self._due.push(row.due_at, row)
        self.gates.left(name)

    def start(self, queue: str, now: Instant, count: int, cls: str | None, tries: Tries) -> tuple[list[Row], list[Row]]:
        """Rows of the queue that their rates let in now, as many as a claim wants; their slots are taken.

        And those that have expired meanwhile: no start is spent on them. It ends early where others may go on to rates.
        """
        rows: list[Row] = []
        late: list[Row] = []
        while len(rows) < count and tries.left > 0 and not self.gates.opened:
            found = self.gates.next_start(queue, now, cls)
            if found is None:
                break
            row, turn = found
            if row.entry.expires_at is not None and row.entry.expires_at <= now:
                self._due.push(row.due_at, row)
                late.append(row)
            elif self.gates.admit(row, now, starts=True, turn=turn):
                rows.append(row)
            else:
                tries.left -= 1
        return rows, late

    def promoted(self, rows: list[Row]) -> None:
        """Their state is ready now."""
        for row in rows:
            line = self.lines[row.entry.queue]
            line.counts[State.WAITING] -= 1
            line.counts[State.READY] += 1
            line.push(row)
            if line.claimers.sleepers:
                line.claimers.wake(1)

    def finished_before(self, state: State, before: Instant, limit: int, queue: str | None = None) -> list[int]:
        """The oldest first, of those that lie in one queue or in all of them."""
        rows = self._facts.rows
        by_queue = self._finished[state]
        wanted = by_queue.values() if queue is None else [by_queue[queue]] if queue in by_queue else []
        walks = [deadlines.walk(before + _SECOND) for deadlines in wanted]
        ids = walks[0] if len(walks) == 1 else merge(*walks, key=lambda job_id: rows[job_id].finished_at)
        return list(islice((job_id for job_id in ids if rows[job_id].finished_at < before), limit))

    def crowd(self, queue: str) -> None:
        """Perhaps there lie more dead in the queue than it keeps."""
        if self._excess(queue) > 0:
            self.crowded[queue] = None

    def too_many(self, queue: str, limit: int) -> list[int]:
        """The oldest of the dead that lie here beyond the queue's number; none: they are not too many any more."""
        excess = min(limit, self._excess(queue))
        if excess > 0:
            return self._finished[State.DEAD][queue].due(INSTANT_MOST, excess)
        self.crowded.pop(queue, None)
        return []

    def _excess(self, queue: str) -> int:
        line = self.lines[queue]
        rule = line.spec.routing.dead
        return 0 if rule is None or rule.most is None else line.counts[State.DEAD] - rule.most

    def next_due(self) -> Instant | None:
        """When the next row falls due, or the next rate lets one in."""
        row = self._due.peek()
        due_at = INSTANT_MOST if row is None else row.due_at
        if self.gates.paces:
            due_at = min(due_at, self.gates.paces.next())
        return due_at if due_at < INSTANT_MOST else None

    @property
    def restless(self) -> bool:
        """Whether anything may have to be promoted, expired or forgotten, now or later."""
        gates = self.gates.opened or self.gates.paces
        return bool(self._due.items or gates or self.expiring.instants or self.kept.instants or self.crowded)

    def _enter(self, row: Row) -> None:
        entry = row.entry
        if entry.gates:
            self.gates.enter(row)
        # A job that was handed out once, or died and came back, no longer takes newer payloads.
        if entry.merges and entry.subject is not None and not row.delivery and not row.errors:
            self.line(entry.queue).newest[entry.subject] = entry.id
        if entry.expires_at is not None:
            self.expiring.add(entry.expires_at, entry.id)

    def _wait(self, row: Row, line: Line) -> None:
        line.counts[State.WAITING] += 1
        self._due.push(row.due_at, row)
        if line.resting is not None:
            line.resting.add(row)
        if row.entry.expires_at is not None:
            self.expiring.add(row.entry.expires_at, row.entry.id)

    def _end(self, row: Row, line: Line) -> None:
        entry = row.entry
        if entry.gates:
            self.gates.end(row)
        if entry.expires_at is not None:
            self.expiring.remove(entry.expires_at, entry.id)
        if entry.id in self._facts.rows:
            self._keep(row)
        if line.producers.sleepers:
            line.producers.wake(line.room)

    def _home(self, row: Row) -> Line:
        """The queue that a job belongs to, wherever it lies when it is dead."""
        return self.lines[row.queue]

    def _keep(self, row: Row) -> None:
        queue = row.entry.queue
        self.line(queue).counts[row.state] += 1
        deadlines = self._finished[row.state].get(queue)
        if deadlines is None:
            deadlines = self._finished[row.state][queue] = Deadlines(_SECOND)
        deadlines.add(row.finished_at, row.entry.id)
        if row.kept_until:
            self.kept.add(row.kept_until, row.entry.id)
        if row.state is State.DEAD:
            self.crowd(queue)

    def _unkeep(self, row: Row, was: State) -> None:
        self._finished[was][row.entry.queue].remove(row.finished_at, row.entry.id)
        if row.kept_until:
            self.kept.remove(row.kept_until, row.entry.id)

    def _forget_merge(self, row: Row) -> None:
        if row.entry.merges and row.entry.subject is not None:
            newest = self._home(row).newest
            if newest.get(row.entry.subject) == row.entry.id:
                del newest[row.entry.subject]

    def _restore(self, row: Row) -> None:
        """One row of a recovered store."""
        match row.state:
            case State.WAITING | State.READY:
                self.accept(row)
                if row.state is State.READY:
                    self.gates.hold(row)
            case State.RUNNING:
                line = self.line(row.entry.queue)
                line.counts[State.RUNNING] += 1
                self.gates.enter(row)
                self.gates.hold(row)
                self.leases.add(row.until, row.entry.id)
            case State.DONE | State.DEAD | State.CANCELLED:
                if row.state is State.DEAD:
                    self.gates.stand(row)
                self._keep(row)
