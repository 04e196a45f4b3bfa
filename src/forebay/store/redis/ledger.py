"""The ledger's own verbs: reading it, its rule, and giving up its front.

Entries are written by the scripts, in the call that they tell of; here they become records. See lua/lib/ledger.lua.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import OffsetGone
from forebay.core.ledger import LedgerEntry, LedgerRule, Record, Span, Trait
from forebay.store.redis.queues import QueueVerbs

_OFFSET_MOST: Final = 2**53 - 2
_decode: Final = msgspec.msgpack.Decoder().decode


class LedgerVerbs(QueueVerbs):
    """What happened."""

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        first, _, *entries = self._call("ledger", min(after, _OFFSET_MOST), limit)
        if after + 1 < first:
            raise OffsetGone("ledger", 0, after + 1, first)
        return [LedgerEntry(after + 1 + place, _record(kept)) for place, kept in enumerate(entries)]

    def ledger_extent(self) -> tuple[int, int]:
        first, following = self._call("rule")[3:]
        return first, following

    def ledger_rule(self) -> LedgerRule:
        off, keep, keep_bytes, _, _ = self._call("rule")
        return LedgerRule(not off, keep, keep_bytes)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._call("put_rule", int(not rule.on), rule.keep, rule.keep_bytes)

    def trim_ledger(self, limit: int) -> int:
        dropped: int = self._call("trim_ledger", limit, tokened=True)
        return dropped


def _record(kept: bytes) -> Record:
    at, verb, spans, owner, name, tick = _decode(kept)
    return Record(at, verb, [_span(each) for each in spans], owner or None, name or None, _number(tick))


def _span(told: Sequence[Any]) -> Span:
    facts: Any = told[:12]
    span = Span(*facts)
    return replace(span, traits=[Trait(**each) if each else None for each in told[12]]) if told[12] else span


def _number(told: int | bool) -> int | None:
    return None if told is False else told
