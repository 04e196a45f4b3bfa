"""Configuration: queues, gates, schedules; jobs that pass a condition; workers and the progress of their jobs.

The rules are those of `engine.control`. Workers and progress are in this process's memory alone: nothing depends on
them, and the journal need not have them.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from forebay.core.changeset import PASSED, ChangeSet, JobChange, TableChanges
from forebay.core.fanout import copies
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.core.limits import MAX_DEPTH
from forebay.core.presence import Presence
from forebay.core.record_builder import MAINTAIN
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.engine.control import fired, is_due, new_partitions
from forebay.engine.order import merged
from forebay.store.memory.facts import JobRow
from forebay.store.memory.jobs import Intake
from forebay.store.memory.session import Session, verb


class Control:
    """Configuration and announcements."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self.session = session
        self._intake = intake
        self._facts, self._index = session.facts, session.index
        self._workers: dict[str, tuple[Presence, Instant]] = {}
        self._progress: dict[int, tuple[int, Progress]] = {}

    @verb
    def put_spec(self, now: Instant, spec: QueueSpec) -> None:
        index, specs = self._index, self._facts.specs
        known, queue = specs.get(spec.name), index.queues.get(spec.name)
        new_partitions(known, spec, lambda: queue is not None and any(queue.counts.values()), specs.values)
        self._put(now, "put_spec", spec.name, TableChanges(specs={spec.name: spec}), changed=known != spec)
        index.configure(spec)
        for each in index.queues.values():
            if each.claimers.waiting:
                index.notify(each, MAX_DEPTH)
        self.session.wake_idle(now)

    @verb
    def specs(self, _: Instant) -> list[QueueSpec]:
        return list(self._facts.specs.values())

    @verb
    def pause(self, now: Instant, queue: str, until: Instant | None) -> None:
        changed = self._facts.paused.get(queue) != until
        self._put(
            now, "resume" if until is None else "pause", queue, TableChanges(paused={queue: until}), changed=changed
        )
        state = self._index.queue(queue)
        if until is None and state.claimers.waiting:
            self._index.notify(state, state.counts[State.READY])

    @verb
    def put_schedule(self, now: Instant, schedule: Schedule) -> None:
        name, known = schedule.name, self._facts.schedules.get(schedule.name)
        schedule = edited(known, schedule, self._facts.last_ticks.get(name))
        self._put(now, "put_schedule", name, TableChanges(schedules={name: schedule}), changed=known != schedule)

    @verb
    def drop_schedule(self, now: Instant, name: str) -> bool:
        known = name in self._facts.schedules
        if known:
            self._put(now, "drop_schedule", name, TableChanges(schedules={name: None}))
        return known

    @verb
    def schedules(self, _: Instant) -> list[Schedule]:
        return list(self._facts.schedules.values())

    @verb
    def fire(self, now: Instant, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        schedule = self._facts.schedules.get(name)
        if schedule is None or not is_due(schedule, tick, self._facts.last_ticks.get(name)):
            return False
        plan = self._intake.plan([] if draft is None else copies(self._facts.spec(draft.queue), draft), now)
        schedule = replace(fired(schedule, next_at, plan.receipts), last_at=tick)
        tables = TableChanges(schedules={name: schedule}, last_ticks={name: tick})
        self._intake.accept(plan, now, "fire", name=name, tick=tick, tables=tables)
        return True

    @verb
    def set_gate(self, now: Instant, name: str, limit: int | None) -> None:
        changed = self._facts.gate_limits.get(name) != limit
        self._put(now, "set_gate", name, TableChanges(gate_limits={name: limit}), changed=changed)
        state = self._index.lanes.gates.get(name)
        if state is not None:
            state.given = limit
            self._index.lanes.changed(state)
            self._index.has_room(state, MAX_DEPTH)
        self.session.maintain(now)
        self.session.wake_idle(now)

    @verb
    def release(self, now: Instant, name: str, count: int) -> int:
        self.session.maintain(now)
        rows, queues = self._first_behind(name, count, now), self._index.queues
        if rows:
            for row in rows:
                queues[row.entry.queue].withdraw(row)
            passed = JobChange(PASSED, [row.entry.id for row in rows])
            self.session.commit(ChangeSet(now, "release", [passed], name=name))
            for row in rows:
                queue = queues[row.entry.queue]
                queue.push(row)
                if queue.claimers.waiting:
                    self._index.notify(queue, 1)
            self.session.wake_idle(now)
        return len(rows)

    @verb
    def announce(self, now: Instant, presence: Presence, duration: Duration) -> None:
        self._workers = {owner: known for owner, known in self._workers.items() if known[1] > now}
        before = self._workers.get(presence.owner)
        since = now if before is None else before[0].since
        self._workers[presence.owner] = (replace(presence, since=since, seen_at=now), now + duration)

    @verb
    def withdraw(self, now: Instant, owner: str) -> bool:
        known = self._workers.pop(owner, None)
        return known is not None and known[1] > now

    @verb
    def workers(self, now: Instant, after: str, limit: int) -> list[Presence]:
        found = sorted(owner for owner, (_, until) in self._workers.items() if until > now and owner > after)
        return [self._workers[owner][0] for owner in found[:limit]]

    @verb
    def report_progress(self, now: Instant, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        running = self._facts.running
        self._progress = {job_id: known for job_id, known in self._progress.items() if running(job_id, known[0])}
        current = {fence: running(*fence) is not None for fence in newest}
        for (job_id, delivery), progress in newest.items():
            if current[job_id, delivery]:
                self._progress[job_id] = (delivery, replace(progress, at=now))
        return current

    def with_progress(self, jobs: Sequence[Job | None]) -> list[Job | None]:
        """The jobs, each with what was last reported of it."""
        known = self._progress
        return [job if job is None or job.id not in known else with_progress(job, *known[job.id]) for job in jobs]

    def _put(self, now: Instant, verb: str, name: str, tables: TableChanges, *, changed: bool = True) -> None:
        """Nothing new is not on record."""
        self.session.commit(ChangeSet(now, verb if changed else MAINTAIN, name=name, tables=tables))

    def _first_behind(self, name: str, count: int, now: Instant) -> list[JobRow]:
        """The first ready rows of lanes with this gate; those past their expiry die, and do not count."""
        queues = self._index.queues
        lanes = self._index.lanes.conditions.get(name, ())
        heads = [(queues[queue].queue_lanes.lanes[lane].head or (), (queue, lane)) for queue, lane in lanes]
        rows: list[JobRow] = []
        late: list[JobRow] = []
        for _, _, row in merged(heads, lambda each: queues[each[0]].walk(each[1])):
            (late if row.is_expired(now) else rows).append(row)
            if len(rows) == count:
                break
        if late:
            self.session.expire(late, now)
        return rows
