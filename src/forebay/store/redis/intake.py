"""How drafts become jobs: enqueue, sources that repeat themselves, replacements of dead jobs.

A batch is one script: capacity, keys and merges are checked where the jobs are made.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.errors import Invalid, QueueFull
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.limits import MAX_INSTANT
from forebay.core.policy import Bounded
from forebay.store.brokers import Spread
from forebay.store.protocol import Checkpoint, Receipt, Tally
from forebay.store.redis.connect import Argument
from forebay.store.redis.records import packed, sid, sids
from forebay.store.redis.session import Session, SourceMoved, refuse
from forebay.store.redis.waiting import Waiting

_NEW, _DUPLICATE, _MERGED = range(3)
_decode_checkpoint: Final = msgspec.msgpack.Decoder(Checkpoint).decode


class Intake:
    """Enqueue, ingest and replace_dead."""

    def __init__(self, session: Session, waiting: Waiting) -> None:
        self._session = session
        self._waiting = waiting

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self._put("enqueue", (), drafts)

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self._waiting.wait_for_room(full.queue, until, lambda: self._room_at(full))

    def ingested(self, source: str) -> Checkpoint | None:
        kept = self._session.command("HGET", self._session.key("sources"), source)
        return None if kept is None else _decode_checkpoint(kept)

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        if self.ingested(source) != before:
            return None
        checkpoints = (b"" if before is None else packed(before), packed(after))
        try:
            return Tally.of(self._put("ingest", (source, *checkpoints), drafts))
        except SourceMoved:
            return None

    def replace_dead(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        session = self._session
        known = {job_id: draft for job_id, draft in drafts.items() if sids([job_id])}
        ids, some = packed([sid(job_id) for job_id in known]), list(known.values())

        def attempt() -> Sequence[Any]:
            batch = session.specs.batch(some, single=True)
            if any(session.specs.of(draft.queue).spec.is_broker for draft in some):
                raise Invalid("replace_dead", "a dead job came from a queue, not from a broker", "name the queue")
            bodies = (draft.body for draft in some)
            reply: Sequence[Any] = session.call("replace_dead", ids, packed(batch), *bodies)
            return reply

        reply = session.on_specs(attempt)
        if reply[0] != b"ok":
            refuse(reply)
        _, receipts, replaced = reply
        return dict(zip(map(int, replaced), self._receipts(receipts[1:]), strict=True))

    def _put(self, verb: str, before: Sequence[Argument], drafts: Sequence[Draft]) -> list[Receipt]:
        """Put drafts into their queues by a verb that takes a batch; `before` are its other arguments."""
        session = self._session
        spread: list[Spread | None] = [None]

        def attempt() -> Sequence[Any]:
            spread[0] = self._spread(drafts)
            some = drafts if spread[0] is None else spread[0].drafts
            also = [] if spread[0] is None else list({draft.queue for draft in drafts})
            batch = session.specs.batch(some, also)
            bodies = (draft.body for draft in some)
            reply: Sequence[Any] = session.call(verb, *before, packed(batch), *bodies)
            return reply

        reply = session.on_specs(attempt)
        if reply[0] != b"ok":
            refuse(reply)
        receipts = self._receipts(reply[1:])
        return receipts if spread[0] is None else spread[0].folded(receipts, session.safety.durable)

    def _spread(self, drafts: Sequence[Draft]) -> Spread | None:
        """Drafts of which some are for brokers."""
        specs = self._session.specs
        if any(specs.of(queue).spec.is_broker for queue in {draft.queue for draft in drafts}):
            return Spread(drafts, lambda queue: specs.of(queue).spec)
        return None

    def _receipts(self, runs: Sequence[int]) -> list[Receipt]:
        """From runs: the first id, how many, and what became of them."""
        durable = self._session.safety.durable
        receipts: list[Receipt] = []
        for first, count, flag in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
            if flag == _NEW:
                receipts += [Receipt(job_id, durable) for job_id in range(first, first + count)]
            else:
                receipts.append(Receipt(first, durable, duplicate=flag == _DUPLICATE, merged=flag == _MERGED))
        return receipts

    def _room_at(self, full: QueueFull) -> Instant:
        """At once if there is room by now, or another bound."""
        session = self._session
        fields = ("version", "waiting", "ready", "running")
        found = session.command("HMGET", session.key("q", full.queue), *fields)
        version, *counts = (int(each or 0) for each in found)
        known = session.specs.of(full.queue)
        capacity = known.spec.capacity
        limit = capacity.limit if isinstance(capacity, Bounded) else sum(counts) + full.requested
        changed = version != known.version
        return 0 if changed or sum(counts) + full.requested <= limit else MAX_INSTANT
