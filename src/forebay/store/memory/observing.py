"""Reads of jobs, queues and gates, and waits: for work, for jobs that end, for requests to cancel.

A watcher is known by what it waits for: a job by its id, an owner by its name. A change has its topics
(`changes.topics`): their waiters are woken and check again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from threading import Event
from typing import TypeVar

from forebay.core.gate import Gate
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, State
from forebay.core.lease import Fence
from forebay.core.limits import MAX_AHEAD, MAX_INSTANT, MAX_PARKED
from forebay.engine.control import PAGE_PROBES
from forebay.engine.intake import key_is_taken
from forebay.store.memory.changes import Topic
from forebay.store.memory.control import Control
from forebay.store.memory.facts import JobRow
from forebay.store.memory.queue_state import MemoryLanes, QueueState, parked_jobs
from forebay.store.memory.session import Session, verb
from forebay.store.protocol import Backlog, GateUse, Hold, Page, Query, Totals

T = TypeVar("T")


class Observing:
    """Verbs that change nothing."""

    def __init__(self, session: Session, control: Control) -> None:
        self.session = session
        self._facts, self._index = session.facts, session.index
        self._with_progress = control.with_progress
        self._low = 1

    @verb
    def get(self, _: Instant, ids: Sequence[int]) -> list[Job | None]:
        rows = [self._facts.rows.get(job_id) for job_id in ids]
        return self._with_progress([None if row is None else row.job() for row in rows])

    @verb
    def browse(self, _: Instant, query: Query, after: int, limit: int) -> Page:
        self._skip_gone()
        rows, end = self._facts.rows, self._facts.next_id
        start = max(after + 1, self._low)
        jobs: list[Job] = []
        job_id = start - 1
        for job_id in range(start, min(start + PAGE_PROBES, end)):
            row = rows.get(job_id)
            if row is not None and _matches(query, row):
                jobs.append(row.job())
                if len(jobs) == limit:
                    break
        return Page(jobs, job_id if job_id + 1 < end else None)

    @verb
    def backlog(self, now: Instant, queues: Sequence[str] | None) -> list[Backlog]:
        self.session.maintain(now)
        self._facts.sweep_keys(now, len(self._facts.keys))
        names = sorted(self._names()) if queues is None else queues
        keys: dict[str, int] = dict.fromkeys(names, 0)
        for (queue, _), fact in self._facts.keys.items():
            if queue in keys and key_is_taken(self._index.queue(queue).stamper, fact, self._facts.state, now):
                keys[queue] += 1
        return [self._backlog(name, now, keys[name]) for name in names]

    @verb
    def queues(self, now: Instant, after: str, limit: int, prefix: str) -> list[str]:
        self.session.maintain(now)
        return nsmallest(limit, (name for name in self._names() if name > after and name.startswith(prefix)))

    def totals(self, limit: int) -> Totals:
        with self.session.lock:
            self.session.maintain(self.session.begin())
            queues = [(name, self._index.queue(name).counts) for name in self._names()]
            sums = [sum(counts[state] for _, counts in queues) for state in State]
            deepest = nsmallest(limit, queues, key=lambda each: (-_depth(each[1]), -each[1][State.DEAD], each[0]))
        return Totals(self.backlog([name for name, _ in deepest]) if deepest else [], len(queues), *sums)

    @verb
    def gates(self, now: Instant, after: str, limit: int, prefix: str) -> list[GateUse]:
        facts, states = self._facts, self._index.lanes.gates
        names = {name for name, state in states.items() if state.used}
        names |= {name for name, tat in facts.tats.items() if tat > now} | facts.gate_limits.keys()
        uses: list[GateUse] = []
        for name in sorted(name for name in names if name > after and name.startswith(prefix)):
            use = self._use(name, now)
            if use is not None:
                uses.append(use)
            if len(uses) == limit:
                break
        return uses

    @verb
    def hold(self, now: Instant, job_id: int) -> Hold | None:
        row = self._facts.rows.get(job_id)
        return None if row is None else self._holding(row, now)

    @verb
    def ahead(self, _: Instant, job_id: int) -> int | None:
        row = self._facts.rows.get(job_id)
        if row is None or row.state is not State.READY:
            return None
        return self._index.queues[row.entry.queue].ahead(row, MAX_AHEAD)

    def wait(self, queues: Sequence[str], duration: Duration) -> bool:
        session = self.session
        deadline: Instant | None = None
        while True:
            waiter = Event()
            with session.lock:
                now = session.begin()
                deadline = now + duration if deadline is None else deadline
                states = [self._index.queue(name) for name in queues]
                work_at = self._work_at(states, now)
                if work_at <= now or now >= deadline:
                    return work_at <= now
                for queue in states:
                    queue.claimers.add(waiter)
                until = session.idle[waiter] = min(deadline, work_at)
            session.clock.wait(waiter, until - now)
            with session.lock:
                session.idle.pop(waiter, None)
                woken = any(waiter not in queue.claimers.waiting for queue in states)
                for queue in states:
                    queue.claimers.drop(waiter)
            # A clock that returns early, with no signal, sleeps elsewhere.
            if woken or (not waiter.is_set() and session.now() < until):
                return woken

    def wait_ended(self, ids: Sequence[int], duration: Duration) -> list[int]:
        return self._watch(ids, duration, lambda: [job_id for job_id in ids if self._has_ended(job_id)])

    def wait_cancel_requests(self, owner: str, duration: Duration, known: Collection[Fence]) -> list[Fence]:
        return self._watch([owner], duration, lambda: self._requests(owner, known))

    def _watch(self, topics: Sequence[Topic], duration: Duration, found: Callable[[], list[T]]) -> list[T]:
        """What is found, now or once something that concerns these topics happened; nothing: the time passed."""
        session, waiter = self.session, Event()
        end: Instant | None = None
        while True:
            with session.lock:
                now = session.begin()
                end = now + duration if end is None else end
                answer, lsn = found(), session.lsn
                if not answer and now < end:
                    waiter.clear()
                    for topic in topics:
                        session.watchers.setdefault(topic, set()).add(waiter)
            if answer or now >= end:
                session.sync(lsn)
                return answer
            session.clock.wait(waiter, end - now)
            with session.lock:
                for topic in topics:
                    watchers = session.watchers.get(topic, set())
                    watchers.discard(waiter)
                    if not watchers:
                        session.watchers.pop(topic, None)

    def _has_ended(self, job_id: int) -> bool:
        state = self._facts.state(job_id)
        return state is None or state.terminal

    def _requests(self, owner: str, known: Collection[Fence]) -> list[Fence]:
        """Fences of jobs that this owner runs and whose end is requested; those that ended are dropped here."""
        rows, requested, found = self._facts.rows, self._index.cancel_requested, []
        for job_id in list(requested):
            row = rows.get(job_id)
            if row is None or not row.cancel_requested or row.state.terminal:
                requested.discard(job_id)
            elif row.state is State.RUNNING and row.owner == owner and (job_id, row.delivery) not in known:
                found.append((job_id, row.delivery))
        return found

    def _work_at(self, queues: Sequence[QueueState], now: Instant) -> Instant:
        """When a claim or a reaping may next find something, as far as is known."""
        index, paused = self._index, self._facts.paused
        instants = [index.next_due_job(), index.lanes.next_opening(), index.leases.next()]
        instants += [max(paused.get(queue.spec.name, 0), queue.workable_at(now)) for queue in queues]
        return min((at for at in instants if at is not None), default=MAX_INSTANT)

    def _backlog(self, queue: str, now: Instant, keys: int) -> Backlog:
        state = self._index.queues.get(queue) or QueueState(self._facts.spec(queue), MemoryLanes(self._facts))
        until = self._facts.paused.get(queue, 0)
        return Backlog(
            queue=queue,
            **{each.value: count for each, count in state.counts.items()},
            oldest_age=state.oldest(now),
            paused_until=until if until > now else None,
            keys=keys,
            held=state.held(now),
            blocked=self._index.lines.blocked(queue),
        )

    def _names(self) -> list[str]:
        """Queues that are configured, paused, or hold jobs; in no order."""
        facts = self._facts
        return [
            name
            for name, queue in self._index.queues.items()
            if name in facts.specs or name in facts.paused or any(queue.counts.values())
        ]

    def _skip_gone(self) -> None:
        """Ids are never used again, so the first one alive only ever grows; each gone id is skipped once."""
        rows, end = self._facts.rows, min(self._facts.next_id, self._low + PAGE_PROBES)
        while self._low < end and self._low not in rows:
            self._low += 1

    def _holding(self, row: JobRow, now: Instant) -> Hold | None:
        if row.state is State.WAITING and row.entry.line is not None and row.due_at <= now:
            return self._index.lines.hold(row.entry.line, row)
        return self._index.queues[row.entry.queue].hold(row, now) if row.state is State.READY else None

    def _use(self, name: str, now: Instant) -> GateUse | None:
        """A gate as a queue has it that used it last, or that has it at all; None: no queue has, nor an operator."""
        given, state = self._facts.gate_limits.get(name), self._index.lanes.gates.get(name)
        gate = None if state is None else state.numbers.get(state.queue or "")
        if gate is None and given is None:
            gate = self._gate(name)
        if gate is None and given is None:
            return None
        slots = given if given is not None or gate is None else gate.limit
        if state is None:
            return GateUse(name, slots or 0, 0, given)
        parked = sum(parked_jobs(queue, lanes, now, MAX_PARKED) for queue, lanes in state.parked.items())
        return GateUse(name, slots or 0, state.used, given, min(parked, MAX_PARKED))

    def _gate(self, name: str) -> Gate | None:
        stampers = (queue.stamper for queue in self._index.queues.values())
        found = (stamper.gate_named(name) for stamper in stampers if stamper.gated)
        return next((gate for gate in found if gate is not None), None)


def _matches(query: Query, row: JobRow) -> bool:
    entry = row.entry
    return (
        (query.queue is None or query.queue == entry.queue)
        and (query.state is None or query.state is row.state)
        and (query.kind is None or query.kind == entry.kind)
        and (query.tenant is None or query.tenant == entry.tenant)
        and (query.subject is None or query.subject == entry.subject)
        and query.suspect in (None, row.suspect)
    )


def _depth(counts: Mapping[State, int]) -> int:
    return counts[State.WAITING] + counts[State.READY] + counts[State.RUNNING]
