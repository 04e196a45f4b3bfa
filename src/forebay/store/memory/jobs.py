"""The life of a job: what drafts become, and the verbs from enqueue to purge.

The rules are those of `engine.intake` and `engine.settle`. A verb here reads what they need, commits the change that
they plan, and updates the index.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from threading import Event

from forebay.core.changeset import WITHDRAWN, ChangeSet, JobChange, JobChanges, TableChanges
from forebay.core.entries import Ingested, Merge
from forebay.core.errors import QueueFull
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.limits import MAINTAINED
from forebay.core.outcome import Ack, Verdict
from forebay.core.policy import Shed
from forebay.core.record_builder import MAINTAIN
from forebay.core.stamp import Stamper
from forebay.engine.intake import IntakePlan, KeyFact, MergeTarget, RankedId, check_capacity, key_is_taken, plan_intake
from forebay.engine.settle import plan_cancel, plan_settle, transition
from forebay.store.memory.facts import JobRow
from forebay.store.memory.heaps import rounded_up
from forebay.store.memory.session import Session, verb
from forebay.store.protocol import CancelAnswer, Checkpoint, Promotion, Receipt, Tally, Want


class Intake:
    """Accepts drafts; what the rules of intake read. `plan` begins each call."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.now: Instant = 0
        self._next_id = 0
        self._facts, self._index = session.facts, session.index
        self._durable = session.recorder is not None

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        session = self.session
        with session.lock:
            now = session.begin()
            plan = self.plan(drafts, now)
            if plan.entries or plan.merged:
                self.accept(plan, now, "enqueue")
            lsn = session.lsn
        session.sync(lsn)
        return plan.receipts

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        session, waiter = self.session, Event()
        with session.lock:
            now = session.begin()
            queue = self._index.queue(full.queue)
            if queue.depth + full.requested <= full.limit:
                return
            queue.producers.add(waiter, full.requested)
        session.clock.wait(waiter, until - now)
        with session.lock:
            queue.producers.drop(waiter)

    @verb
    def ingested(self, _: Instant, source: str) -> Checkpoint | None:
        return self._checkpoint(source)

    @verb
    def ingest(
        self, now: Instant, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        if self._checkpoint(source) != before:
            return None
        plan = self.plan(drafts, now)
        ingested = Ingested(source, after.batch, after.taken, after.digest)
        self.accept(plan, now, "enqueue" if plan.is_new else MAINTAIN, tables=TableChanges(ingested={source: ingested}))
        return Tally.of(plan.receipts)

    @verb
    def replace_dead(self, now: Instant, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        ids = [job_id for job_id in drafts if self._facts.state(job_id) is State.DEAD]
        if not ids:
            return {}
        plan = self.plan([drafts[job_id] for job_id in ids], now)
        self.accept(plan, now, "replace_dead", replaced=ids)
        return dict(zip(ids, plan.receipts, strict=True))

    def plan(self, drafts: Sequence[Draft], now: Instant) -> IntakePlan:
        """What the drafts become, with room made for them. Ids are used up once the plan is accepted."""
        self.now = now
        self._next_id = self._facts.next_id
        plan = plan_intake(self, drafts, durable=self._durable)
        plan.make_room()
        return plan

    def accept(
        self,
        plan: IntakePlan,
        now: Instant,
        verb: str,
        *,
        replaced: Sequence[int] = (),
        name: str | None = None,
        tick: Instant | None = None,
        tables: TableChanges | None = None,
    ) -> None:
        """Commit what was planned; `replaced` are dead jobs that make way for it."""
        session, rows, index = self.session, self._facts.rows, self._index
        merges = _merges_of(plan) if plan.merged else ()
        before = [copy(rows[job_id]) for job_id in {each.id for each in merges} if job_id in rows] if merges else ()
        gone, shed = [rows[job_id] for job_id in replaced], [rows[job_id] for job_id in plan.shed]
        states = [row.state for row in shed]
        jobs = [JobChange(Change.PURGED, replaced)] if replaced else []
        if shed:
            jobs += session.deaths(Change.SHED, shed, now)
        session.commit(ChangeSet(now, verb, jobs, plan.entries, merges, name=name, tick=tick, tables=tables))
        for row in gone:
            index.purged(row, State.DEAD)
        for row in before:
            index.merged(row, rows[row.entry.id])
        index.accept(rows[entry.id] for entry in plan.entries)
        for row, state in zip(shed, states, strict=True):
            index.ended(row, state)
        if index.needs_maintenance:
            session.maintain(now, len(plan.entries) + MAINTAINED)
            session.wake_idle(now)

    def stamper(self, queue: str) -> Stamper:
        return (self._index.queues.get(queue) or self._index.queue(queue)).stamper

    def new_id(self, place: int) -> int:
        job_id = self._next_id
        self._next_id += 1
        return job_id

    def taken_key(self, queue: str, key: str) -> KeyFact | None:
        fact = self._facts.keys.get((queue, key))
        taken = fact is not None and key_is_taken(self.stamper(queue), fact, self._facts.state, self.now)
        return fact if taken else None

    def merge_target(self, queue: str, subject: str) -> MergeTarget | None:
        job_id = self._index.queue(queue).newest.get(subject)
        if job_id is None:
            return None
        row = self._facts.rows[job_id]
        if row.is_expired(self.now):
            return None
        return MergeTarget(job_id, row.enqueued_at, row.due_at, row.entry.rank_timed)

    def depth(self, queue: str) -> int:
        return self._index.queue(queue).depth

    def unclaimed(self, queue: str, shed: Shed, limit: int) -> Iterable[RankedId]:
        return self._index.queue(queue).shed_order or ()

    def _checkpoint(self, source: str) -> Checkpoint | None:
        known = self._facts.ingested.get(source)
        return None if known is None else Checkpoint(known[0].batch, known[0].taken, known[0].digest)


class Jobs:
    """A job from its claim to its end."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self.session = session
        self._intake = intake
        self._facts, self._index = session.facts, session.index

    @verb
    def promote(self, now: Instant, limit: int) -> Promotion:
        return Promotion(self.session.maintain(now, limit), self._index.next_due(now))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: Duration) -> list[Lease]:
        session, index = self.session, self._index
        leases: list[Lease] = []
        with session.lock:
            now = session.begin()
            if index.needs_maintenance:
                session.maintain(now, sum(want.count for want in wants) + MAINTAINED)
            rows = (
                self._take(wants[0], now)
                if len(wants) == 1
                else [row for want in wants for row in self._take(want, now)]
            )
            if rows:
                until = rounded_up(now + lease_for, lease_for)
                ids = [row.entry.id for row in rows]
                claimed = JobChange(Change.CLAIMED, ids, [row.delivery + 1 for row in rows], until)
                tables = TableChanges(tats=index.lanes.tats()) if index.lanes.started else None
                session.commit(ChangeSet(now, "claim", [claimed], owner=owner, tables=tables))
                index.claimed(rows, until)
                leases = [Lease(row.job(), owner, until) for row in rows]
                if session.idle:
                    session.wake_idle(now)
            lsn = session.lsn
        session.sync(lsn)
        return leases

    @verb
    def extend(self, now: Instant, leases: Sequence[Lease], lease_for: Duration) -> list[Lease]:
        until = rounded_up(now + lease_for, lease_for)
        rows = {lease.job.id: row for lease in leases if (row := self._facts.running(*lease.fence)) is not None}
        if rows:
            before = [row.lease_until for row in rows.values()]
            self.session.commit(ChangeSet(now, "extend", [JobChange(Change.EXTENDED, list(rows), until=until)]))
            for row, was in zip(rows.values(), before, strict=True):
                self._index.extended(row, was)
        return [_lease(row) for row in rows.values()]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        session, index = self.session, self._index
        with session.lock:
            now = session.begin()
            answers, endings = plan_settle(settlements, self._facts.rows, self._facts.removed)
            if endings:
                session.commit(ChangeSet(now, "settle", self._endings(endings, now)))
                for row, _, _ in endings:
                    index.settled(row)
                if index.needs_maintenance:
                    session.maintain(now)
                    session.wake_idle(now)
            lsn = session.lsn
        session.sync(lsn)
        return answers

    @verb
    def overdue(self, now: Instant, limit: int) -> list[Lease]:
        return [_lease(self._facts.rows[job_id]) for job_id in self._index.leases.due(now, limit)]

    @verb
    def cancel(self, now: Instant, ids: Sequence[int]) -> list[CancelAnswer]:
        rows, index = self._facts.rows, self._index
        plan = plan_cancel(ids, {job_id: rows[job_id].state for job_id in ids if job_id in rows})
        ended = [rows[job_id] for job_id in plan.ended]
        requested = [job_id for job_id in plan.requested if not rows[job_id].cancel_requested]
        if ended or requested:
            states = [row.state for row in ended]
            changes = JobChanges()
            for row in ended:
                stamper = index.queues[row.entry.queue].stamper
                changes.add(row.entry.id, 0, Change.CANCELLED, stamper.kept_until(now))
            for job_id in requested:
                changes.add(job_id, 0, Change.CANCEL_REQUESTED)
            index.cancel_requested.update(requested)
            self.session.commit(ChangeSet(now, "cancel", changes.jobs))
            for row, state in zip(ended, states, strict=True):
                index.ended(row, state)
            self.session.maintain(now)
        return plan.answers

    @verb
    def redrive(self, now: Instant, ids: Sequence[int]) -> list[int]:
        rows, index = self._facts.rows, self._index
        dead = {job_id: rows[job_id] for job_id in ids if self._facts.state(job_id) is State.DEAD}
        check_capacity(self._intake, Counter(row.queue for row in dead.values()))
        if dead:
            left = [(row.entry.queue, row.finished_at, row.kept_until) for row in dead.values()]
            withdrawn = index.passed_by(dead.values())
            changes = [JobChange(Change.REDRIVEN, list(dead), until=now)]
            if withdrawn:
                changes.append(JobChange(WITHDRAWN, [row.entry.id for row in withdrawn]))
            self.session.commit(ChangeSet(now, "redrive", changes))
            for row in withdrawn:
                index.withdrawn(row)
            # Smaller ids first: of those of one line, the first is exposed at once, and only once.
            for row, where in sorted(zip(dead.values(), left, strict=True), key=lambda pair: pair[0].entry.id):
                index.redriven(row, *where)
            self.session.maintain(now)
        return list(dead)

    @verb
    def purge(self, now: Instant, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return len(self._purge(self._index.finished_before(state, before, limit, queue), now))

    @verb
    def purge_dead(self, now: Instant, ids: Sequence[int]) -> list[int]:
        return self._purge([each for each in dict.fromkeys(ids) if self._facts.state(each) is State.DEAD], now)

    def _purge(self, ids: list[int], now: Instant) -> list[int]:
        if ids:
            self.session.purge(ids, now, "purge")
            self.session.maintain(now)
        return ids

    def _take(self, want: Want, now: Instant) -> list[JobRow]:
        """Rows of the queue that its gates admit; those past their expiry die, and others may follow."""
        queue = self._index.queues.get(want.queue)
        if queue is None or self._facts.paused.get(want.queue, 0) > now:
            return []
        expiring = bool(self._index.expiring.instants)
        rows, late = queue.take(want.count, want.cls, now, expiring)
        while late:
            self.session.expire(late, now, taken=True)
            self.session.maintain(now)
            more, late = queue.take(want.count - len(rows), want.cls, now, expiring)
            rows += more
        queue.counts[State.READY] -= len(rows)
        queue.counts[State.RUNNING] += len(rows)
        return rows

    def _endings(self, endings: Sequence[tuple[JobRow, Verdict, object]], now: Instant) -> list[JobChange]:
        """What the verdicts do; jobs of one queue with the same verdict share a change."""
        changes: list[JobChange] = []
        ids: list[int] = []
        deliveries: list[int] = []
        last: tuple[Verdict, str] | None = None
        for row, verdict, _ in endings:
            queue = row.entry.queue
            if last != (verdict, queue):
                last, ids, deliveries = (verdict, queue), [], []
                stamper = self._index.queues[queue].stamper
                change, state, until, error, keep_rank = transition(verdict, stamper, now)
                dead_letter = self.session.dead_letter(queue, now) if state is State.DEAD else None
                result = verdict.result if isinstance(verdict, Ack) else None
                changes.append(JobChange(change, ids, deliveries, until, error, dead_letter, result, keep_rank))
            ids.append(row.entry.id)
            deliveries.append(row.delivery)
        return changes


def _merges_of(plan: IntakePlan) -> list[Merge]:
    """What waiting jobs take over; the key of each draft points at the job."""
    merges = []
    for target, draft, newer, _ in plan.merged:
        _, digest, until = plan.keys[draft.queue, draft.key] if draft.key is not None else (0, b"", 0)
        merges.append(Merge(target.id, draft.kind, draft.body, draft.key, digest, until, newer))
    return merges


def _lease(row: JobRow) -> Lease:
    return Lease(row.job(), row.owner or "", row.lease_until)
