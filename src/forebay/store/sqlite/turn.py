"""One call inside a transaction: its instant, its counters, its gates, and the news for those who sleep.

The work of a verb runs between the opening of a turn and `finish`, which writes counters and gates back. A turn that
raises is rolled back by the writer and leaves nothing. Jobs move only by the methods here and in `tend`, so that rows,
counters, gates and lines always change together.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant
from forebay.store.gate_tables import SqlTables
from forebay.store.gating import READY, Gates, Row
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list
from forebay.store.sqlite.tally import Knowledge, Line, Tally

SETTLE_MEMORY: Final = 65_536

_DELETE: Final = statement("delete")
_REMEMBER: Final = (statement("remember_0"), statement("remember_1"))
_FORGET: Final = (statement("forget_0"), statement("forget_1"))
_MAKE_READY: Final = statement("make_ready")


class Head(Struct):
    """The counters of the whole store."""

    next_id: int
    next_join: int
    last_at: Instant
    half: int
    filled: int


class Turn:
    """What the work of a verb is given."""

    def __init__(self, connection: sqlite3.Connection, knowledge: Knowledge, head: Head, now: Instant) -> None:
        self.connection = connection
        self.now = now
        self.head = head
        self.tally = Tally(connection, knowledge)
        self._gates: Gates | None = None
        self._changes = connection.total_changes

    @property
    def gates(self) -> Gates:
        if self._gates is None:
            self._gates = Gates(SqlTables(self.connection.execute, statement))
        return self._gates

    @property
    def gated(self) -> bool:
        """Whether this turn has touched a gate."""
        return self._gates is not None

    def line(self, queue: str) -> Line:
        return self.tally.line(queue)

    def write_classes(self) -> None:
        self.head.next_join = self.tally.write_classes(self.head.next_join)

    def finish(self) -> None:
        """Write what the turn has counted; a turn that changed nothing costs no sync. The writer writes the head."""
        if self._gates is not None:
            self._gates.write()
        self.write_classes()
        self.tally.write_queues()
        if self.connection.total_changes != self._changes:
            self.head.last_at = self.now

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
