"""The verbs around jobs: looking at them, configuring queues and schedules, and sleeping until there is work."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from threading import Event as Sleeper

from msgspec.structs import replace

from forebay.core.changeset import ChangeSet, Tables
from forebay.core.fanout import copies
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Job, State
from forebay.core.limits import MAX_DEPTH, MAX_INSTANT
from forebay.core.record_builder import TEND
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.engine.control import PAGE_PROBES, fired, is_due, new_partitions
from forebay.engine.intake import key_is_taken
from forebay.store.memory.gate_verbs import GateVerbs
from forebay.store.memory.queue_state import MemoryLanes, QueueState
from forebay.store.memory.row import Row
from forebay.store.protocol import Backlog, Page, Query, Totals


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
            for job_id in range(start, min(start + PAGE_PROBES, end)):
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
                if queue in keys and key_is_taken(self._intake.stamper(queue), fact, self._facts.state, now):
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
            new_partitions(
                known, spec, lambda: queue is not None and any(queue.counts.values()), self._facts.specs.values
            )
            verb = TEND if known == spec else "put_spec"
            self._commit(ChangeSet(now, verb, name=spec.name, tables=Tables(specs={spec.name: spec})))
            self._index.configure(spec)
            for each in self._index.queues.values():
                if each.claimers.sleepers:
                    self._index.notify(each, MAX_DEPTH)
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
            name, known = schedule.name, self._facts.schedules.get(schedule.name)
            schedule = edited(known, schedule, self._facts.last_ticks.get(name))
            verb = TEND if known == schedule else "put_schedule"
            self._commit(ChangeSet(now, verb, name=name, tables=Tables(schedules={name: schedule})))
            lsn = self._lsn
        self._settle_down(lsn)

    def drop_schedule(self, name: str) -> bool:
        with self._lock:
            now = self._begin()
            known = name in self._facts.schedules
            if known:
                self._commit(ChangeSet(now, "drop_schedule", name=name, tables=Tables(schedules={name: None})))
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
            won = is_due(schedule, tick, self._facts.last_ticks.get(name))
            if schedule is not None and won:
                plan = self._intake.plan([] if draft is None else copies(self._facts.spec(draft.queue), draft), now)
                schedule = replace(fired(schedule, next_at, plan.receipts), last_at=tick)
                tables = Tables(schedules={name: schedule}, last_ticks={name: tick})
                self._take_in(plan, now, "fire", name=name, tick=tick, tables=tables)
            lsn = self._lsn
        self._settle_down(lsn)
        return won

    def wait(self, queues: Sequence[str], span: Duration) -> bool:
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
        return min((at for at in instants if at is not None), default=MAX_INSTANT)

    def pause(self, queue: str, until: Instant | None) -> None:
        with self._lock:
            now = self._begin()
            verb = TEND if self._facts.paused.get(queue) == until else "resume" if until is None else "pause"
            self._commit(ChangeSet(now, verb, name=queue, tables=Tables(paused={queue: until})))
            state = self._index.queue(queue)
            if until is None and state.claimers.sleepers:
                self._index.notify(state, state.counts[State.READY])
            lsn = self._lsn
        self._settle_down(lsn)

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
        rows, end = self._facts.rows, min(self._facts.next_id, self._low + PAGE_PROBES)
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
