"""Drafts from a source that repeats itself, and dead jobs that give way to new ones. See `store.feeding`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.store.feeding import Place
from forebay.store.protocol import Receipt, Tally
from forebay.store.redis.base import SourceMoved, refuse
from forebay.store.redis.ledger import LedgerVerbs
from forebay.store.redis.row import packed, sid, sids

_decode_place: Final = msgspec.msgpack.Decoder(Place).decode


class Feed(LedgerVerbs):
    """Exactly once, however often it comes."""

    def fed(self, source: str) -> Place | None:
        kept = self._server.command("HGET", self._key("feed"), source)
        return None if kept is None else _decode_place(kept)

    def feed(self, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
        if self.fed(source) != before:
            return None
        places = (b"" if before is None else packed(before), packed(after))
        try:
            return Tally.of(self._put("feed", (source, *places), drafts))
        except SourceMoved:
            return None

    def mend(self, mended: dict[int, Draft]) -> dict[int, Receipt]:
        known = [(job_id, draft) for job_id, draft in mended.items() if sids([job_id])]
        drafts = [draft for _, draft in known]

        def attempt() -> Sequence[Any]:
            batch = self._specs.batch(drafts, single=True)
            if any(self._specs.of(draft.queue).spec.is_broker for draft in drafts):
                raise Invalid("mend", "a dead job came from a queue, not from a broker", "name the queue")
            ids = packed([sid(job_id) for job_id, _ in known])
            reply: Sequence[Any] = self._call(
                "mend", ids, packed(batch), *(draft.body for draft in drafts), tokened=True
            )
            return reply

        reply = self._on_specs(attempt)
        if reply[0] != b"ok":
            refuse(reply)
        _, told, ids = reply
        return dict(zip(map(int, ids), self._receipts(told[1:]), strict=True))
