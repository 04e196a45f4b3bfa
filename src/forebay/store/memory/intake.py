"""The door of the in-process store: what a batch of drafts will change, worked out before anything is changed.

A batch is all or nothing. Drafts of one batch see each other: the second of two equal keys is a duplicate of the
first, a newer payload of the same subject takes the place of an older one, and all count against the capacity.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from forebay.core.errors import Invalid, KeyConflict, QueueFull, WrongQueueKind
from forebay.core.event import Entry, Merge
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.rank import rank_at
from forebay.core.shedding import Place, victims
from forebay.store.brokers import Spread
from forebay.store.memory.facts import Facts, KeyFact, KeyName
from forebay.store.memory.index import Index
from forebay.store.memory.queue_state import QueueState
from forebay.store.protocol import Receipt

_RETRY_AFTER_SECONDS = 1.0


class Target(NamedTuple):
    """A job that has not run yet, and takes over newer work of its subject."""

    id: int
    enqueued_at: Instant
    due_at: Instant


class Plan(Struct):
    """What to write and what to answer; `shed` give way."""

    entries: list[Entry]
    merged: list[Merge]
    receipts: list[Receipt]
    shed: list[int]


class Intake:
    """Plans for the drafts of one store."""

    def __init__(self, facts: Facts, index: Index, durable: bool) -> None:
        self._facts = facts
        self._index = index
        self._durable = durable

    def plan(self, drafts: Sequence[Draft], now: Instant) -> Plan:
        brokers = self._index.brokers
        if not brokers or not any(getattr(draft, "queue", None) in brokers for draft in drafts):
            return self._plan(drafts, now)
        spread = Spread(drafts, self._facts.spec)
        plan = self._plan(spread.drafts, now)
        plan.receipts = spread.folded(plan.receipts, self._durable)
        return plan

    def _plan(self, drafts: Sequence[Draft], now: Instant) -> Plan:
        plan = Plan([], [], [], [])
        queues, first_id = self._index.queues, self._facts.next_id
        keys: dict[KeyName, KeyFact] = {}
        newest: dict[tuple[str, str], Target | None] = {}
        arrivals: dict[str, int] = {}
        for draft in drafts:
            if type(draft) is not Draft:
                raise Invalid("draft", f"{type(draft).__name__} is not a Draft", "build a Draft(kind, payload, …)")
            queue = queues.get(draft.queue) or self._index.queue(draft.queue)
            stamper = queue.stamper
            if stamper.is_log:
                raise WrongQueueKind(draft.queue, is_log=True)
            key_digest, key_until = b"", 0
            if draft.key is not None:
                key_digest, key_until = stamper.key(draft, now)
                first = self._first(draft, queue, key_digest, keys, now)
                if first is not None:
                    plan.receipts.append(Receipt(first, self._durable, duplicate=True))
                    continue
            target = None if queue.spec.merge is None else self._merge_target(draft, queue, newest, now)
            if target is not None:
                job_id, newer = target.id, stamper.newer(draft, target.enqueued_at, target.due_at, now)
                plan.merged.append(Merge(job_id, draft.kind, draft.body, draft.key, key_digest, key_until, newer))
                plan.receipts.append(Receipt(job_id, self._durable, merged=True))
            else:
                job_id = first_id + len(plan.entries)
                entry = stamper.entry(draft, job_id, now, key_digest, key_until)
                plan.entries.append(entry)
                plan.receipts.append(Receipt(job_id, self._durable))
                if queue.bounded:
                    arrivals[draft.queue] = arrivals.get(draft.queue, 0) + 1
                if entry.merges:
                    target = Target(job_id, now, entry.due_at)
            if target is not None:
                alive = draft.expires_at is None or draft.expires_at > now
                newest[draft.queue, draft.subject or ""] = target if alive else None
            if draft.key is not None:
                keys[draft.queue, draft.key] = (job_id, key_digest, key_until)
        for name, count in sorted(arrivals.items()):
            plan.shed += self._give_way(name, count, plan, now)
        return plan

    def _first(
        self, draft: Draft, queue: QueueState, key_digest: bytes, keys: dict[KeyName, KeyFact], now: Instant
    ) -> int | None:
        """The job that has this key already; one of the same batch has it in any case."""
        name = (draft.queue, draft.key or "")
        fact = keys.get(name)
        if fact is None:
            fact = self._facts.keys.get(name)
            if fact is None or not queue.stamper.key_counts(fact[2], self._facts.state(fact[0]), now):
                return None
        if fact[1] != key_digest:
            raise KeyConflict(draft.queue, name[1], fact[0])
        return fact[0]

    def _merge_target(
        self, draft: Draft, queue: QueueState, newest: dict[tuple[str, str], Target | None], now: Instant
    ) -> Target | None:
        """The job of the same subject that has not run yet; one that has expired would take the newer work with it."""
        if draft.subject is None:
            return None
        if (draft.queue, draft.subject) in newest:
            return newest[draft.queue, draft.subject]
        job_id = queue.newest.get(draft.subject)
        if job_id is None:
            return None
        row = self._facts.rows[job_id]
        expires_at = row.entry.expires_at
        return None if expires_at is not None and expires_at <= now else Target(job_id, row.enqueued_at, row.due_at)

    def check_capacity(self, arrivals: dict[str, int]) -> None:
        for queue, count in sorted(arrivals.items()):
            if self._index.queue(queue).room < count:
                raise self._full(queue, count)

    def _give_way(self, queue: str, count: int, plan: Plan, now: Instant) -> list[int]:
        """Who dies so that all of these fit in; who takes over newer work of the same call does not."""
        state = self._index.queue(queue)
        excess = count - state.room
        if excess <= 0:
            return []
        shed = state.stamper.sheds
        if shed is None or state.resting is None:
            raise self._full(queue, count)
        spared = {merge.id for merge in plan.merged}
        resting = (place for place in state.resting if place[1] not in spared)
        doomed = victims(shed, excess, resting, [_place(entry, now) for entry in plan.entries if entry.queue == queue])
        if doomed is None:
            raise self._full(queue, count)
        return doomed

    def _full(self, queue: str, count: int) -> QueueFull:
        state = self._index.queue(queue)
        return QueueFull(queue, state.depth, state.depth + state.room, count, _RETRY_AFTER_SECONDS)


def _place(entry: Entry, now: Instant) -> Place:
    return rank_at(entry.rank_base, entry.rank_timed, entry.due_at, now), entry.id
