"""The door: enqueue. A batch is one script: capacity, keys and merges are checked where the jobs are made."""

from collections.abc import Sequence
from typing import Any

from forebay.core.errors import QueueFull
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.limits import INSTANT_MOST
from forebay.core.policy import Bounded
from forebay.store.brokers import Spread
from forebay.store.protocol import Receipt
from forebay.store.redis.base import Base, refuse
from forebay.store.redis.connect import Argument
from forebay.store.redis.row import packed

_NEW, _DUPLICATE, _MERGED = range(3)


class Intake(Base):
    """Enqueue."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self._put("enqueue", (), drafts)

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self._sleepers.until_room(full.queue, until, lambda: self._room_at(full))

    def _put(self, verb: str, before: Sequence[Argument], drafts: Sequence[Draft]) -> list[Receipt]:
        """Put drafts into their queues by a verb that takes a batch; `before` are its other arguments."""
        spread: list[Spread | None] = [None]

        def attempt() -> Sequence[Any]:
            spread[0] = self._spread(drafts)
            some = drafts if spread[0] is None else spread[0].drafts
            also = [] if spread[0] is None else list({draft.queue for draft in drafts})
            batch = self._specs.batch(some, also)
            bodies = (draft.body for draft in some)
            reply: Sequence[Any] = self._call(verb, *before, packed(batch), *bodies, tokened=True)
            return reply

        reply = self._on_specs(attempt)
        if reply[0] != b"ok":
            refuse(reply)
        receipts = self._receipts(reply[1:])
        return receipts if spread[0] is None else spread[0].folded(receipts, self._safety.durable)

    def _spread(self, drafts: Sequence[Draft]) -> Spread | None:
        """Drafts of which some are for brokers."""
        queues = {draft.queue for draft in drafts}
        if any(self._specs.of(queue).spec.is_broker for queue in queues):
            return Spread(drafts, lambda queue: self._specs.of(queue).spec)
        return None

    def _receipts(self, told: Sequence[int]) -> list[Receipt]:
        """From runs: the first id, how many, and what became of them."""
        durable = self._safety.durable
        receipts: list[Receipt] = []
        for place in range(0, len(told), 3):
            first, count, flag = told[place : place + 3]
            if flag == _NEW:
                receipts += [Receipt(job_id, durable) for job_id in range(first, first + count)]
            else:
                receipts.append(Receipt(first, durable, duplicate=flag == _DUPLICATE, merged=flag == _MERGED))
        return receipts

    def _room_at(self, full: QueueFull) -> Instant:
        """At once if there is room by now, or another bound."""
        fields = ("version", "waiting", "ready", "running")
        version, *counts = (
            int(each or 0) for each in self._server.command("HMGET", self._key("q", full.queue), *fields)
        )
        known = self._specs.of(full.queue)
        capacity = known.spec.capacity
        limit = capacity.limit if isinstance(capacity, Bounded) else sum(counts) + full.asked
        changed = version != known.version
        return 0 if changed or sum(counts) + full.asked <= limit else INSTANT_MOST
