"""One call inside a transaction: its instant, its counters, its gates and lanes, and the news for those who sleep.

The work of a verb runs between the opening of a turn and `finish`, which writes counters, lanes and gates back. A turn
that raises is rolled back by the writer and leaves nothing.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from forebay.core.instant import Instant, Span
from forebay.core.ledger import encode_record
from forebay.core.scribe import Scribe
from forebay.store.sqlite.gates import Gates
from forebay.store.sqlite.lanes import LaneTable
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list
from forebay.store.sqlite.tally import Knowledge, QueueCounters, Tally
from forebay.store.states import READY, WAITING

SETTLE_MEMORY: Final = 65_536
_RECORDS_PER_TRIM: Final = 64
_TRIMMED_AT_ONCE: Final = 256

_DELETE: Final = statement("delete")
_REMEMBER: Final = (statement("remember_0"), statement("remember_1"))
_FORGET: Final = (statement("forget_0"), statement("forget_1"))
_FALL_DUE: Final = statement("fall_due")
_EXPOSE: Final = statement("expose")
_HEADS: Final = statement("heads")
_RUNNING_IN_LINE: Final = statement("running_in_line")
_STEP_BACK: Final = statement("step_back")
_KEEP_RECORD: Final = statement("keep_record")
_RECORD_SIZES: Final = statement("record_sizes")
_DROP_RECORDS: Final = statement("drop_records")


class Head(Struct):
    """The counters of the whole store, and the rule of its ledger: every process reads it anew at every call."""

    next_id: int
    last_at: Instant
    half: int
    filled: int
    ledger_first: int
    ledger_next: int
    ledger_bytes: int
    ledger_on: int
    ledger_keep: Span
    ledger_keep_bytes: int


class LineHead(NamedTuple):
    """The first job of a line."""

    line: str
    id: int
    state: int
    behind: int
    queue: str
    lane: str


class Turn:
    """What the work of a verb is given. `scribe`: who is told what becomes of jobs, unless the ledger is off.

    `topics`: jobs that ended, and owners whose jobs are to end. `exposed`: jobs that became ready in it.
    """

    def __init__(self, connection: sqlite3.Connection, knowledge: Knowledge, head: Head, now: Instant) -> None:
        self.connection = connection
        self.now = now
        self.head = head
        self.tally = Tally(connection, knowledge)
        self.gates = Gates(connection, now)
        self.lanes = LaneTable(connection, self.tally, self.gates, now)
        self.scribe = Scribe(now) if head.ledger_on else None
        self.topics: set[int | str] = set()
        self.exposed = 0
        self._changes = connection.total_changes

    def queue(self, name: str) -> QueueCounters:
        return self.tally.queue(name)

    def finish(self) -> None:
        """Write what the turn has counted; a turn that changed nothing costs no sync. The writer writes the head."""
        self.lanes.write()
        self.gates.write()
        self.tally.write()
        self._keep_record()
        if self.connection.total_changes != self._changes:
            self.head.last_at = self.now

    def promote_due(self, limit: int) -> int:
        """Waiting jobs whose time has come become ready; how many."""
        rows = self.connection.execute(_FALL_DUE, (self.now, limit)).fetchall()
        for queue, lane, rank, job_id in rows:
            self._became_ready(queue, lane, rank, job_id)
        return len(rows)

    def expose(self, lines: Iterable[str]) -> None:
        """The jobs that were exposed in these lines have ended or went back: their heads are exposed."""
        found = self.connection.execute(_EXPOSE, (json.dumps(list(lines)), self.now)).fetchall()
        for queue, lane, rank, job_id, state in found:
            if state == READY:
                self._became_ready(queue, lane, rank, job_id)

    def expose_if_free(self, lines: Iterable[str]) -> None:
        """The same where a job of the line may still run, which finishes first."""
        running = self.connection.execute
        self.expose([line for line in lines if not running(_RUNNING_IN_LINE, (line,)).fetchone()[0]])

    def heads(self, lines: Iterable[str]) -> dict[str, LineHead]:
        """The first job of each of these lines that has not finished, or is dead and blocks it."""
        found = (LineHead(*row) for row in self.connection.execute(_HEADS, (json.dumps(list(lines)),)))
        return {head.line: head for head in found}

    def step_back(self, head: LineHead) -> None:
        """A job that was exposed waits again behind one that came back to life."""
        self.connection.execute(_STEP_BACK, (head.id,))
        if head.state == READY:
            self.tally.moved(head.queue, head.lane, READY, WAITING)
            self.lanes.left(head.queue, head.lane)

    def give_back(self, queue: str, lane: str, cost: int) -> None:
        """A job of this lane runs no longer: its slots are free."""
        for name in self.queue(queue).known.caps(lane):
            self.gates.give_back(name, cost)

    def _became_ready(self, queue: str, lane: str, rank: int, job_id: int) -> None:
        self.exposed += 1
        self.tally.moved(queue, lane, WAITING, READY)
        self.lanes.arrived(queue, lane, rank, job_id)

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
