"""The ledger's own verbs: reading it, its rule, and giving up its front.

Records are written by the verbs, in their transactions. A reader first has the records numbered whose transactions are
over, in the order of their changes, as far as no transaction is open that could still come before: so what was read is
without a gap, and stays so. A transaction that is held open holds readers up, and nobody else.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import OffsetGone
from forebay.core.instant import Instant
from forebay.core.ledger import Change, LedgerEntry, LedgerRule, Record, Span
from forebay.store.postgres.base import Turn
from forebay.store.postgres.transaction import Transactions

_OFFSET_MOST: Final = 2**63 - 2
_NUMBER: Final = "SELECT forebay.number_ledger()"
_FIRST: Final = "SELECT min(first) FROM forebay.ledger_page"
_READ: Final = "SELECT * FROM forebay.read_ledger(%s::bigint, %s)"
_RULE: Final = "SELECT recording, keep, keep_bytes FROM forebay.ledger_rule"
_LOCK_RULE: Final = f"{_RULE} FOR UPDATE"
_PUT_RULE: Final = "UPDATE forebay.ledger_rule SET recording = %s, keep = %s, keep_bytes = %s"
_TRIM: Final = "SELECT forebay.trim_ledger(%s, %s)"
_AHEAD: Final = frozenset((Change.RETRIED, Change.RELEASED))
_decode: Final = msgspec.json.Decoder(list[Span]).decode


class LedgerVerbs(Transactions):
    """What happened."""

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        rows = self._server.query(_READ, (min(after, _OFFSET_MOST), limit))
        if len(rows) < limit or rows[0][0] != after + 1:
            first, _ = self.ledger_extent()
            if after + 1 < first:
                raise OffsetGone("ledger", 0, after + 1, first)
            rows = self._server.query(_READ, (min(after, _OFFSET_MOST), limit))
        return [LedgerEntry(row[0], _record(*row[1:])) for row in rows]

    def ledger_extent(self) -> tuple[int, int]:
        following: int = self._server.query(_NUMBER)[0][0]
        first: int | None = self._server.query(_FIRST)[0][0]
        return following if first is None else first, following

    def ledger_rule(self) -> LedgerRule:
        return LedgerRule(*self._server.query(_RULE)[0])

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._write(lambda turn: _put_rule(turn, rule))

    def trim_ledger(self, limit: int) -> int:
        self._server.query(_NUMBER)
        trimmed: int = self._server.query(_TRIM, (self.now(), limit))[0][0]
        return trimmed


def _put_rule(turn: Turn, rule: LedgerRule) -> None:
    """The switch itself is told: the last record before a silence, and the first one after it."""
    ((recording, _, _),) = turn.fetch(_LOCK_RULE)
    if rule.on and not recording:
        turn.execute(_PUT_RULE, (rule.on, rule.keep, rule.keep_bytes))
    if rule.on != recording:
        turn.scribe.tell("put_ledger_rule", name="on" if rule.on else "off")
        turn.tell()
    turn.execute(_PUT_RULE, (rule.on, rule.keep, rule.keep_bytes))


def _record(
    at: Instant, verb: str, owner: str | None, name: str | None, tick: Instant | None, spans: bytes | None
) -> Record:
    told = [] if spans is None else _decode(spans)
    if verb == "settle":
        told = [_dated(span, at) for span in told]
    return Record(at, verb, told, owner, name, tick)


def _dated(span: Span, at: Instant) -> Span:
    """A settle tells how long; its record tells when."""
    return replace(span, until=at + span.until) if span.until or span.change in _AHEAD else span
