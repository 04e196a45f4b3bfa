"""The door: enqueue, and what a batch of drafts changes.

A batch is all or nothing: capacity, keys and merges are checked in the transaction that inserts. Drafts of one batch
see each other: the second of two equal keys is a duplicate of the first, a newer payload of the same subject takes the
place of an older one, and all count against the capacity.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from forebay.core.errors import KeyConflict, QueueFull, WrongQueueKind
from forebay.core.event import Entry, Newer
from forebay.core.fanout import copies
from forebay.core.gate import lane_key
from forebay.core.instant import Instant
from forebay.core.job import Draft, State
from forebay.core.limits import INSTANT_MOST
from forebay.core.policy import Bounded
from forebay.core.rank import rank_at
from forebay.core.spec import QueueSpec
from forebay.store.brokers import any_new, folded
from forebay.store.checks import check_batch, check_bytes
from forebay.store.protocol import Receipt
from forebay.store.sqlite.base import Base
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import Row, text_of
from forebay.store.sqlite.shedding import give_way, mark
from forebay.store.sqlite.tally import QueueCounters
from forebay.store.sqlite.tend import sweep_keys
from forebay.store.sqlite.turn import Turn
from forebay.store.states import READY, STATES, WAITING

_RETRY_AFTER_SECONDS: Final = 1.0
_SWEEP_PER_DRAFT: Final = 2
_INSERT: Final = statement("insert")
_INSERT_PLAIN: Final = statement("insert_plain")
_KEY: Final = statement("key")
_REMEMBER_KEY: Final = statement("remember_key")
_ONE: Final = statement("one")
_TAKEN_LINES: Final = statement("taken_lines")
_FRESH: Final = statement("fresh")
_MERGE: Final = statement("merge")
_DEPTH: Final = statement("depth")


class Intake(Base):
    """Enqueue."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self._write(lambda turn: _enqueue(turn, drafts))

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self._sleepers.until_room(full, until, partial(_room_at, full))


def _enqueue(turn: Turn, drafts: Sequence[Draft]) -> list[Receipt]:
    receipts = accept(turn, drafts)
    check_batch("enqueue", sum(len(receipt.copies) or 1 for receipt in receipts))
    if turn.scribe is not None and any_new(receipts):
        turn.scribe.tell("enqueue")
    return receipts


def accept(turn: Turn, drafts: Sequence[Draft]) -> list[Receipt]:
    """Put the drafts into their queues; raise, and the turn leaves nothing."""
    batch = _Batch(turn)
    for draft in drafts:
        batch.take(draft)
    batch.write()
    return batch.receipts


def check_capacity(turn: Turn, arrivals: Mapping[str, int]) -> None:
    """Every bounded queue has room for those who come; called before they are counted."""
    for queue, count in sorted(arrivals.items()):
        counters = turn.queue(queue)
        capacity = counters.spec.capacity
        if isinstance(capacity, Bounded) and counters.depth + count > capacity.limit:
            raise QueueFull(queue, counters.depth, capacity.limit, count, _RETRY_AFTER_SECONDS)


class _Target(NamedTuple):
    """A job that has not run yet, and takes over newer work of its subject."""

    id: int
    enqueued_at: Instant
    due_at: Instant
    rank_timed: int


class _Batch:
    """What one call brings."""

    def __init__(self, turn: Turn) -> None:
        self.receipts: list[Receipt] = []
        self._turn = turn
        self._entries: list[Entry] = []
        self._merged: list[tuple[_Target, Draft, Newer]] = []
        self._arrivals: dict[str, int] = {}
        self._born: dict[tuple[str, str, int], int] = {}
        self._newest: dict[tuple[str, str], _Target | None] = {}
        self._keys: dict[tuple[str, str], tuple[int, bytes, Instant]] = {}

    def take(self, draft: Draft) -> None:
        turn = self._turn
        queue = turn.queue(draft.queue)
        stamper = queue.known.stamper
        if stamper.is_broker:
            self._fan_out(stamper.spec, draft)
            return
        if stamper.is_log:
            raise WrongQueueKind(draft.queue, is_log=True)
        key_digest, key_until = b"", 0
        if draft.key is not None:
            key_digest, key_until = stamper.key(draft, turn.now)
            first = self._first(queue, draft.key, key_digest)
            if first is not None:
                self.receipts.append(Receipt(first, durable=True, duplicate=True))
                return
        target = None if stamper.spec.merge is None or draft.subject is None else self._target(draft)
        if target is not None:
            job_id = target.id
            newer = stamper.newer(draft, target.enqueued_at, target.due_at, turn.now)
            self._merged.append((target, draft, newer))
            self.receipts.append(Receipt(job_id, durable=True, merged=True))
        else:
            job_id = turn.head.next_id
            turn.head.next_id = job_id + 1
            entry = stamper.entry(draft, job_id, turn.now, key_digest, key_until)
            self._entries.append(entry)
            self.receipts.append(Receipt(job_id, True))
            self._arrivals[draft.queue] = self._arrivals.get(draft.queue, 0) + 1
            if entry.merges:
                target = _Target(job_id, turn.now, entry.due_at, entry.rank_timed)
        if target is not None:
            alive = draft.expires_at is None or draft.expires_at > turn.now
            self._newest[draft.queue, draft.subject or ""] = target if alive else None
        if draft.key is not None:
            self._keys[draft.queue, draft.key] = (job_id, key_digest, key_until)

    def _fan_out(self, spec: QueueSpec, draft: Draft) -> None:
        before, self.receipts = self.receipts, []
        for copy in copies(spec, draft):
            self.take(copy)
        self.receipts = [*before, folded(self.receipts, durable=True)]

    def write(self) -> None:
        turn, entries = self._turn, self._entries
        check_bytes("enqueue", [entry.body for entry in entries] + [draft.body for _, draft, _ in self._merged])
        self._make_room()
        plain = [self._plain_row(entry) for entry in entries if _is_plain(entry)]
        rows = self._rows([entry for entry in entries if not _is_plain(entry)]) if len(plain) < len(entries) else []
        turn.connection.executemany(_INSERT_PLAIN, plain)
        if rows:
            turn.connection.executemany(_INSERT, rows)
        shedding = [queue for queue in self._arrivals if turn.queue(queue).known.stamper.sheds is not None]
        if shedding:
            mark(turn, [entry for entry in entries if entry.queue in shedding])
        for each in self._merged:
            self._merge(*each)
        if self._keys:
            turn.connection.executemany(_REMEMBER_KEY, [(*name, *fact) for name, fact in self._keys.items()])
        for (queue, lane, state), count in self._born.items():
            turn.tally.moved(queue, lane, None, state, count)
            if state == READY and not lane and turn.queue(queue).spec.share is not None:
                turn.lanes.arrived(queue, "", 0, 0)
        if turn.scribe is not None:
            turn.scribe.accepted(entries)
            for target, draft, newer in self._merged:
                turn.scribe.merged(target.id, draft, newer.due_at or 0)
        if entries and any(turn.queue(queue).keys for queue in self._arrivals):
            by_state = any(turn.queue(queue).spec.unique for queue in self._arrivals)
            sweep_keys(turn, _SWEEP_PER_DRAFT * (len(entries) + 1), by_state=by_state)

    def _make_room(self) -> None:
        spared = {target.id for target, _, _ in self._merged}
        for queue, count in self._arrivals.items():
            counters = self._turn.queue(queue)
            shed, excess = counters.known.stamper.sheds, count - counters.room
            if shed is not None and excess > 0:
                arriving = [entry for entry in self._entries if entry.queue == queue]
                give_way(self._turn, queue, shed, excess, arriving, spared)
        check_capacity(self._turn, self._arrivals)

    def _plain_row(self, entry: Entry) -> tuple[Any, ...]:
        now, state = self._turn.now, READY if entry.ready else WAITING
        rank = rank_at(entry.rank_base, entry.rank_timed, entry.due_at, now)
        self._count(entry, entry.cls, state, rank)
        return (
            entry.id,
            state,
            entry.queue,
            entry.cls,
            rank,
            entry.due_at,
            entry.max_attempts,
            now,
            entry.rank_timed,
            entry.kind,
            entry.tenant,
            entry.body,
        )

    def _rows(self, entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
        """The columns of new jobs. Of a line, only one that has no job before it is exposed."""
        lines = json.dumps(list({entry.line: None for entry in entries if entry.line is not None}))
        taken = {line for (line,) in self._turn.connection.execute(_TAKEN_LINES, (lines,))} if lines != "[]" else set()
        rows = []
        for entry in entries:
            rows.append(self._row(entry, behind=entry.line in taken))
            if entry.line is not None:
                taken.add(entry.line)
        return rows

    def _row(self, entry: Entry, *, behind: bool) -> tuple[Any, ...]:
        now = self._turn.now
        lane = lane_key(entry.cls, entry.gates)
        state = READY if entry.due_at <= now and not behind else WAITING
        rank = rank_at(entry.rank_base, entry.rank_timed, entry.due_at, now)
        self._count(entry, lane, state, rank)
        return (
            entry.id,
            state,
            entry.queue,
            lane,
            rank,
            entry.due_at,
            entry.max_attempts,
            now,
            entry.expires_at,
            entry.priority,
            entry.rank_base,
            entry.rank_timed,
            entry.merges,
            entry.line,
            entry.blocks,
            behind,
            entry.cost,
            entry.kind,
            entry.tenant,
            entry.subject,
            entry.key,
            entry.deadline,
            None if entry.meta is None else text_of(entry.meta),
            entry.body,
        )

    def _count(self, entry: Entry, lane: str, state: int, rank: int) -> None:
        name = (entry.queue, lane, state)
        self._born[name] = self._born.get(name, 0) + 1
        if lane and state == READY:
            self._turn.lanes.arrived(entry.queue, lane, rank, entry.id)

    def _first(self, queue: QueueCounters, key: str, key_digest: bytes) -> int | None:
        """The job that has this key already. A key that is new is counted here; one that nobody swept yet is."""
        name = (queue.name, key)
        fact = self._keys.get(name)
        if fact is None:
            fact = self._turn.connection.execute(_KEY, name).fetchone()
            if fact is None:
                queue.keys += 1
                queue.changed = True
                return None
            state = self._state(fact[0]) if fact[2] >= INSTANT_MOST else None
            if not queue.known.stamper.key_counts(fact[2], state, self._turn.now):
                return None
        if fact[1] != key_digest:
            raise KeyConflict(queue.name, key, fact[0])
        return fact[0]

    def _state(self, job_id: int) -> State | None:
        found = self._turn.connection.execute(_ONE, (job_id,)).fetchone()
        return None if found is None else STATES[Row(*found).state]

    def _target(self, draft: Draft) -> "_Target | None":
        name = (draft.queue, draft.subject or "")
        if name in self._newest:
            return self._newest[name]
        found = self._turn.connection.execute(_FRESH, (*name, self._turn.now)).fetchone()
        return None if found is None else _Target(*found)

    def _merge(self, target: "_Target", draft: Draft, newer: Newer) -> None:
        moved = newer.due_at
        rank = None if moved is None else rank_at(newer.rank_base, target.rank_timed, moved, self._turn.now)
        meta = None if newer.meta is None else text_of(newer.meta)
        urgency = (newer.priority, newer.rank_base, newer.deadline, newer.expires_at)
        work = (target.id, draft.kind, draft.body, meta, *urgency, moved, rank)
        for queue, lane, state in self._turn.connection.execute(_MERGE, work).fetchall():
            if state == READY:
                self._turn.lanes.left(queue, lane)


def _is_plain(entry: Entry) -> bool:
    """Nothing in it that most jobs do not have."""
    return not (
        entry.gates
        or entry.line is not None
        or entry.priority
        or entry.rank_base
        or entry.expires_at is not None
        or entry.deadline is not None
        or entry.subject is not None
        or entry.key is not None
        or entry.meta is not None
        or entry.cost != 1
    )


def _room_at(full: QueueFull, reader: sqlite3.Connection) -> Instant:
    """At once if there is room by now."""
    found = reader.execute(_DEPTH, (full.queue,)).fetchone()
    depth = 0 if found is None else found[0]
    return 0 if depth + full.asked <= full.limit else INSTANT_MOST
