"""The door: enqueue. Plain drafts go in as runs; those with keys, gates, lines or a bound are taken in by a turn.

A batch is all or nothing. Drafts of one batch see each other: the second of two equal keys is a duplicate of the first,
a newer payload of the same subject takes the place of an older one, and all count against the capacity.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from forebay.core.errors import KeyConflict, QueueFull, WrongQueueKind
from forebay.core.event import Entry, Newer
from forebay.core.gate import lane_key
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.limits import INSTANT_MOST
from forebay.core.policy import Bounded
from forebay.core.rank import rank_at
from forebay.store.brokers import Spread
from forebay.store.postgres.base import Base, Restart, Turn
from forebay.store.postgres.connect import Json
from forebay.store.postgres.door import Door
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import (
    BEHIND,
    LATER,
    READY,
    Facts,
    facts_json,
    facts_of,
    merged_facts,
    one_facts,
    text_of,
)
from forebay.store.postgres.shedding import give_way
from forebay.store.postgres.tend import sweep_keys
from forebay.store.protocol import Receipt

_RETRY_AFTER_SECONDS: Final = 1.0
_SWEEP_PER_DRAFT: Final = 2
_NEXT_ID: Final = "SELECT nextval('forebay.job_id')"
_LOCK_QUEUES: Final = statement("lock_queues")
_DEPTH: Final = statement("depth")
_DEPTH_MOST: Final = statement("depth_most")
_INSERT: Final = statement("insert")
_BUSY_LINES: Final = "SELECT line FROM forebay.line_heads(%s::text[]) WHERE coalesce(behind, exposed, dead) IS NOT NULL"
_KEYS: Final = statement("keys")
_RESERVE_KEYS: Final = statement("reserve_keys")
_MOVE_KEY: Final = statement("move_key")
_FRESH: Final = statement("fresh")
_MERGE: Final = statement("merge")


class Intake(Base):
    """Enqueue."""

    def __init__(self, url: str, clock: Any) -> None:
        super().__init__(url, clock)
        self._door = Door(self._server, self._specs, lambda: self._at)

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        queues = {draft.queue for draft in drafts}
        if drafts and self._all_plain(drafts, queues):
            first = self._door.put(drafts)
            if first is not None:
                self._sleepers.hear(queues, ())
                return [Receipt(first + place, True) for place in range(len(drafts))]
            self._specs.reload(queues)
        return self._write(partial(accept, drafts), queues)

    def _all_plain(self, drafts: Sequence[Draft], queues: set[str]) -> bool:
        return all(self._specs.of(queue).direct for queue in queues) and all(draft.key is None for draft in drafts)

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self._sleepers.until_room(full.queue, until, partial(self._room_at, full))

    def _room_at(self, full: QueueFull) -> Instant:
        """At once if there is room by now."""
        depth: int = self._server.query(_DEPTH, (full.queue,))[0][0]
        return 0 if depth + full.asked <= full.limit else INSTANT_MOST


def accept(drafts: Sequence[Draft], turn: Turn) -> list[Receipt]:
    """Put the drafts into their queues; raise, and the turn leaves nothing."""
    queues = {draft.queue for draft in drafts}
    if not any(turn.known(queue).stamper.is_broker for queue in queues):
        return accept_copies(drafts, queues, turn)
    spread = Spread(drafts, lambda queue: turn.known(queue).spec)
    return spread.folded(accept_copies(spread.drafts, queues, turn), durable=True)


def accept_copies(drafts: Sequence[Draft], brokers: set[str], turn: Turn) -> list[Receipt]:
    """The same for drafts that are for no broker any more; one receipt for each."""
    turn.hold({draft.queue for draft in drafts} | brokers)
    batch = Batch(turn)
    batch.reserve_keys(drafts)
    for place, draft in enumerate(drafts):
        batch.take(place, draft)
    batch.check_capacity()
    batch.write()
    if not all(receipt.duplicate for receipt in batch.receipts):
        turn.scribe.tell("enqueue")
    return batch.receipts


def check_capacity(turn: Turn, arrivals: Mapping[str, int], make_room: Callable[[str, int], int] | None = None) -> None:
    """Every bounded queue has room for those who come, or it is made; called before they are counted.

    The queue's row is locked, so those who come one after the other count on each other. Its number is an upper bound:
    who leaves is not subtracted, and the jobs are counted again only when the bound would be passed.
    """
    bounded = [queue for queue in sorted(arrivals) if turn.known(queue).bounded]
    if not bounded:
        return
    for queue, most in turn.fetch(_LOCK_QUEUES, (bounded,)):
        capacity = turn.known(queue).spec.capacity
        assert isinstance(capacity, Bounded)
        count, depth = arrivals[queue], most
        if depth + count > capacity.limit:
            depth = turn.fetch(_DEPTH, (queue,))[0][0]
        if depth + count > capacity.limit and make_room is not None:
            depth -= make_room(queue, depth + count - capacity.limit)
        if depth + count > capacity.limit:
            raise QueueFull(queue, depth, capacity.limit, count, _RETRY_AFTER_SECONDS)
        turn.execute(_DEPTH_MOST, (depth + count, queue))


class _Target(NamedTuple):
    """A job that has not run yet, and takes over newer work of its subject."""

    id: int
    enqueued_at: Instant
    due_at: Instant
    rank_timed: int
    facts: Facts | None
    lane: str


class Batch:
    """What one call brings. A draft's place in the call is its place among the ids of the call; some stay unused.

    Keys are taken first of all, in their order: whoever brings the same ones at the same time waits for this call, and
    then finds them taken. So of many who race, each needs one turn.
    """

    def __init__(self, turn: Turn) -> None:
        self.receipts: list[Receipt] = []
        self._turn = turn
        self._first_id: int = turn.fetch(_NEXT_ID)[0][0]
        self._entries: list[Entry] = []
        self._merged: list[tuple[_Target, Draft, Newer]] = []
        self._arrivals: dict[str, int] = {}
        self._newest: dict[tuple[str, str], _Target | None] = {}
        self._keys: dict[tuple[str, str], tuple[int, bytes, Instant]] = {}
        self._reserved: dict[tuple[str, str], tuple[int, bytes, Instant]] = {}
        self._taken: dict[tuple[str, str], tuple[int, bytes, Instant]] = {}

    def reserve_keys(self, drafts: Sequence[Draft]) -> None:
        """Take the keys of this batch, each for the first draft that has it; and know those that others have."""
        facts: dict[tuple[str, str], tuple[int, bytes, Instant]] = {}
        for place, draft in enumerate(drafts):
            if draft.key is not None and (draft.queue, draft.key) not in facts:
                stamper = self._turn.known(draft.queue).stamper
                facts[draft.queue, draft.key] = (self._first_id + place, *stamper.key(draft, self._turn.now))
        if not facts:
            return
        rows = [(*name, *fact) for name, fact in sorted(facts.items())]
        columns = map(list, zip(*rows, strict=True))
        won = {(queue, key) for queue, key in self._turn.fetch(_RESERVE_KEYS, (*columns, self._turn.now))}
        self._reserved = {name: facts[name] for name in won}
        if lost := sorted(facts.keys() - won):
            queues, keys = map(list, zip(*lost, strict=True))
            found = self._turn.fetch(_KEYS, (queues, keys, self._turn.now))
            self._taken = {(queue, key): (job_id, digest, until) for queue, key, job_id, digest, until in found}
            if len(found) != len(lost):
                # The window of one ended just now, and it was forgotten.
                raise Restart

    def take_as(self, job_id: int, drafts: Sequence[Draft]) -> None:
        """What became of a draft that has its id, and its key if any, already: the first has that id."""
        for place, draft in enumerate(drafts):
            self._put(self._first_id + place if place else job_id, draft, b"", 0)
        # It may stand before others that came later and were taken in before.
        self._turn.lines.update(entry.line for entry in self._entries if entry.line is not None)

    def take(self, place: int, draft: Draft) -> None:
        turn, stamper = self._turn, self._turn.known(draft.queue).stamper
        if stamper.is_log:
            raise WrongQueueKind(draft.queue, is_log=True)
        key_digest, key_until = b"", 0
        if draft.key is not None:
            key_digest, key_until = stamper.key(draft, turn.now)
            name = (draft.queue, draft.key)
            fact = self._keys.get(name) or self._taken.get(name)
            if fact is not None:
                # A key that came by SQL has another kind of digest, which cannot be compared.
                if len(fact[1]) == len(key_digest) and fact[1] != key_digest:
                    raise KeyConflict(draft.queue, draft.key, fact[0])
                self.receipts.append(Receipt(fact[0], durable=True, duplicate=True))
                return
        target = self._put(self._first_id + place, draft, key_digest, key_until)
        if draft.key is not None:
            self._keys[draft.queue, draft.key] = (target, key_digest, key_until)

    def check_capacity(self) -> None:
        check_capacity(self._turn, self._arrivals, self._make_room)

    def _shedding(self) -> set[str]:
        return {queue for queue in self._arrivals if self._turn.known(queue).stamper.sheds is not None}

    def _make_room(self, queue: str, excess: int) -> int:
        shed = self._turn.known(queue).stamper.sheds
        if shed is None:
            return 0
        arriving = [entry for entry in self._entries if entry.queue == queue]
        return give_way(self._turn, queue, shed, excess, arriving, {target.id for target, _, _ in self._merged})

    def write(self) -> None:
        turn, entries = self._turn, self._entries
        for (queue, key), (target, _, _) in self._keys.items():
            if self._reserved[queue, key][0] != target:
                turn.execute(_MOVE_KEY, (target, queue, key))
        if entries:
            # Whoever died for them has left its line by now.
            turn.write_lanes()
            lines = {entry.line for entry in entries if entry.line is not None}
            busy = {line for (line,) in turn.fetch(_BUSY_LINES, (sorted(lines),))} if lines else set()
            turn.write_rows(_INSERT, [self._row(run, busy) for run in _runs(entries, self._shedding())])
        turn.scribe.accepted(entries)
        for taker, draft, newer in self._merged:
            turn.execute(_MERGE, self._merge(taker, draft, newer))
            turn.touch(draft.queue, taker.lane, None)
            turn.scribe.merged(taker.id, draft, newer.due_at or 0)
        turn.news |= self._arrivals.keys()
        if self._keys:
            by_state = any(turn.known(queue).spec.unique for queue, _ in self._keys)
            sweep_keys(turn, _SWEEP_PER_DRAFT * (len(entries) + 1), by_state=by_state)

    def _put(self, job_id: int, draft: Draft, key_digest: bytes, key_until: Instant) -> int:
        """The id of the job that the draft becomes, or that takes it over."""
        turn, stamper = self._turn, self._turn.known(draft.queue).stamper
        target = None if stamper.spec.merge is None or draft.subject is None else self._target(draft)
        if target is not None:
            job_id = target.id
            newer = stamper.newer(draft, target.enqueued_at, target.due_at, turn.now)
            self._merged.append((target, draft, newer))
            self.receipts.append(Receipt(job_id, durable=True, merged=True))
        else:
            entry = stamper.entry(draft, job_id, turn.now, key_digest, key_until)
            self._entries.append(entry)
            self.receipts.append(Receipt(job_id, True))
            self._arrivals[draft.queue] = self._arrivals.get(draft.queue, 0) + 1
            if entry.merges:
                lane = lane_key(entry.cls, entry.gates)
                target = _Target(job_id, turn.now, entry.due_at, entry.rank_timed, facts_of(entry, entry.kind), lane)
        if target is not None:
            alive = draft.expires_at is None or draft.expires_at > turn.now
            self._newest[draft.queue, draft.subject or ""] = target if alive else None
        return job_id

    def _row(self, run: Sequence[Entry], busy: set[str]) -> tuple[Any, ...]:
        """The columns of a run. `busy`: lines that have a head; the first job of any other line is its head."""
        entry, now = run[-1], self._turn.now
        state = READY if entry.due_at <= now else LATER
        lane = lane_key(entry.cls, entry.gates)
        if entry.line is not None:
            state = BEHIND if entry.line in busy else state
            busy.add(entry.line)
        if state == READY:
            self._turn.touch(entry.queue, lane, None)
        rank = rank_at(entry.rank_base, entry.rank_timed, entry.due_at, now)
        return (
            entry.id,
            rank,
            entry.due_at,
            now,
            entry.rank_base,
            entry.expires_at,
            len(run),
            entry.cost,
            entry.max_attempts,
            state,
            entry.rank_timed,
            entry.merges,
            entry.blocks,
            entry.queue,
            lane,
            entry.cls,
            entry.kind,
            entry.subject if entry.merges else None,
            entry.line,
            text_of(entry.gates) if entry.gates else None,
            facts_json(run, entry.kind),
            Json(b"[" + b",".join([each.body for each in run]) + b"]"),
        )

    def _target(self, draft: Draft) -> "_Target | None":
        name = (draft.queue, draft.subject or "")
        if name in self._newest:
            return self._newest[name]
        found = self._turn.fetch(_FRESH, (*name, self._turn.now))
        if not found:
            return None
        job_id, enqueued_at, due_at, timed, facts, lane = found[0]
        return _Target(job_id, enqueued_at, due_at, timed, one_facts(facts), lane)

    def _merge(self, target: "_Target", draft: Draft, newer: Newer) -> tuple[Any, ...]:
        moved, base = newer.due_at, newer.rank_base
        rank = None if moved is None else rank_at(base, target.rank_timed, moved, self._turn.now)
        own = (target.facts or Facts(), newer.priority, newer.deadline, newer.meta)
        bodies = Json(b"[" + draft.body + b"]")
        return (draft.kind, bodies, merged_facts(*own), newer.expires_at, moved, rank, base, base, target.id)


def _runs(entries: Sequence[Entry], shedding: set[str]) -> list[list[Entry]]:
    """Neighbours by their ids that are alike in all that a claim looks at; with gates, a line or an expiry: alone."""
    runs: list[list[Entry]] = []
    last: tuple[Any, ...] | None = None
    for entry in entries:
        ranked = (entry.due_at, entry.rank_base, entry.rank_timed)
        alike = (entry.queue, entry.cls, entry.cost, *ranked, entry.max_attempts)
        alone = entry.gates or entry.line or entry.expires_at is not None or entry.queue in shedding
        if runs and alike == last and not alone and entry.id == runs[-1][-1].id + 1:
            runs[-1].append(entry)
        else:
            runs.append([entry])
        last = None if alone else alike
    return runs
