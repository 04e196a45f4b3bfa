"""One call inside a transaction: its instant, its counters, its gates, and the news for those who sleep.

The work of a verb runs between the opening of a turn and `finish`, which writes counters and gates back. A turn that
raises is rolled back by the writer and leaves nothing. Jobs move only by the methods here and in `tend`, so that rows,
counters, gates and lines always change together.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant, Span
from forebay.core.ledger import encode_record
from forebay.core.scribe import Scribe
from forebay.store.gate_tables import SqlTables
from forebay.store.gating import Gates
from forebay.store.places import Row
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list
from forebay.store.sqlite.tally import Knowledge, Line, Tally, Turns
from forebay.store.states import READY

SETTLE_MEMORY: Final = 65_536
_RECORDS_PER_TRIM: Final = 64
_TRIMMED_AT_ONCE: Final = 256

_DELETE: Final = statement("delete")
_REMEMBER: Final = (statement("remember_0"), statement("remember_1"))
_FORGET: Final = (statement("forget_0"), statement("forget_1"))
_MAKE_READY: Final = statement("make_ready")
_KEEP_RECORD: Final = statement("keep_record")
_RECORD_SIZES: Final = statement("record_sizes")
_DROP_RECORDS: Final = statement("drop_records")


class Head(Struct):
    """The counters of the whole store, and the rule of its ledger: every process reads it anew at every call."""

    next_id: int
    next_join: int
    dealers: int
    last_at: Instant
    half: int
    filled: int
    ledger_first: int
    ledger_next: int
    ledger_bytes: int
    ledger_on: int
    ledger_keep: Span
    ledger_keep_bytes: int


class _Tables(SqlTables):
    """Classes of which somebody may start take turns with those that have ready jobs."""

    may_start: Callable[[list[tuple[str, str]]], None]

    def put_pace(self, queue: str, first: Row, opens_at: Instant | None, now: Instant) -> None:
        super().put_pace(queue, first, opens_at, now)
        if first.cls and opens_at is not None and opens_at <= now:
            self.may_start([(queue, first.cls)])


class Turn:
    """What the work of a verb is given. `scribe`: who is told what becomes of jobs, unless the ledger is off.

    `topics`: jobs that ended, and owners whose jobs are to end.
    """

    def __init__(self, connection: sqlite3.Connection, knowledge: Knowledge, head: Head, now: Instant) -> None:
        self.connection = connection
        self.now = now
        self.head = head
        self.tally = Tally(connection, knowledge)
        self.scribe = Scribe(now) if head.ledger_on else None
        self.topics: set[int | str] = set()
        self._gates: Gates | None = None
        self.paced = False
        self._changes = connection.total_changes

    @property
    def gates(self) -> Gates:
        if self._gates is None:
            connection = self.connection
            tables = _Tables(connection.execute, connection.executemany, json.dumps, statement)
            tables.may_start = self.tally.join
            self._gates = Gates(tables, self.now)
        return self._gates

    @property
    def gated(self) -> bool:
        """Whether this turn has touched a gate."""
        return self._gates is not None

    def line(self, queue: str) -> Line:
        return self.tally.line(queue)

    def write_classes(self) -> None:
        self.head.next_join = self.tally.write_classes(self.head.next_join)

    def turns(self, line: Line) -> Turns:
        """Whose turn it is in a queue."""
        return self.tally.turns(line, self._begin_to_deal)

    def finish(self) -> None:
        """Write what the turn has counted; a turn that changed nothing costs no sync. The writer writes the head."""
        if self._gates is not None:
            self.tally.starting(self._gates.write())
        self.write_classes()
        self.tally.write_queues()
        self._keep_record()
        if self.connection.total_changes != self._changes:
            self.head.last_at = self.now

    def _begin_to_deal(self) -> int:
        """The number of a process that has no turns yet."""
        self.head.dealers += 1
        return self.head.dealers

    def _keep_record(self) -> None:
        record = None if self.scribe is None else self.scribe.record()
        if record is not None:
            head, kept = self.head, encode_record(record)
            self.connection.execute(_KEEP_RECORD, (head.ledger_next, self.now, kept))
            head.ledger_next += 1
            head.ledger_bytes += len(kept)
            if head.ledger_next % _RECORDS_PER_TRIM == 0:
                self.trim_ledger(_TRIMMED_AT_ONCE)

    def trim_ledger(self, limit: int) -> int:
        """Give up what the rule no longer keeps at the front of the ledger; returns how many records."""
        head, before, dropped = self.head, self.now - self.head.ledger_keep, 0
        if head.ledger_first == head.ledger_next:
            return 0
        for at, size in self.connection.execute(_RECORD_SIZES, (head.ledger_first, limit)):
            if at >= before and head.ledger_bytes <= head.ledger_keep_bytes:
                break
            head.ledger_bytes -= size
            dropped += 1
        if dropped:
            head.ledger_first += dropped
            self.connection.execute(_DROP_RECORDS, (head.ledger_first,))
        return dropped

    def make_ready(self, rows: Sequence[Row]) -> None:
        """Waiting jobs whose slots are taken become ready."""
        if rows:
            self.connection.execute(_MAKE_READY, (id_list(row.id for row in rows),))
            for row in rows:
                self.tally.moved(row.queue, row.cls, row.state, READY)

    def remove(self, ids: Sequence[int], settled: Sequence[tuple[int, int, str]]) -> None:
        """Jobs are gone; of those that were settled once, the last settle is remembered."""
        self.connection.execute(_DELETE, (id_list(ids),))
        if settled:
            self.remember(settled)

    def remember(self, settled: Sequence[tuple[int, int, str]]) -> None:
        """The last settles of jobs that are gone; the oldest half of them is given up when there is no more room."""
        head = self.head
        self.connection.executemany(_REMEMBER[head.half], settled)
        head.filled += len(settled)
        if head.filled >= SETTLE_MEMORY:
            head.half = 1 - head.half
            head.filled = 0
            self.connection.execute(_FORGET[head.half])
