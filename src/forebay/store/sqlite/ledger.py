"""The ledger's own verbs: reading it, its rule, and giving up its front.

Records are written by `turn`, in the transaction of the call that they tell of. Their places and the rule are in the
head, which every call reads anew: a rule that another process put holds from the next call on.
"""

import sqlite3
from typing import Final

from forebay.core.errors import OffsetGone
from forebay.core.ledger import LedgerEntry, LedgerRule, decode_record
from forebay.core.scribe import Scribe
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.queues import QueueVerbs
from forebay.store.sqlite.turn import Head, Turn

_HEAD: Final = statement("head")
_RECORDS: Final = statement("records")
_OFFSET_MOST: Final = 2**63 - 2


class LedgerVerbs(QueueVerbs):
    """What happened."""

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        with self._read() as (reader, _):
            first = _head(reader).ledger_first
            if after + 1 < first:
                raise OffsetGone("ledger", 0, after + 1, first)
            rows = reader.execute(_RECORDS, (min(after, _OFFSET_MOST), limit)).fetchall()
        return [LedgerEntry(entry, decode_record(record)) for entry, record in rows]

    def ledger_extent(self) -> tuple[int, int]:
        with self._read() as (reader, _):
            head = _head(reader)
        return head.ledger_first, head.ledger_next

    def ledger_rule(self) -> LedgerRule:
        with self._read() as (reader, _):
            head = _head(reader)
        return LedgerRule(head.ledger_on == 1, head.ledger_keep, head.ledger_keep_bytes)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._write(lambda turn: _put_rule(turn, rule))

    def trim_ledger(self, limit: int) -> int:
        return self._write(lambda turn: turn.trim_ledger(limit))


def _head(reader: sqlite3.Connection) -> Head:
    return Head(*reader.execute(_HEAD).fetchone())


def _put_rule(turn: Turn, rule: LedgerRule) -> None:
    """The switch itself is told: the last record before a silence, and the first one after it."""
    head = turn.head
    if rule.on != head.ledger_on:
        turn.scribe = turn.scribe or Scribe(turn.now)
        turn.scribe.tell("put_ledger_rule", name="on" if rule.on else "off")
    head.ledger_on, head.ledger_keep, head.ledger_keep_bytes = int(rule.on), rule.keep, rule.keep_bytes
