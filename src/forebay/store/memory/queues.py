"""The verbs around jobs: looking at them, configuring queues and schedules, and sleeping until there is work."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from threading import Event as Sleeper
from typing import Final

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.event import Fired, Paused, ScheduleDropped, SchedulePut, SpecPut
from forebay.core.instant import Instant, Span
from forebay.core.job import Draft, Job, State
from forebay.core.limits import DEPTH_MOST, INSTANT_MOST
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.store.checks import check_neighbours
from forebay.store.memory.facts import KeyFact
from forebay.store.memory.gate_verbs import GateVerbs
from forebay.store.memory.queue_state import MemoryLanes, QueueState
from forebay.store.memory.row import Row
from forebay.store.protocol import Backlog, Page, Query, Totals

_PROBES: Final = 5_000
"""How many ids one page looks at, found or not: a page never holds the lock for long."""


class QueueVerbs(GateVerbs):
    """Observation and configuration."""

    _low = 1

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        with self._lock:
            self._begin()
            rows = [self._facts.rows.get(job_id) for job_id in ids]
            jobs = [None if row is None else row.picture() for row in rows]
            lsn = self._lsn
        self._settle_down(lsn)
        return jobs

    def browse(self, query: Query, after: int, limit: int) -> Page:
        with self._lock:
            self._begin()
            self._skip_gone()
            rows, end = self._facts.rows, self._facts.next_id
            start = max(after + 1, self._low)
            jobs: list[Job] = []
            job_id = start - 1
            for job_id in range(start, min(start + _PROBES, end)):
                row = rows.get(job_id)
                if row is not None and _matches(query, row):
                    jobs.append(row.picture())
                    if len(jobs) == limit:
                        break
            lsn = self._lsn
        self._settle_down(lsn)
        return Page(jobs, job_id if job_id + 1 < end else None)

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        with self._lock:
            now = self._begin()
            self._tend(now)
            self._facts.sweep_keys(now, len(self._facts.keys))
            names = sorted(self._queues()) if queues is None else queues
            keys: dict[str, int] = dict.fromkeys(names, 0)
            for (queue, _), fact in self._facts.keys.items():
                if queue in keys and self._key_counts(queue, fact, now):
                    keys[queue] += 1
            pictures = [self._backlog(name, now, keys[name]) for name in names]
            lsn = self._lsn
        self._settle_down(lsn)
        return pictures

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        with self._lock:
            self._tend(self._begin())
            names = nsmallest(limit, (name for name in self._queues() if name > after and name.startswith(prefix)))
            lsn = self._lsn
        self._settle_down(lsn)
        return names

    def totals(self, limit: int) -> Totals:
        with self._lock:
            self._tend(self._begin())
            queues = [(name, self._index.queue(name).counts) for name in self._queues()]
            sums = [sum(counts[state] for _, counts in queues) for state in State]
            deepest = nsmallest(limit, queues, key=lambda each: (-_depth(each[1]), -each[1][State.DEAD], each[0]))
        return Totals(self.backlog([name for name, _ in deepest]) if deepest else [], len(queues), *sums)

    def put_spec(self, spec: QueueSpec) -> None:
        with self._lock:
            now = self._begin()
            known = self._facts.specs.get(spec.name)
            queue = self._index.queues.get(spec.name)
            if known is not None and known.is_log != spec.is_log:
                raise WrongQueueKind(spec.name, known.is_log)
            if spec.is_log and known is None and queue is not None and any(queue.counts.values()):
                raise WrongQueueKind(spec.name, is_log=False)
            if known is not None and _partitions(spec) < _partitions(known):
                raise Invalid(spec.name, "a log cannot lose partitions", "keep them, or start a new log")
            check_neighbours(spec, self._facts.specs.values())
            self._record(SpecPut(now, spec))
            self._index.configure(spec)
            for each in self._index.queues.values():
                if each.claimers.sleepers:
                    self._index.notify(each, DEPTH_MOST)
            self._rouse(now)
            lsn = self._lsn
        self._settle_down(lsn)

    def specs(self) -> list[QueueSpec]:
        with self._lock:
            self._begin()
            specs = list(self._facts.specs.values())
            lsn = self._lsn
        self._settle_down(lsn)
        return specs

    def put_schedule(self, schedule: Schedule) -> None:
        with self._lock:
            now = self._begin()
            known = self._facts.schedules.get(schedule.name)
            last_at = self._facts.last_ticks.get(schedule.name)
            self._record(SchedulePut(now, edited(known, schedule, last_at)))
            lsn = self._lsn
        self._settle_down(lsn)

    def drop_schedule(self, name: str) -> bool:
        with self._lock:
            now = self._begin()
            known = name in self._facts.schedules
            if known:
                self._record(ScheduleDropped(now, name))
            lsn = self._lsn
        self._settle_down(lsn)
        return known

    def schedules(self) -> list[Schedule]:
        with self._lock:
            self._begin()
            schedules = list(self._facts.schedules.values())
            lsn = self._lsn
        self._settle_down(lsn)
        return schedules

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        with self._lock:
            now = self._begin()
            schedule = self._facts.schedules.get(name)
            last = self._facts.last_ticks.get(name, -1)
            won = schedule is not None and schedule.next_at == tick and tick > last and not schedule.paused
            if won:
                plan = self._intake.plan([] if draft is None else [draft], now)
                shed, graves = plan.shed, self._graves_of(plan.shed, now)
                self._take_in(Fired(now, name, tick, next_at, plan.entries, plan.merged, shed, graves))
            lsn = self._lsn
        self._settle_down(lsn)
        return won

    def wait(self, queues: Sequence[str], span: Span) -> bool:
        deadline: Instant | None = None
        while True:
            sleeper = Sleeper()
            with self._lock:
                now = self._begin()
                deadline = now + span if deadline is None else deadline
                states = [self._index.queue(name) for name in queues]
                work_at = self._work_at(states, now)
                if work_at <= now or now >= deadline:
                    return work_at <= now
                for queue in states:
                    queue.claimers.add(sleeper)
                until = self._asleep[sleeper] = min(deadline, work_at)
            self._clock.wait(sleeper, until - now)
            with self._lock:
                self._asleep.pop(sleeper, None)
                woken = any(sleeper not in queue.claimers.sleepers for queue in states)
                for queue in states:
                    queue.claimers.drop(sleeper)
            # A clock that returns early, with no signal, sleeps elsewhere.
            if woken or (not sleeper.is_set() and self.now() < until):
                return woken

    def _work_at(self, queues: Sequence[QueueState], now: Instant) -> Instant:
        """When a claim or a reaping may next find something, as far as is known."""
        index, paused = self._index, self._facts.paused
        instants = [index.next_due_job(), index.lanes.next_opening(), index.leases.next()]
        instants += [max(paused.get(queue.spec.name, 0), queue.workable_at(now)) for queue in queues]
        return min((at for at in instants if at is not None), default=INSTANT_MOST)

    def pause(self, queue: str, until: Instant | None) -> None:
        with self._lock:
            now = self._begin()
            self._record(Paused(now, queue, until))
            state = self._index.queue(queue)
            if until is None and state.claimers.sleepers:
                self._index.notify(state, state.counts[State.READY])
            lsn = self._lsn
        self._settle_down(lsn)

    def _key_counts(self, queue: str, fact: KeyFact, now: Instant) -> bool:
        return self._index.queue(queue).stamper.key_counts(fact[2], self._facts.state(fact[0]), now)

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

    def _queues(self) -> list[str]:
        """Queues that are configured, paused, or hold jobs; in no order."""
        facts = self._facts
        return [
            name
            for name, queue in self._index.queues.items()
            if name in facts.specs or name in facts.paused or any(queue.counts.values())
        ]

    def _skip_gone(self) -> None:
        """Ids are never used again, so the first one alive only ever grows; each gone id is skipped once."""
        rows, end = self._facts.rows, min(self._facts.next_id, self._low + _PROBES)
        while self._low < end and self._low not in rows:
            self._low += 1


def _matches(query: Query, row: Row) -> bool:
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


def _partitions(spec: QueueSpec) -> int:
    return spec.retention.partitions if isinstance(spec.retention, Retained) else 0
