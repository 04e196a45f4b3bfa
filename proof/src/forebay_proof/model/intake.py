"""The model of enqueue: brokers, keys, merges and bounds; all of a batch is accepted, or nothing of it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from forebay.core.entries import Entry
from forebay.core.errors import ForebayError, KeyConflict, QueueFull, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.instant import Instant
from forebay.core.job import Draft, Job, State
from forebay.core.policy import Bounded
from forebay.core.stamp import Stamper, rank_at, rank_back
from forebay.engine.intake import GAVE_WAY, victims
from forebay.store.cells.ids import cell_of
from forebay.store.protocol import Receipt
from forebay_proof.model.dead_letters import UNHELD, DeadLetterModel
from forebay_proof.model.jobs import OPEN, Item, JobTable, require

Fact = tuple[int, bytes, Instant]


class _Batch:
    """What one call did so far: new jobs, jobs that a draft was merged into, and its keys."""

    def __init__(self, now: Instant, ids: Iterator[int]) -> None:
        self.now = now
        self.ids = ids
        self.new: list[Item] = []
        self.merged: set[int] = set()
        self.keys: dict[tuple[str, str], Fact] = {}


class IntakeModel:
    """How jobs are accepted. `accepted`: the ids of all of them, ever; `keys`: by queue and key."""

    def __init__(self, jobs: JobTable, dead_letters: DeadLetterModel, durable: bool) -> None:
        self._jobs = jobs
        self._dead_letters = dead_letters
        self.durable = durable
        self.accepted: list[int] = []
        self.keys: dict[tuple[str, str], Fact] = {}

    def enqueue(self, now: Instant, drafts: Sequence[Draft], fresh: Iterable[int] | None = None) -> list[Receipt]:
        """`fresh` are the ids a store gave to new jobs; without it they count up from 1."""
        ids = iter(count(max(self.accepted, default=0) + 1) if fresh is None else fresh)
        items, batch = dict(self._jobs.items), _Batch(now, ids)
        try:
            receipts = [self._answer(draft, batch) for draft in drafts]
            for queue in sorted({item.job.queue for item in batch.new}):
                self._make_room(queue, batch)
        except ForebayError:
            self._jobs.items.clear()
            self._jobs.items.update(items)
            raise
        new = [item.job.id for item in batch.new]
        for number in {cell_of(job_id) for job_id in new}:
            known, ids_there = ([each for each in some if cell_of(each) == number] for some in (self.accepted, new))
            require([*known, *ids_there] == sorted({*known, *ids_there}), "ids grow", known, ids_there)
        self.accepted += new
        self.keys |= batch.keys
        return receipts

    def key_counts(self, queue: str, fact: Fact, now: Instant) -> bool:
        item = self._jobs.items.get(fact[0])
        return Stamper(self._jobs.spec(queue)).key_counts(fact[2], None if item is None else item.job.state, now)

    def _answer(self, draft: Draft, batch: _Batch) -> Receipt:
        spec = self._jobs.spec(draft.queue)
        receipts = [self._take(copy, batch) for copy in copies(spec, draft)]
        if not spec.is_broker:
            return receipts[0]
        ids = tuple(receipt.id for receipt in receipts)
        duplicate, merged = all(each.duplicate for each in receipts), all(each.merged for each in receipts)
        return Receipt(ids[0] if ids else 0, self.durable, bool(ids) and duplicate, bool(ids) and merged, ids)

    def _take(self, draft: Draft, batch: _Batch) -> Receipt:
        stamper, now = Stamper(self._jobs.spec(draft.queue)), batch.now
        if stamper.is_log:
            raise WrongQueueKind(draft.queue, is_log=True)
        name, (key_digest, key_until) = (draft.queue, draft.key or ""), stamper.key(draft, now)
        first = batch.keys.get(name) or self.keys.get(name)
        if draft.key and first and (name in batch.keys or self.key_counts(draft.queue, first, now)):
            if first[1] != key_digest:
                raise KeyConflict(*name, first[0])
            return Receipt(first[0], self.durable, duplicate=True)
        target = self._merge_target(now, draft)
        if target is not None:
            job_id = target.job.id
            self._jobs.items[job_id] = _merged(target, draft, stamper, now)
            batch.merged.add(job_id)
        else:
            job_id = next(batch.ids, 0)
            entry = stamper.entry(draft, job_id, now)
            self._jobs.items[job_id] = Item(entry, _new_job(entry, now), rank_of(entry, entry.due_at, now))
            batch.new.append(self._jobs.items[job_id])
        if draft.key:
            batch.keys[name] = (job_id, key_digest, key_until)
        return Receipt(job_id, self.durable, merged=target is not None)

    def _merge_target(self, now: Instant, draft: Draft) -> Item | None:
        if self._jobs.spec(draft.queue).merge is None or draft.subject is None:
            return None
        line = [i for i in self._jobs.items.values() if (i.job.queue, i.job.subject) == (draft.queue, draft.subject)]
        able = [item for item in line if item.fresh and item.entry.merges and not item.expired(now)]
        return max(able, key=lambda item: item.job.id, default=None)

    def _make_room(self, queue: str, batch: _Batch) -> None:
        arrived = [item for item in batch.new if item.job.queue == queue]
        ids = {item.job.id for item in arrived}
        inside = [item for item in self._jobs.in_state(*OPEN, queue=queue) if item.job.id not in ids]
        capacity, shed = self._jobs.spec(queue).capacity, Stamper(self._jobs.spec(queue)).sheds
        if not isinstance(capacity, Bounded) or len(inside) + len(arrived) <= capacity.limit:
            return
        waiting = [item for item in inside if item.job.state in OPEN[:2] and item.job.id not in batch.merged]
        shed_ids = None
        if shed is not None:
            lowest = shed.victim == "lowest"
            places = sorted(((item.rank if lowest else 0, item.job.id) for item in waiting), reverse=lowest)
            arriving = [(item.rank, item.job.id) for item in arrived]
            shed_ids = victims(shed, len(inside) + len(arrived) - capacity.limit, places, arriving)
        if shed_ids is None:
            raise QueueFull(queue, len(inside), capacity.limit, len(arrived), 0)
        for job_id in shed_ids:
            self._dead_letters.dead_letter(self._jobs.items[job_id], GAVE_WAY, batch.now)

    def check_room(self, queues: list[str]) -> None:
        for queue in sorted(set(queues)):
            capacity, depth = self._jobs.spec(queue).capacity, len(self._jobs.in_state(*OPEN, queue=queue))
            if isinstance(capacity, Bounded) and depth + queues.count(queue) > capacity.limit:
                raise QueueFull(queue, depth, capacity.limit, queues.count(queue), 0)


def rank_of(entry: Entry, due_at: Instant, now: Instant) -> int:
    return rank_at(entry.rank_base, entry.rank_timed, due_at, now)


def with_released_rank(item: Item) -> Item:
    """The job with the rank that it has after a release."""
    return replace(item, rank=rank_back(item.rank, item.entry.rank_timed))


def _merged(item: Item, draft: Draft, stamper: Stamper, now: Instant) -> Item:
    newer = stamper.newer(draft, item.job.enqueued_at, item.job.due_at, now)
    urgency = {name: getattr(newer, name) for name in ("priority", "deadline", "expires_at", "meta")}
    entry = replace(item.entry, kind=draft.kind, body=draft.body, rank_base=newer.rank_base, **urgency)
    job = replace(item.job, kind=draft.kind, body=draft.body, **urgency)
    if newer.due_at is None:
        return replace(item, entry=entry, job=job, rank=item.rank + newer.rank_base - item.entry.rank_base)
    return replace(item, entry=entry, job=replace(job, due_at=newer.due_at), rank=rank_of(entry, newer.due_at, now))


def _new_job(entry: Entry, now: Instant) -> Job:
    shared = {name: getattr(entry, name) for name in Job.__struct_fields__ if name in Entry.__struct_fields__}
    state: dict[str, Any] = {"state": State.WAITING, "enqueued_at": now, "attempt": 0, "delivery": 0, "errors": ()}
    return Job(**shared, **state, **UNHELD, finished_at=None, cancel_requested=False, result_body=None)
