"""The verbs of a job's life: enqueue, promote, claim, extend, settle, overdue, cancel, redrive, purge."""

from collections.abc import Sequence
from copy import copy
from threading import Event as Sleeper
from typing import Final

from forebay.core.errors import QueueFull
from forebay.core.event import (
    Acked,
    Cancelled,
    Claimed,
    Died,
    Dismissed,
    Ending,
    Enqueued,
    Extended,
    Fired,
    Grave,
    Promoted,
    Redriven,
    Released,
    Retried,
    SettledAll,
)
from forebay.core.instant import Instant, Span
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled, Settlement, outlived
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.store.memory.deadlines import rounded_up
from forebay.store.memory.engine import TEND_LIMIT, Engine
from forebay.store.memory.facts import ENDING_CODES
from forebay.store.memory.row import Row
from forebay.store.protocol import CancelAnswer, Promotion, Receipt, Want

_VERDICT_CODES: Final[dict[type, str]] = {
    Ack: ENDING_CODES[Acked],
    Retry: ENDING_CODES[Retried],
    DeadLetter: ENDING_CODES[Died],
    Release: ENDING_CODES[Released],
    Cancel: ENDING_CODES[Dismissed],
}


class JobVerbs(Engine):
    """A job from its acceptance to its end."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        with self._lock:
            now = self._begin()
            plan = self._intake.plan(drafts, now)
            if plan.entries or plan.merged:
                self._take_in(Enqueued(now, plan.entries, plan.merged, plan.shed, self._graves_of(plan.shed, now)))
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

    def claim(self, wants: Sequence[Want], owner: str, span: Span) -> list[Lease]:
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
                deliveries, tats = [row.delivery + 1 for row in rows], self._index.lanes.tats()
                self._record(Claimed(now, owner, until, ids, deliveries, tats))
                self._index.claimed(rows, until)
                leases = [Lease(row.picture(), owner, until) for row in rows]
                if self._asleep:
                    self._rouse(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return leases

    def extend(self, leases: Sequence[Lease], span: Span) -> list[Lease]:
        with self._lock:
            now = self._begin()
            until = rounded_up(now + span, span)
            rows = {lease.job.id: row for lease in leases if (row := self._held(lease)) is not None}
            if rows:
                before = [row.until for row in rows.values()]
                self._record(Extended(now, until, list(rows)))
                for row, was in zip(rows.values(), before, strict=True):
                    self._index.extended(row, was)
            survivors = [_lease(row) for row in rows.values()]
            lsn = self._lsn
        self._settle_down(lsn)
        return survivors

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        with self._lock:
            now = self._begin()
            answers: list[Settled] = []
            endings: dict[int, Ending] = {}
            rows: list[Row] = []
            for lease, verdict in settlements:
                row = self._held(lease)
                if row is not None and lease.job.id not in endings and not outlived(lease, verdict, row.until):
                    endings[lease.job.id] = self._ending(row, verdict, now)
                    rows.append(row)
                    answers.append(Settled.APPLIED)
                else:
                    answers.append(self._again(lease, verdict, endings.get(lease.job.id)))
            if rows:
                self._record(SettledAll(now, list(endings.values())))
                for row in rows:
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
            answers: list[CancelAnswer] = []
            ended: dict[int, Row] = {}
            asked: dict[int, None] = {}
            for job_id in ids:
                row = self._facts.rows.get(job_id)
                if row is None or row.state.terminal or job_id in ended:
                    answers.append(CancelAnswer.GONE)
                elif row.state is State.RUNNING:
                    asked[job_id] = None
                    answers.append(CancelAnswer.REQUESTED)
                else:
                    ended[job_id] = row
                    answers.append(CancelAnswer.CANCELLED)
            if ended or asked:
                states = [row.state for row in ended.values()]
                kept = [self._kept_until(row, now) for row in ended.values()]
                self._index.asked.update(asked)
                self._record(Cancelled(now, list(ended), kept, list(asked)))
                for row, state in zip(ended.values(), states, strict=True):
                    self._index.ended(row, state)
                self._tend(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return answers

    def redrive(self, ids: Sequence[int]) -> list[int]:
        with self._lock:
            now = self._begin()
            rows = self._facts.rows
            dead = {job_id: row for job_id in ids if (row := rows.get(job_id)) is not None and row.state is State.DEAD}
            arrivals: dict[str, int] = {}
            for row in dead.values():
                queue = row.queue
                arrivals[queue] = arrivals.get(queue, 0) + 1
            self._intake.check_capacity(arrivals)
            if dead:
                graves = [(row.entry.queue, row.finished_at, row.kept_until) for row in dead.values()]
                withdrawn = self._index.passed_by(dead.values())
                self._record(Redriven(now, list(dead), [row.entry.id for row in withdrawn]))
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
                self._purge(ids, now)
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
                self._purge(dead, now)
                self._tend(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return dead

    def _take_in(self, event: Enqueued | Fired) -> None:
        """What came in, as it was planned."""
        rows, index, merged = self._facts.rows, self._index, event.merged
        before = [copy(row) for job_id in {merge.id for merge in merged} if (row := rows.get(job_id))] if merged else []
        mended = [rows[job_id] for job_id in event.mended] if isinstance(event, Enqueued) else []
        shed = [(row, row.state) for row in (rows[job_id] for job_id in event.shed)]
        self._record(event)
        for row in mended:
            index.forgotten(row, State.DEAD)
        for row in before:
            index.merged(row, rows[row.entry.id])
        for entry in event.entries:
            index.accept(rows[entry.id])
        for row, state in shed:
            index.ended(row, state)
        if index.restless:
            self._tend(event.at, len(event.entries) + TEND_LIMIT)
            self._rouse(event.at)

    def _graves_of(self, ids: list[int], now: Instant) -> dict[int, Grave]:
        return self._graves([self._facts.rows[job_id] for job_id in ids], now) if ids else {}

    def _take(self, want: Want, now: Instant) -> list[Row]:
        """Rows of the queue that its gates admit; those past their expiry die, and others may follow."""
        queue = self._index.queues.get(want.queue)
        if queue is None or self._facts.paused.get(want.queue, 0) > now:
            return []
        expiring = bool(self._index.expiring.instants)
        rows, late = queue.take(want.count, want.cls, now, expiring)
        while late:
            self._record(Promoted(now, [], [row.entry.id for row in late], self._graves(late, now)))
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

    def _again(self, lease: Lease, verdict: Verdict, same_call: Ending | None) -> Settled:
        """A settle whose lease is not current: applied if it is the last settle over again, else stale."""
        row = self._facts.rows.get(lease.job.id)
        if same_call is not None:
            last = (same_call.delivery, ENDING_CODES[type(same_call)])
        elif row is not None:
            last = row.settled
        else:
            last = self._facts.removed.get(lease.job.id, (0, ""))
        return Settled.APPLIED if last == (lease.job.delivery, _VERDICT_CODES.get(type(verdict))) else Settled.STALE

    def _ending(self, row: Row, verdict: Verdict, now: Instant) -> Ending:
        """The verdict as the ledger writes it down; lengths of time become instants on this store's clock."""
        job_id, delivery = row.entry.id, row.delivery
        match verdict:
            case Ack():
                return Acked(job_id, delivery, self._kept_until(row, now, verdict.keep_for), verdict.result)
            case Retry(after, error, keep_rank):
                return Retried(job_id, delivery, now + after, error, keep_rank)
            case DeadLetter(error):
                return Died(job_id, delivery, error, self._grave(row, now))
            case Release(after, error):
                return Released(job_id, delivery, now + after, leads=True, error=error)
            case Cancel():
                return Dismissed(job_id, delivery, self._kept_until(row, now, verdict.keep_for))

    def _kept_until(self, row: Row, now: Instant, keep_for: Span = 0) -> Instant:
        return self._index.queues[row.entry.queue].stamper.kept_until(now, keep_for)


def _lease(row: Row) -> Lease:
    return Lease(row.picture(), row.owner or "", row.until)
