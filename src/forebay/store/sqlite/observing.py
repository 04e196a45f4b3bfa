"""Reads of jobs, queues and gates, and waits for them.

A read sees one durable state on a connection of its own: it waits for no writer, and no writer waits for it.
"""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Final

from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.core.limits import MAX_AHEAD, MAX_BLOCKED, MAX_ID, MAX_INSTANT
from forebay.core.policy import While
from forebay.core.spec import QueueSpec
from forebay.engine.control import PAGE_PROBES
from forebay.engine.lanes import closed_of, gate_hold
from forebay.engine.lines import line_hold
from forebay.store.checks import LAST
from forebay.store.protocol import Backlog, GateUse, Hold, Page, Query, Totals
from forebay.store.sqlite.claim_cursor import workable_at
from forebay.store.sqlite.gates import Gates
from forebay.store.sqlite.lines import line_heads
from forebay.store.sqlite.search import lookup_for
from forebay.store.sqlite.session import Session
from forebay.store.sqlite.tables import (
    JobRow,
    KnownSpec,
    QueueCounters,
    QueueTable,
    id_list,
    job_of,
    statement,
    text_of,
)
from forebay.store.states import READY, STATES, WAITING

_JOBS_BY_ID: Final = statement("jobs_by_id")
_PAGE: Final = statement("page")
_PAGE_END: Final = statement("page_end")
_PAGE_HELD: Final = statement("page_held")
_DEAD_END: Final = statement("dead_end")
_PAGE_DEAD: Final = statement("page_dead")
_ANY_AFTER: Final = statement("any_after")
_QUEUES: Final = statement("queues")
_QUEUE_NAMES: Final = statement("queue_names")
_TOTALS: Final = statement("totals")
_DEEPEST: Final = statement("deepest")
_SPECS: Final = statement("specs")
_EXPIRED_KEYS: Final = statement("expired_keys")
_FREE_KEYS: Final = statement("free_keys")
_OLDEST_PLAIN: Final = statement("oldest_plain")
_OLDEST_NOT_BY_AGE: Final = statement("oldest_not_by_age")
_BLOCKED_LINES: Final = statement("blocked_lines")
_NEXT_DUE: Final = statement("next_due")
_NEXT_OPENING: Final = statement("next_opening")
_HELD_JOBS: Final = statement("held_jobs")
_NEXT_LEASE: Final = statement("next_lease")
_GROWN: Final = statement("grown")
_ONE: Final = statement("one")
_GATES: Final = statement("gates")
_HEAD_COST: Final = statement("head_cost")
_BETWEEN: Final = statement("between")
_READY_BEFORE: Final = statement("ready_before")
_REPORTS: Final = statement("reports")
_UNFINISHED: Final = statement("unfinished")
_CANCEL_REQUESTED: Final = statement("cancel_requested")
_LOOK_FOR_REQUESTS: Final[Duration] = 100_000
"""How often a worker that runs jobs checks whether other processes changed the file."""


class Observing:
    """Observation."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        with self._session.read() as (reader, _):
            jobs: dict[int, Job | None] = {
                columns[0]: job_of(columns) for columns in reader.execute(_JOBS_BY_ID, (id_list(ids),))
            }
            running = [job.id for job in jobs.values() if job is not None and job.state is State.RUNNING]
            for job_id, delivery, *rest in reader.execute(_REPORTS, (id_list(running),)) if running else ():
                jobs[job_id] = with_progress(jobs[job_id], delivery, Progress(*rest))
        return [jobs.get(job_id) for job_id in ids]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        after = max(0, min(after, MAX_INSTANT))
        state = None if query.state is None else STATES.index(query.state)
        wanted = (query.queue, state, query.kind, query.tenant, query.subject, query.suspect)
        with self._session.read() as (reader, _):
            if (lookup := lookup_for(reader, query)) is not None:
                ids = lookup.ids(reader, after, limit)
                found = sorted(map(job_of, reader.execute(_JOBS_BY_ID, (id_list(ids),))), key=lambda job: job.id)
                return Page([job for job in found if query.admits(job)], ids[-1] if len(ids) == limit else None)
            if query.state is State.RUNNING:
                held = (after, query.queue, query.kind, query.tenant, query.subject, query.suspect, limit)
                jobs = [job_of(columns) for columns in reader.execute(_PAGE_HELD, held)]
                return Page(jobs, jobs[-1].id if len(jobs) == limit else None)
            until, page = (_DEAD_END, _PAGE_DEAD) if query.state is State.DEAD else (_PAGE_END, _PAGE)
            end = reader.execute(until, (after, PAGE_PROBES - 1)).fetchone()
            last = MAX_INSTANT if end is None else end[0]
            jobs = [job_of(columns) for columns in reader.execute(page, (after, last, *wanted, limit))]
            if len(jobs) == limit:
                last = jobs[-1].id
            elif end is None:
                return Page(jobs, None)
            (more,) = reader.execute(_ANY_AFTER, (last,)).fetchone()
        return Page(jobs, last if more else None)

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        with self._session.read() as (reader, now):
            names = [name for (name,) in reader.execute(_QUEUES)] if queues is None else queues
            table = QueueTable(reader, self._session.specs)
            return [_backlog(reader, table.queue(name), now) for name in names]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        with self._session.read() as (reader, _):
            return [name for (name,) in reader.execute(_QUEUE_NAMES, (after, prefix, prefix + LAST, limit))]

    def totals(self, limit: int) -> Totals:
        with self._session.read() as (reader, now):
            counts = reader.execute(_TOTALS).fetchone()
            names = [name for (name,) in reader.execute(_DEEPEST, (limit,))]
            table = QueueTable(reader, self._session.specs)
            return Totals([_backlog(reader, table.queue(name), now) for name in names], *counts)

    def specs(self) -> list[QueueSpec]:
        with self._session.read() as (reader, _):
            return [QueueSpec.from_json(text) for (text,) in reader.execute(_SPECS)]

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        with self._session.read() as (reader, now):
            table = QueueTable(reader, self._session.specs)
            found = reader.execute(_GATES, (after, prefix, prefix + LAST, limit, now)).fetchall()
            return [
                GateUse(name, _spec_slots(table, queue, name) if given is None else given, used, given)
                for name, queue, used, given in found
            ]

    def hold(self, job_id: int) -> Hold | None:
        with self._session.read() as (reader, now):
            row = _row(reader, job_id)
            if row is not None and row.state == READY:
                return _gate_hold(reader, now, row, QueueTable(reader, self._session.specs).queue(row.queue).known)
            if row is not None and row.state == WAITING and row.behind and row.due_at <= now:
                return _line_hold(reader, row)
            return None

    def ahead(self, job_id: int) -> int | None:
        with self._session.read() as (reader, _):
            row = _row(reader, job_id)
            return None if row is None or row.state != READY else _before(reader, row)

    def wait(self, queues: Sequence[str], duration: Duration) -> bool:
        growth = Growth(queues)
        now = self._session.now()
        return self._session.waiters.until_work(
            queues,
            now + duration,
            lambda reader: (
                0
                if growth.seen(reader)
                else _work_at(QueueTable(reader, self._session.specs), reader, queues, self._session.now())
            ),
        )

    def wait_ended(self, ids: Sequence[int], duration: Duration) -> list[int]:
        def ended(reader: sqlite3.Connection) -> list[int]:
            running = {job_id for (job_id,) in reader.execute(_UNFINISHED, (id_list(ids),))}
            return [job_id for job_id in ids if job_id not in running]

        return self._session.waiters.until_found(ids, self._session.now() + duration, ended)

    def wait_cancel_requests(self, owner: str, duration: Duration, known: Collection[Fence]) -> list[Fence]:
        def requested(reader: sqlite3.Connection) -> list[Fence]:
            return [fence for fence in reader.execute(_CANCEL_REQUESTED, (owner,)) if fence not in known]

        end = self._session.now() + duration
        return self._session.waiters.until_found([owner], end, requested, _LOOK_FOR_REQUESTS)


class Growth:
    """Whether one of these is a log that grew since the first call: processes cannot notify each other."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = text_of(list(names))
        self._first: float | None = None

    def seen(self, reader: sqlite3.Connection) -> bool:
        (total,) = reader.execute(_GROWN, (self._names,)).fetchone()
        self._first = total if self._first is None else self._first
        return bool(total > self._first)


def _work_at(table: QueueTable, reader: sqlite3.Connection, queues: Sequence[str], now: Instant) -> Instant:
    """When a claim or a reaping may next find something, as far as is known."""
    gates = Gates(reader, now)
    found = [reader.execute(each).fetchone() for each in (_NEXT_DUE, _NEXT_LEASE, _NEXT_OPENING)]
    instants = [MAX_INSTANT, *(at for (at,) in filter(None, found) if at is not None)]
    for name in queues:
        queue = table.queue(name)
        if queue.counts[READY]:
            instants.append(max(workable_at(reader, gates, queue, now), queue.paused_until or 0))
    earliest: Instant = min(instants)
    return earliest


def _backlog(reader: sqlite3.Connection, queue: QueueCounters, now: Instant) -> Backlog:
    name = queue.name
    waiting, ready, running, done, dead, cancelled = queue.counts
    oldest = now
    if ready:
        odd = reader.execute(_OLDEST_NOT_BY_AGE, (name,)).fetchone()[0]
        oldest = now if odd is None else min(now, odd)
        plain = reader.execute(_OLDEST_PLAIN, (name, oldest)).fetchone()
        oldest = oldest if plain is None else plain[0]
    (blocked,) = reader.execute(_BLOCKED_LINES, (name, MAX_BLOCKED)).fetchone()
    paused_until = queue.paused_until
    return Backlog(
        name,
        waiting,
        ready,
        running,
        done,
        dead,
        cancelled,
        oldest_age=now - oldest,
        paused_until=paused_until if paused_until is not None and paused_until > now else None,
        keys=queue.keys - _free_keys(reader, queue, now) if queue.keys else 0,
        held=_held(reader, queue, now) if ready else 0,
        blocked=blocked,
    )


def _held(reader: sqlite3.Connection, queue: QueueCounters, now: Instant) -> int:
    """Ready jobs behind a closed gate: all, where one of the whole queue is closed, else those of parked lanes."""
    whole, gates = queue.known.stamper.whole, Gates(reader, now)
    gates.load(gate.name for gate in whole)
    if closed_of([(gate, gates.state(gate.name)) for gate in whole], 1, now) is not None:
        return int(queue.counts[READY])
    held: int = reader.execute(_HELD_JOBS, (queue.name, MAX_AHEAD, now)).fetchone()[0]
    return held


def _free_keys(reader: sqlite3.Connection, queue: QueueCounters, now: Instant) -> int:
    """Keys that are still stored and no longer taken."""
    unique = queue.spec.unique or While()
    expired: int = reader.execute(_EXPIRED_KEYS, (now, queue.name)).fetchone()[0]
    free: int = reader.execute(_FREE_KEYS, (MAX_INSTANT, queue.name, unique.mask)).fetchone()[0]
    return expired + free


def _row(reader: sqlite3.Connection, job_id: int) -> JobRow | None:
    found = reader.execute(_ONE, (job_id,)).fetchone() if 0 < job_id <= MAX_ID else None
    return None if found is None else JobRow(*found)


def _before(reader: sqlite3.Connection, row: JobRow) -> int:
    return len(reader.execute(_READY_BEFORE, (row.queue, row.lane, row.rank, row.id, MAX_AHEAD)).fetchall())


def _gate_hold(reader: sqlite3.Connection, now: Instant, row: JobRow, known: KnownSpec) -> Hold | None:
    gates = (*known.stamper.whole, *known.gates(row.lane))
    states = Gates(reader, now)
    states.load(gate.name for gate in gates)
    found = reader.execute(_HEAD_COST, (row.queue, row.lane, now)).fetchone()
    cost = row.cost if found is None else found[0]
    numbered = [(gate, states.state(gate.name)) for gate in gates]
    return gate_hold(numbered, cost, now, lambda: _before(reader, row))


def _line_hold(reader: sqlite3.Connection, row: JobRow) -> Hold | None:
    assert row.line is not None
    (head,) = line_heads(reader, [row.line])
    between = (row.line, head.id, row.id, MAX_AHEAD)
    return line_hold(
        row.line, head.id, head.is_running, row.id, lambda: len(reader.execute(_BETWEEN, between).fetchall())
    )


def _spec_slots(table: QueueTable, queue: str | None, name: str) -> int:
    """What the spec of the queue that used a gate last says of it."""
    if queue is None:
        return 0
    gate = table.queue(queue).known.stamper.gate_named(name)
    return 0 if gate is None else gate.limit
