"""Drafts from a source that repeats itself, and dead jobs that give way to new ones. See `store.feeding`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.core.names import check_text
from forebay.store.checks import check_batch, check_bytes
from forebay.store.feeding import Place, check_feed
from forebay.store.protocol import Receipt, Tally
from forebay.store.redis.base import SourceMoved, refuse
from forebay.store.redis.ledger import LedgerVerbs
from forebay.store.redis.row import packed, sid, sids

_decode_place: Final = msgspec.msgpack.Decoder(Place).decode


class Feed(LedgerVerbs):
    """Exactly once, however often it comes."""

    def fed(self, source: str) -> Place | None:
        kept = self._server.command("HGET", self._key("feed"), check_text("source", source))
        return None if kept is None else _decode_place(kept)

    def feed(self, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
        source = check_feed(source, drafts)
        if self.fed(source) != before:
            return None
        places = (b"" if before is None else packed(before), packed(after))
        try:
            return Tally.of(self._put("feed", (source, *places), drafts))
        except SourceMoved:
            return None

    def mend(self, pairs: Sequence[tuple[int, Draft]]) -> list[Receipt | None]:
        check_batch("mend", len(pairs))
        known = [(job_id, draft) for job_id, draft in pairs if sids([job_id])]
        drafts = [draft for _, draft in known]
        check_bytes("mend", [draft.body for draft in drafts if type(draft) is Draft])

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
        _, told, mended = reply
        receipts = dict(zip(map(int, mended), self._receipts(told[1:]), strict=True))
        return [receipts.pop(job_id, None) for job_id, _ in pairs]
