"""Configuration: queues, gates, schedules; jobs that pass a condition; workers that announce themselves.

The rules are those of `engine.control`. Progress has a table of its own, so that a report does not rewrite a job.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.fanout import copies
from forebay.core.gate import lane_key
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Progress, State
from forebay.core.lease import Fence
from forebay.core.ledger import Change
from forebay.core.limits import MAX_SLOTS
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.engine.control import fired, is_due, new_partitions
from forebay.engine.intake import check_capacity
from forebay.engine.order import merged
from forebay.engine.settle import (
    plan_cancel,
)
from forebay.store.protocol import CancelAnswer
from forebay.store.sqlite.intake import Tables, accept
from forebay.store.sqlite.session import Session, verb
from forebay.store.sqlite.tables import (
    SQL,
    JobRow,
    KnownSpec,
    QueueCounters,
    id_list,
    lane_name,
    rows_of,
    text_of,
)
from forebay.store.sqlite.unit_of_work import UnitOfWork, maintain, remove_finished
from forebay.store.states import CANCELLED, DEAD, READY, STATES, WAITING

_ANNOUNCE: Final = (
    "INSERT INTO worker (owner, since, seen_at, until, body) VALUES (?1, ?2, ?2, ?3, ?4) "
    "ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at, until = excluded.until, body = excluded.body"
)
_SWEEP_WORKERS: Final = "DELETE FROM worker WHERE until <= ?"
_WITHDRAW: Final = "DELETE FROM worker WHERE owner = ? RETURNING until"
_WORKERS: Final = "SELECT body, since, seen_at FROM worker WHERE owner > ? AND until > ? ORDER BY owner LIMIT ?"
_REPORTED: Final = "SELECT EXISTS (SELECT 1 FROM progress)"

_decode_schedule: Final = msgspec.json.Decoder(Schedule).decode
_decode_presence: Final = msgspec.json.Decoder(Presence).decode


class Control:
    """Configuration, jobs without a holder, and announcements."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @verb
    def put_spec(self, unit: UnitOfWork, spec: QueueSpec) -> None:
        queue = unit.queue(spec.name)
        known = queue.spec if queue.known.text is not None else None
        for number in new_partitions(known, spec, lambda: any(queue.counts), lambda: _specs(unit)):
            unit.connection.execute(SQL.add_partition, (spec.name, number))
        if Stamper(spec).sheds and not queue.known.stamper.sheds and any(queue.counts):
            unit.connection.execute(SQL.mark_all_sheds, (spec.name,))
        text = spec.to_json().decode()
        if text != queue.known.text:
            unit.builder.set_verb("put_spec", name=spec.name)
        before = queue.known
        unit.queues.configure(spec.name, text)
        if before.stamper.spec.eligibility != spec.eligibility:
            _count_again(unit, queue, before)
            unit.lanes.open_all(queue)
        elif before.stamper.spec.share is not None or spec.share is not None:
            unit.lanes.open_all(queue)
        unit.queues.with_room[spec.name] = None

    @verb
    def pause(self, unit: UnitOfWork, queue: str, until: Instant | None) -> None:
        counters = unit.queue(queue)
        if counters.paused_until != until:
            counters.paused_until, counters.changed = until, True
            unit.builder.set_verb("resume" if until is None else "pause", name=queue)
        if until is None and counters.counts[READY]:
            unit.queues.with_work[queue] = counters.counts[READY]

    @verb
    def cancel(self, unit: UnitOfWork, ids: Sequence[int]) -> list[CancelAnswer]:
        found = _found(unit, ids)
        plan = plan_cancel(ids, {row.id: STATES[row.state] for row in found.values()})
        ended = {job_id: _discard(unit, found[job_id]) for job_id in plan.ended}
        requested = [job_id for job_id in plan.requested if not found[job_id].cancel_requested]
        unit.topics.update(ended)
        lines = {row.line: None for job_id in ended if (row := found[job_id]).line is not None and not row.behind}
        if lines:
            unit.expose(lines)
        if requested:
            unit.topics.update(owner for (owner,) in unit.connection.execute(SQL.request_cancel, (id_list(requested),)))
        if ended or requested:
            _record_cancelled(unit, found, ended, requested)
        return plan.answers

    @verb
    def redrive(self, unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
        found = _found(unit, ids)
        dead = {job_id: found[job_id] for job_id in ids if job_id in found and found[job_id].state == DEAD}
        check_capacity(Tables(unit), Counter(row.home for row in dead.values()))
        for row in dead.values():
            unit.connection.execute(SQL.redrive, (row.id, unit.now))
            unit.queues.moved(row.queue, "", DEAD, None)
            unit.queues.moved(row.home, row.lane, None, WAITING)
            unit.builder.unheld(Change.REDRIVEN, row.id, row.home, row.kind, unit.now)
        unit.expose({row.line: None for row in dead.values() if row.line is not None}, vacant=False)
        if dead:
            unit.builder.set_verb("redrive")
            maintain(unit)
        return list(dead)

    @verb
    def purge(self, unit: UnitOfWork, state: State, before: Instant, limit: int, queue: str | None) -> int:
        if queue is None:
            found = unit.connection.execute(SQL.finished, (STATES.index(state), before, limit))
        else:
            found = unit.connection.execute(SQL.finished_in, (STATES.index(state), before, limit, queue))
        finished = rows_of(found)
        if finished:
            remove_finished(unit, finished)
            unit.builder.set_verb("purge")
        return len(finished)

    @verb
    def purge_dead(self, unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
        dead = {row.id: row for row in rows_of(unit.connection.execute(SQL.dead_of, (id_list(ids),)))}
        if dead:
            remove_finished(unit, list(dead.values()))
            unit.builder.set_verb("purge")
        return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]

    @verb
    def put_schedule(self, unit: UnitOfWork, schedule: Schedule) -> None:
        body, last_at = unit.connection.execute(SQL.schedule, (schedule.name,)).fetchone() or (None, None)
        known = None if body is None else _decode_schedule(body)
        text = text_of(replace(edited(known, schedule, last_at), last_at=None))
        unit.connection.execute(SQL.put_schedule, (schedule.name, text))
        if text != body:
            unit.builder.set_verb("put_schedule", name=schedule.name)

    @verb
    def drop_schedule(self, unit: UnitOfWork, name: str) -> bool:
        dropped = unit.connection.execute(SQL.drop_schedule, (name,)).rowcount > 0
        if dropped:
            unit.builder.set_verb("drop_schedule", name=name)
        return dropped

    def schedules(self) -> list[Schedule]:
        with self.session.read() as (reader, _):
            return [replace(_decode_schedule(body), last_at=last_at) for body, last_at in reader.execute(SQL.schedules)]

    @verb
    def fire(self, unit: UnitOfWork, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        body, last_at = unit.connection.execute(SQL.schedule, (name,)).fetchone() or (None, None)
        if body is None:
            return False
        schedule = _decode_schedule(body)
        if not is_due(schedule, tick, last_at):
            return False
        receipts = [] if draft is None else accept(unit, copies(unit.queue(draft.queue).spec, draft))
        unit.connection.execute(SQL.tick, (name, text_of(fired(schedule, next_at, receipts)), tick))
        unit.builder.set_verb("fire", name=name, tick=tick)
        return True

    @verb
    def set_gate(self, unit: UnitOfWork, name: str, limit: int | None) -> None:
        state = unit.gates.state(name)
        if state.given != limit:
            unit.builder.set_verb("set_gate", name=name)
        state.given = limit
        maintain(unit)
        unit.lanes.wake(name, MAX_SLOTS if limit is None else limit)

    @verb
    def release(self, unit: UnitOfWork, name: str, count: int) -> int:
        maintain(unit)
        unit.write_lanes()
        lanes = [((rank, job_id), lane) for rank, job_id, *lane in unit.connection.execute(SQL.lanes_until, (name,))]
        # No walk is open any more when jobs begin to move: with thousands of them every write takes long.
        walks = merged(lanes, lambda lane: unit.connection.execute(SQL.unexpired_of_lane, (*lane, unit.now)))
        passed = list(islice(walks, count))
        for rank, job_id, queue, lane in passed:
            cls, gates = lane_name(lane)
            free = lane_key(cls, tuple(gate for gate in gates if gate != name))
            unit.connection.execute(SQL.move_to_lane, (job_id, free))
            unit.queues.moved(queue, lane, READY, None)
            unit.queues.moved(queue, free, None, READY)
            unit.lanes.left(queue, lane)
            unit.lanes.arrived(queue, free, rank, job_id)
        if passed:
            unit.builder.set_verb("release", name=name)
        return len(passed)

    @verb
    def report_progress(self, unit: UnitOfWork, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        """Whether each of these fences is the current one of its job."""
        run = unit.connection.execute
        return {
            fence: bool(run(SQL.report, (*fence, progress.portion, progress.note, unit.now)).fetchall())
            for fence, progress in newest.items()
        }

    def sweep_progress(self) -> None:
        """Forget what was reported of deliveries that have ended."""
        with self.session.read() as (reader, _):
            (reported,) = reader.execute(_REPORTED).fetchone()
        if reported:
            self.session.write(lambda unit: unit.connection.execute(SQL.drop_reports))

    @verb
    def announce(self, unit: UnitOfWork, presence: Presence, duration: Duration) -> None:
        unit.connection.execute(_SWEEP_WORKERS, (unit.now,))
        unit.connection.execute(_ANNOUNCE, (presence.owner, unit.now, unit.now + duration, text_of(presence)))

    @verb
    def withdraw(self, unit: UnitOfWork, owner: str) -> bool:
        return any(until > unit.now for (until,) in unit.connection.execute(_WITHDRAW, (owner,)).fetchall())

    def workers(self, after: str, limit: int) -> list[Presence]:
        with self.session.read() as (reader, now):
            rows = reader.execute(_WORKERS, (after, now, limit)).fetchall()
        return [replace(_decode_presence(body), since=since, seen_at=seen_at) for body, since, seen_at in rows]


def _count_again(unit: UnitOfWork, queue: QueueCounters, before: KnownSpec) -> None:
    """What running jobs use of gates, by the terms that the spec has now."""
    for lane, cost in unit.connection.execute(SQL.running_lanes, (queue.name,)).fetchall():
        for name in before.caps(lane):
            unit.gates.give_back(name, cost)
        for name in queue.known.caps(lane):
            unit.gates.give_back(name, -cost)
            unit.gates.state(name).queue = queue.name


def _specs(unit: UnitOfWork) -> list[QueueSpec]:
    return [QueueSpec.from_json(text) for (text,) in unit.connection.execute(SQL.specs)]


def _found(unit: UnitOfWork, ids: Sequence[int]) -> Mapping[int, JobRow]:
    return {row.id: row for row in rows_of(unit.connection.execute(SQL.move, (id_list(ids),)))}


def _record_cancelled(
    unit: UnitOfWork, found: Mapping[int, JobRow], ended: Mapping[int, Instant], requested: Iterable[int]
) -> None:
    unit.builder.set_verb("cancel")
    for job_id, kept_until in ended.items():
        row = found[job_id]
        unit.builder.unheld(Change.CANCELLED, job_id, row.queue, row.kind, kept_until)
    for job_id in requested:
        unit.builder.held(Change.CANCEL_REQUESTED, found[job_id], 0)


def _discard(unit: UnitOfWork, row: JobRow) -> Instant:
    """A job without a holder will not run; returns until when it is readable."""
    kept_until = unit.queue(row.queue).known.stamper.kept_until(unit.now)
    if kept_until:
        unit.connection.execute(SQL.keep, (row.id, CANCELLED, unit.now, kept_until, None, *row.mark))
    else:
        unit.remove([row.id], [(row.id, *row.mark)] if row.settled_delivery else [])
    unit.queues.moved(row.queue, row.lane, row.state, CANCELLED if kept_until else None)
    if row.state == READY:
        unit.lanes.left(row.queue, row.lane)
    return kept_until
