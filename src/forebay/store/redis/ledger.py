"""The ledger's own verbs: reading it, its rule, and giving up its front.

Entries are written by the scripts, in the call that they tell of; here they become records. See lua/lib/ledger.lua.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import OffsetGone
from forebay.core.ledger import JobRange, LedgerEntry, LedgerRule, Record, Trait
from forebay.store.redis.session import Session

_MAX_OFFSET: Final = 2**53 - 2
_decode: Final = msgspec.msgpack.Decoder().decode


class Ledger:
    """What happened."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        first, _, *entries = self._session.call("ledger", min(after, _MAX_OFFSET), limit)
        if after + 1 < first:
            raise OffsetGone("ledger", 0, after + 1, first)
        return [LedgerEntry(after + 1 + place, _record(kept)) for place, kept in enumerate(entries)]

    def ledger_extent(self) -> tuple[int, int]:
        first, following = self._session.call("rule")[3:]
        return first, following

    def ledger_rule(self) -> LedgerRule:
        off, keep, keep_bytes, _, _ = self._session.call("rule")
        return LedgerRule(not off, keep, keep_bytes)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._session.call("put_rule", int(not rule.on), rule.keep, rule.keep_bytes)

    def trim_ledger(self, limit: int) -> int:
        dropped: int = self._session.call("trim_ledger", limit, tokened=True)
        return dropped


def _record(kept: bytes) -> Record:
    at, verb, spans, owner, name, tick = _decode(kept)
    return Record(at, verb, [_span(each) for each in spans], owner or None, name or None, _number(tick))


def _span(told: Sequence[Any]) -> JobRange:
    facts: Any = told[:12]
    span = JobRange(*facts)
    return replace(span, traits=[Trait(**each) if each else None for each in told[12]]) if told[12] else span


def _number(told: int | bool) -> int | None:
    return None if told is False else told
