"""The verbs of a job's life: enqueue, promote, claim, extend, settle, overdue, cancel, redrive, purge."""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from threading import Event as Sleeper

from forebay.core.changeset import WITHDRAWN, ChangeSet, JobChange, JobChanges, Tables
from forebay.core.errors import QueueFull
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.outcome import Ack, Verdict
from forebay.engine.intake import IntakePlan, check_capacity
from forebay.engine.settle import plan_cancel, plan_settle, transition
from forebay.store.memory.deadlines import rounded_up
from forebay.store.memory.engine import TEND_LIMIT, Engine
from forebay.store.memory.intake import merges_of
from forebay.store.memory.row import Row
from forebay.store.protocol import CancelAnswer, Promotion, Receipt, Want


class JobVerbs(Engine):
    """A job from its acceptance to its end."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        with self._lock:
            now = self._begin()
            plan = self._intake.plan(drafts, now)
            if plan.is_new:
                self._take_in(plan, now, "enqueue")
            lsn = self._lsn
        self._settle_down(lsn)
        return plan.receipts

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        sleeper = Sleeper()
        with self._lock:
            now = self._begin()
            queue = self._index.queue(full.queue)
            if queue.depth + full.asked <= full.limit:
                return
            queue.producers.add(sleeper, full.asked)
        self._clock.wait(sleeper, until - now)
        with self._lock:
            queue.producers.drop(sleeper)

    def promote(self, limit: int) -> Promotion:
        with self._lock:
            now = self._begin()
            ready = self._tend(now, limit)
            next_due = self._index.next_due(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return Promotion(ready, next_due)

    def claim(self, wants: Sequence[Want], owner: str, span: Duration) -> list[Lease]:
        leases: list[Lease] = []
        with self._lock:
            now = self._begin()
            if self._index.restless:
                self._tend(now, sum(want.count for want in wants) + TEND_LIMIT)
            rows = (
                self._take(wants[0], now)
                if len(wants) == 1
                else [row for want in wants for row in self._take(want, now)]
            )
            if rows:
                until = rounded_up(now + span, span)
                ids = [row.entry.id for row in rows]
                claimed = JobChange(Change.CLAIMED, ids, [row.delivery + 1 for row in rows], until)
                tables = Tables(tats=self._index.lanes.tats()) if self._index.lanes.started else None
                self._commit(ChangeSet(now, "claim", [claimed], owner=owner, tables=tables))
                self._index.claimed(rows, until)
                leases = [Lease(row.picture(), owner, until) for row in rows]
                if self._asleep:
                    self._rouse(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return leases

    def extend(self, leases: Sequence[Lease], span: Duration) -> list[Lease]:
        with self._lock:
            now = self._begin()
            until = rounded_up(now + span, span)
            rows = {lease.job.id: row for lease in leases if (row := self._held(lease)) is not None}
            if rows:
                before = [row.lease_until for row in rows.values()]
                self._commit(ChangeSet(now, "extend", [JobChange(Change.EXTENDED, list(rows), until=until)]))
                for row, was in zip(rows.values(), before, strict=True):
                    self._index.extended(row, was)
            survivors = [_lease(row) for row in rows.values()]
            lsn = self._lsn
        self._settle_down(lsn)
        return survivors

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        with self._lock:
            now = self._begin()
            answers, endings = plan_settle(settlements, self._facts.rows, self._facts.removed)
            if endings:
                changes: list[JobChange] = []
                ids: list[int] = []
                deliveries: list[int] = []
                like: tuple[Verdict, str] | None = None
                for row, verdict, _ in endings:
                    if like != (verdict, row.entry.queue):
                        like, ids, deliveries = (verdict, row.entry.queue), [], []
                        changes.append(self._ending(row, verdict, now, ids, deliveries))
                    ids.append(row.entry.id)
                    deliveries.append(row.delivery)
                self._commit(ChangeSet(now, "settle", changes))
                for row, _, _ in endings:
                    self._index.settled(row)
                if self._index.restless:
                    self._tend(now)
                    self._rouse(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return answers

    def overdue(self, limit: int) -> list[Lease]:
        with self._lock:
            now = self._begin()
            leases = [_lease(self._facts.rows[job_id]) for job_id in self._index.leases.due(now, limit)]
            lsn = self._lsn
        self._settle_down(lsn)
        return leases

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        with self._lock:
            now = self._begin()
            rows = self._facts.rows
            plan = plan_cancel(ids, {job_id: rows[job_id].state for job_id in ids if job_id in rows})
            ended = [rows[job_id] for job_id in plan.ended]
            asked = [job_id for job_id in plan.asked if not rows[job_id].cancel_requested]
            if ended or asked:
                states = [row.state for row in ended]
                changes = JobChanges()
                for row in ended:
                    stamper = self._index.queues[row.entry.queue].stamper
                    changes.add(row.entry.id, 0, Change.CANCELLED, stamper.kept_until(now))
                for job_id in asked:
                    changes.add(job_id, 0, Change.ASKED)
                self._index.asked.update(asked)
                self._commit(ChangeSet(now, "cancel", changes.jobs))
                for row, state in zip(ended, states, strict=True):
                    self._index.ended(row, state)
                self._tend(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return plan.answers

    def redrive(self, ids: Sequence[int]) -> list[int]:
        with self._lock:
            now = self._begin()
            rows = self._facts.rows
            dead = {job_id: row for job_id in ids if (row := rows.get(job_id)) is not None and row.state is State.DEAD}
            check_capacity(self._intake, Counter(row.queue for row in dead.values()))
            if dead:
                graves = [(row.entry.queue, row.finished_at, row.kept_until) for row in dead.values()]
                withdrawn = self._index.passed_by(dead.values())
                changes = [JobChange(Change.REDRIVEN, list(dead), until=now)]
                if withdrawn:
                    changes.append(JobChange(WITHDRAWN, [row.entry.id for row in withdrawn]))
                self._commit(ChangeSet(now, "redrive", changes))
                for row in withdrawn:
                    self._index.withdrawn(row)
                # Smaller ids first: of those of one line, the first is exposed at once, and only once.
                for row, grave in sorted(zip(dead.values(), graves, strict=True), key=lambda pair: pair[0].entry.id):
                    self._index.redriven(row, *grave)
                self._tend(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return list(dead)

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        with self._lock:
            now = self._begin()
            ids = self._index.finished_before(state, before, limit, queue)
            if ids:
                self._purge(ids, now, "purge")
                self._tend(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return len(ids)

    def discard(self, ids: Sequence[int]) -> list[int]:
        with self._lock:
            now = self._begin()
            rows = self._facts.rows
            dead = [each for each in dict.fromkeys(ids) if each in rows and rows[each].state is State.DEAD]
            if dead:
                self._purge(dead, now, "purge")
                self._tend(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return dead

    def _take_in(
        self,
        plan: IntakePlan,
        now: Instant,
        verb: str,
        *,
        replaced: Sequence[int] = (),
        name: str | None = None,
        tick: Instant | None = None,
        tables: Tables | None = None,
    ) -> None:
        """What comes in, as it was planned, for dead jobs that it replaces."""
        rows, index, merges = self._facts.rows, self._index, merges_of(plan)
        before = [copy(row) for job_id in {each.id for each in merges} if (row := rows.get(job_id))] if merges else ()
        gone = [rows[job_id] for job_id in replaced]
        shed = [rows[job_id] for job_id in plan.shed]
        states = [row.state for row in shed]
        jobs = [JobChange(Change.PURGED, replaced)] if replaced else []
        if shed:
            jobs += self._deaths(Change.SHED, shed, now)
        self._commit(ChangeSet(now, verb, jobs, plan.entries, merges, name=name, tick=tick, tables=tables))
        for row in gone:
            index.forgotten(row, State.DEAD)
        for row in before:
            index.merged(row, rows[row.entry.id])
        for entry in plan.entries:
            index.accept(rows[entry.id])
        for row, state in zip(shed, states, strict=True):
            index.ended(row, state)
        if index.restless:
            self._tend(now, len(plan.entries) + TEND_LIMIT)
            self._rouse(now)

    def _take(self, want: Want, now: Instant) -> list[Row]:
        """Rows of the queue that its gates admit; those past their expiry die, and others may follow."""
        queue = self._index.queues.get(want.queue)
        if queue is None or self._facts.paused.get(want.queue, 0) > now:
            return []
        expiring = bool(self._index.expiring.instants)
        rows, late = queue.take(want.count, want.cls, now, expiring)
        while late:
            self._commit(ChangeSet(now, jobs=self._deaths(Change.EXPIRED, late, now)))
            for row in late:
                self._index.expired(row)
            self._tend(now)
            more, late = queue.take(want.count - len(rows), want.cls, now, expiring)
            rows += more
        queue.counts[State.READY] -= len(rows)
        queue.counts[State.RUNNING] += len(rows)
        return rows

    def _held(self, lease: Lease) -> Row | None:
        """The row, if the lease is its current one; the fence decides, not the time."""
        row = self._facts.rows.get(lease.job.id)
        if row is None or row.state is not State.RUNNING or row.delivery != lease.job.delivery:
            return None
        return row

    def _ending(
        self, row: Row, verdict: Verdict, now: Instant, ids: Sequence[int], deliveries: Sequence[int]
    ) -> JobChange:
        """What a verdict does to jobs of this queue; lengths of time become instants on this store's clock."""
        stamper = self._index.queues[row.entry.queue].stamper
        change, state, until, error, keep_rank = transition(verdict, stamper, now)
        grave = self._grave(row, now) if state is State.DEAD else None
        result = verdict.result if isinstance(verdict, Ack) else None
        return JobChange(change, ids, deliveries, until, error, grave, result, keep_rank)


def _lease(row: Row) -> Lease:
    return Lease(row.picture(), row.owner or "", row.lease_until)
