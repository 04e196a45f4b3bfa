"""Intake: enqueue, and what a batch of drafts changes. The rules are those of `engine.intake`."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from forebay.core.errors import QueueFull
from forebay.core.instant import Instant, micros
from forebay.core.job import Draft, State
from forebay.core.ledger import Change
from forebay.core.limits import MAX_INSTANT, SOURCE_KEPT
from forebay.core.policy import Shed
from forebay.core.stamp import Stamper
from forebay.engine.intake import (
    GAVE_WAY,
    KEYS_SWEPT,
    IntakePlan,
    KeyFact,
    MergedDraft,
    MergeTarget,
    NewJobRow,
    RankedId,
    key_is_taken,
    new_jobs,
    plan_intake,
)
from forebay.store.protocol import Checkpoint, Receipt, Tally
from forebay.store.sqlite.session import Session, verb
from forebay.store.sqlite.tables import SQL, JobRow, id_list, rows_of, text_of
from forebay.store.sqlite.unit_of_work import UnitOfWork, dead_letter, remove_finished, sweep_keys
from forebay.store.states import READY, STATES, WAITING

_RESTING: Final = {"oldest": SQL.oldest, "lowest": SQL.lowest}
_MAX_SWEEP_SOURCES: Final = 2
_SOURCE: Final = "SELECT batch, taken, digest FROM source WHERE source = ?"
_MOVE_SOURCE: Final = "INSERT OR REPLACE INTO source (source, batch, taken, digest, at) VALUES (?, ?, ?, ?, ?)"
_SWEEP_SOURCES: Final = (
    "DELETE FROM source WHERE source IN (SELECT source FROM source WHERE at < ? ORDER BY at LIMIT ?)"
)

_WORK: Final = attrgetter("rank_timed", "kind", "tenant", "body")
_ORDER: Final = attrgetter("expires_at", "priority", "rank_base", "merges", "line", "blocks")
_NAMES: Final = attrgetter("cost", "subject", "key", "deadline")
_TRAITS: Final = attrgetter("line", "priority", "rank_base", "expires_at", "deadline", "subject", "key", "meta", "cost")
_PLAIN: Final = (None, 0, 0, None, None, None, None, None, 1)
"""The traits of most jobs."""


class Intake:
    """Enqueue, and drafts from sources."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self.session.write(lambda unit: accept(unit, drafts))

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self.session.waiters.until_room(full, until, partial(_room_at, full))

    def ingested(self, source: str) -> Checkpoint | None:
        with self.session.read() as (reader, _):
            found = reader.execute(_SOURCE, (source,)).fetchone()
        return None if found is None else Checkpoint(*found)

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        return self.session.write(lambda unit: _ingest(unit, source, before, after, drafts))

    @verb
    def replace_dead(self, unit: UnitOfWork, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        dead = rows_of(unit.connection.execute(SQL.dead_of, (id_list(drafts),)))
        remove_finished(unit, dead)
        ids = [job_id for job_id in drafts if job_id in {row.id for row in dead}]
        receipts = dict(zip(ids, accept(unit, [drafts[job_id] for job_id in ids]), strict=True))
        if ids:
            unit.builder.set_verb("replace_dead")
        return receipts


def accept(unit: UnitOfWork, drafts: Sequence[Draft]) -> list[Receipt]:
    """Put the drafts into their queues; raise, and the unit leaves nothing."""
    tables = Tables(unit)
    plan = plan_intake(tables, drafts)
    plan.make_room()
    if plan.shed:
        dead_letter(unit, [tables.doomed[job_id] for job_id in plan.shed], GAVE_WAY, Change.SHED)
    _insert(unit, plan)
    for merge in plan.merged:
        _merge(unit, merge)
    if plan.keys:
        unit.connection.executemany(SQL.store_key, [(*name, *fact) for name, fact in plan.keys.items()])
    if plan.is_new:
        unit.builder.set_verb("enqueue")
        unit.builder.accepted(plan.entries)
        for merge in plan.merged:
            unit.builder.merged(merge.target.id, merge.draft, merge.newer.due_at or 0)
    arrived = [unit.queue(queue) for queue in plan.arrivals]
    if any(queue.keys for queue in arrived):
        by_state = any(queue.spec.unique for queue in arrived)
        sweep_keys(unit, KEYS_SWEPT * (len(plan.entries) + 1), by_state=by_state)
    return plan.receipts


class Tables:
    """What the rules of intake read, in one unit of work. `doomed`: jobs that may be shed."""

    def __init__(self, unit: UnitOfWork) -> None:
        self.now = unit.now
        self.doomed: dict[int, JobRow] = {}
        self._unit = unit
        self._stampers: dict[str, Stamper] = {}

    def stamper(self, queue: str) -> Stamper:
        stamper = self._stampers.get(queue)
        if stamper is None:
            stamper = self._stampers[queue] = self._unit.queue(queue).known.stamper
        return stamper

    def new_id(self, place: int) -> int:
        head = self._unit.head
        head.next_id += 1
        return head.next_id - 1

    def taken_key(self, queue: str, key: str) -> KeyFact | None:
        """A new key is counted here; one that is not swept yet already is."""
        found = self._unit.connection.execute(SQL.key, (queue, key)).fetchone()
        counters = self._unit.queue(queue)
        if found is None:
            counters.keys += 1
            counters.changed = True
            return None
        fact = KeyFact(*found)
        return fact if key_is_taken(counters.known.stamper, fact, self._state, self.now) else None

    def merge_target(self, queue: str, subject: str) -> MergeTarget | None:
        found = self._unit.connection.execute(SQL.fresh, (queue, subject, self.now)).fetchone()
        return None if found is None else MergeTarget(*found)

    def depth(self, queue: str) -> int:
        return self._unit.queue(queue).depth

    def unclaimed(self, queue: str, shed: Shed, limit: int) -> Iterable[RankedId]:
        rows = rows_of(self._unit.connection.execute(_RESTING[shed.victim], (queue, limit)))
        self.doomed |= {row.id: row for row in rows}
        return [(row.rank, row.id) for row in rows]

    def _state(self, job_id: int) -> State | None:
        found = self._unit.connection.execute(SQL.one, (job_id,)).fetchone()
        return None if found is None else STATES[JobRow(*found).state]


def _insert(unit: UnitOfWork, plan: IntakePlan) -> None:
    """New jobs: their rows, their numbers, their lanes."""
    lines = list({entry.line: None for entry in plan.entries if entry.line is not None})
    taken = [line for (line,) in unit.connection.execute(SQL.taken_lines, (json.dumps(lines),))] if lines else []
    plain, rows, counts = [], [], dict[tuple[str, str, int], int]()
    for job in new_jobs(plan.entries, unit.now, taken):
        queue, state = job.entry.queue, READY if job.ready else WAITING
        if _TRAITS(job.entry) == _PLAIN:
            plain.append(_plain_row(job, state, unit.now))
        else:
            rows.append(_row(job, state, unit.now))
        name = (queue, job.lane, state)
        counts[name] = counts.get(name, 0) + 1
        if job.lane and job.ready:
            unit.lanes.arrived(queue, job.lane, job.rank, job.entry.id)
    unit.connection.executemany(SQL.insert_plain, plain)
    if rows:
        unit.connection.executemany(SQL.insert, rows)
    for (queue, lane, state), count in counts.items():
        unit.queues.moved(queue, lane, None, state, count)
        if state == READY and not lane and unit.queue(queue).spec.share is not None:
            unit.lanes.arrived(queue, "", 0, 0)
    shedding = [queue for queue in plan.arrivals if unit.queue(queue).known.stamper.sheds is not None]
    if shedding:
        ids = id_list(entry.id for entry in plan.entries if entry.queue in shedding)
        unit.connection.execute(SQL.mark_sheds, (ids,))


def _plain_row(job: NewJobRow, state: int, now: Instant) -> tuple[Any, ...]:
    entry = job.entry
    first = (entry.id, state, entry.queue, job.lane, job.rank, entry.due_at, entry.max_attempts, now)
    return *first, *_WORK(entry)


def _row(job: NewJobRow, state: int, now: Instant) -> tuple[Any, ...]:
    entry = job.entry
    meta = None if entry.meta is None else text_of(entry.meta)
    return *_plain_row(job, state, now), *_ORDER(entry), job.behind, *_NAMES(entry), meta


def _merge(unit: UnitOfWork, merge: MergedDraft) -> None:
    newer, draft = merge.newer, merge.draft
    meta = None if newer.meta is None else text_of(newer.meta)
    urgency = (newer.priority, newer.rank_base, newer.deadline, newer.expires_at, newer.due_at, merge.rank)
    work = (merge.target.id, draft.kind, draft.body, meta, *urgency)
    for queue, lane, state in unit.connection.execute(SQL.merge, work).fetchall():
        if state == READY:
            unit.lanes.left(queue, lane)


def _room_at(full: QueueFull, reader: sqlite3.Connection) -> Instant:
    """At once if there is room by now."""
    found = reader.execute(SQL.depth, (full.queue,)).fetchone()
    depth = 0 if found is None else found[0]
    return 0 if depth + full.requested <= full.limit else MAX_INSTANT


def _ingest(
    unit: UnitOfWork, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
) -> Tally | None:
    found = unit.connection.execute(_SOURCE, (source,)).fetchone()
    if (None if found is None else Checkpoint(*found)) != before:
        return None
    receipts = accept(unit, drafts)
    unit.connection.execute(_MOVE_SOURCE, (source, after.batch, after.taken, after.digest, unit.now))
    unit.connection.execute(_SWEEP_SOURCES, (unit.now - micros(SOURCE_KEPT), _MAX_SWEEP_SOURCES))
    return Tally.of(receipts)
