"""The verbs about gates that are not about one queue: letting some pass a condition, and telling what holds a job."""

import json
import sqlite3
from typing import Final

from forebay.core.instant import Instant
from forebay.core.limits import AHEAD_MOST, ID_MOST
from forebay.store.checks import check_ids, checked_condition
from forebay.store.places import Place, Row
from forebay.store.protocol import Hold
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import text_of
from forebay.store.sqlite.settling import Settling
from forebay.store.sqlite.tend import open_gates, readmit, tend
from forebay.store.sqlite.turn import Turn
from forebay.store.states import READY, WAITING

_ONE: Final = statement("one")
_LOOK: Final = statement("look")
_PARKED_AT: Final = statement("parked_at")
_PASS: Final = statement("pass")
_PACE: Final = statement("pace")
_PARKED_BEFORE: Final = statement("parked_before")
_CLASS_BEFORE: Final = statement("class_before")
_STANDING_BEFORE: Final = statement("standing_before")
_READY_BEFORE: Final = statement("ready_before")


class GateVerbs(Settling):
    """Release, hold, ahead."""

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        name = checked_condition(condition, count, value)
        return self._write(lambda turn: _release(turn, name, count))

    def hold(self, job_id: int) -> Hold | None:
        check_ids("hold", [job_id])
        with self._read() as (reader, now):
            row = _row(reader, job_id)
            return None if row is None or row.gate is None else _hold(reader, now, row, row.gate)

    def ahead(self, job_id: int) -> int | None:
        check_ids("ahead", [job_id])
        with self._read() as (reader, _):
            row = _row(reader, job_id)
            if row is None or row.state != READY:
                return None
            return len(reader.execute(_READY_BEFORE, (row.queue, row.cls, row.rank, row.id, AHEAD_MOST)).fetchall())


def _row(reader: sqlite3.Connection, job_id: int) -> Row | None:
    found = reader.execute(_ONE, (job_id,)).fetchone() if 0 < job_id <= ID_MOST else None
    return None if found is None else Row.of(found)


def _hold(reader: sqlite3.Connection, now: Instant, row: Row, name: str) -> Hold | None:
    place = Place(*reader.execute(_LOOK, (json.dumps([name]),)).fetchone())
    if not place.stored or row.state != WAITING:
        return None
    if place.standing:
        before = len(reader.execute(_STANDING_BEFORE, (name, row.id, AHEAD_MOST)).fetchall())
        return Hold(name, place.room, place.held, place.parked, before, place.head)
    by_class = any(gate.share for gate in row.gates if gate.name == name)
    if by_class:
        mine = (name, row.queue, row.cls, row.rank, row.id, AHEAD_MOST)
        before = len(reader.execute(_CLASS_BEFORE, mine).fetchall())
    else:
        before = len(reader.execute(_PARKED_BEFORE, (name, row.rank, row.id, AHEAD_MOST)).fetchall())
    pace = reader.execute(_PACE, (row.queue, name)).fetchone() if place.step else None
    opens_at = None if pace is None or pace[0] is None else max(pace[0], now)
    return Hold(name, place.room, place.held, place.parked, before, opens_at=opens_at, by_class=by_class)


def _release(turn: Turn, name: str, count: int) -> int:
    tend(turn)
    rows = [Row.of(columns) for columns in turn.connection.execute(_PARKED_AT, (name, turn.now, count)).fetchall()]
    for row in rows:
        gates = tuple(gate for gate in row.gates if gate.name != name)
        turn.gates.let_go(row)
        turn.connection.execute(_PASS, (row.id, text_of(gates) if gates else None))
        readmit(turn, row._replace(gates=gates, gate=None))
    if rows:
        open_gates(turn)
        if turn.scribe is not None:
            turn.scribe.tell("release", name=name)
    return len(rows)
