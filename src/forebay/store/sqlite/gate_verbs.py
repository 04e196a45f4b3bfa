"""The verbs about gates: operators' numbers, jobs that pass a condition, and what holds a job."""

import heapq
import json
import sqlite3
from itertools import islice
from typing import Final

from forebay.core.gate import is_open, lane_key, opens_at
from forebay.core.instant import Instant
from forebay.core.limits import AHEAD_MOST, ID_MOST, INSTANT_MOST, SLOTS_MOST
from forebay.store.checks import LAST
from forebay.store.protocol import GateUse, Hold
from forebay.store.sqlite.gates import Gates
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import Row, lane_name
from forebay.store.sqlite.settling import Settling
from forebay.store.sqlite.tally import Known, Tally
from forebay.store.sqlite.tend import tend
from forebay.store.sqlite.turn import LineHead, Turn
from forebay.store.states import READY, RUNNING, WAITING

_ONE: Final = statement("one")
_GATES: Final = statement("gates")
_LANES_UNTIL: Final = statement("lanes_until")
_UNEXPIRED: Final = statement("unexpired_of_lane")
_MOVE_TO_LANE: Final = statement("move_to_lane")
_HEAD_COST: Final = statement("head_cost")
_HEADS: Final = statement("heads")
_BETWEEN: Final = statement("between")
_READY_BEFORE: Final = statement("ready_before")


class GateVerbs(Settling):
    """Gates, release, hold, ahead."""

    def set_gate(self, name: str, limit: int | None) -> None:
        self._write(lambda turn: _set_gate(turn, name, limit))

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        with self._read() as (reader, now):
            tally = Tally(reader, self._known)
            found = reader.execute(_GATES, (after, prefix, prefix + LAST, limit, now)).fetchall()
            return [
                GateUse(name, _spec_slots(tally, queue, name) if given is None else given, used, given)
                for name, queue, used, given in found
            ]

    def release(self, name: str, count: int) -> int:
        return self._write(lambda turn: _release(turn, name, count))

    def hold(self, job_id: int) -> Hold | None:
        with self._read() as (reader, now):
            row = _row(reader, job_id)
            if row is not None and row.state == READY:
                return _gate_hold(reader, now, row, Tally(reader, self._known).queue(row.queue).known)
            if row is not None and row.state == WAITING and row.behind and row.due_at <= now:
                return _line_hold(reader, row)
            return None

    def ahead(self, job_id: int) -> int | None:
        with self._read() as (reader, _):
            row = _row(reader, job_id)
            return None if row is None or row.state != READY else _before(reader, row)


def _row(reader: sqlite3.Connection, job_id: int) -> Row | None:
    found = reader.execute(_ONE, (job_id,)).fetchone() if 0 < job_id <= ID_MOST else None
    return None if found is None else Row(*found)


def _before(reader: sqlite3.Connection, row: Row) -> int:
    return len(reader.execute(_READY_BEFORE, (row.queue, row.lane, row.rank, row.id, AHEAD_MOST)).fetchall())


def _gate_hold(reader: sqlite3.Connection, now: Instant, row: Row, known: Known) -> Hold | None:
    gates = (*known.stamper.whole, *known.gates(row.lane))
    states = Gates(reader, now)
    states.load(gate.name for gate in gates)
    found = reader.execute(_HEAD_COST, (row.queue, row.lane, now)).fetchone()
    cost = row.cost if found is None else found[0]
    for gate in gates:
        state = states.state(gate.name)
        if not is_open(gate, state.used, state.tat, cost, now, state.given):
            opens = opens_at(gate, state.tat, cost, state.given) if gate.step else INSTANT_MOST
            slots = gate.limit if state.given is None else state.given
            opens_then = opens if opens < INSTANT_MOST else None
            return Hold(gate.name, slots, state.used, _before(reader, row), opens_at=opens_then)
    return None


def _line_hold(reader: sqlite3.Connection, row: Row) -> Hold | None:
    head = LineHead(*reader.execute(_HEADS, (json.dumps([row.line]),)).fetchone())
    if head.id == row.id or row.line is None:
        return None
    before = len(reader.execute(_BETWEEN, (row.line, head.id, row.id, AHEAD_MOST)).fetchall())
    return Hold(row.line, 1, int(head.state == RUNNING), before, head.id)


def _spec_slots(tally: Tally, queue: str | None, name: str) -> int:
    """What the spec of the queue that used a gate last says of it."""
    if queue is None:
        return 0
    stamper = tally.queue(queue).known.stamper
    gate = next((gate for gate in stamper.whole if gate.name == name), None) or stamper.gate(name)
    return 0 if gate is None else gate.limit


def _set_gate(turn: Turn, name: str, limit: int | None) -> None:
    state = turn.gates.state(name)
    if turn.scribe is not None and state.given != limit:
        turn.scribe.tell("set_gate", name=name)
    state.given = limit
    tend(turn)
    turn.lanes.wake(name, SLOTS_MOST if limit is None else limit)


def _release(turn: Turn, name: str, count: int) -> int:
    tend(turn)
    turn.lanes.write()
    lanes = turn.connection.execute(_LANES_UNTIL, (name,)).fetchall()
    ready = [turn.connection.execute(_UNEXPIRED, (queue, lane, turn.now)) for queue, lane in lanes]
    passed = list(islice(heapq.merge(*ready), count))
    for rank, job_id, queue, lane in passed:
        cls, gates = lane_name(lane)
        free = lane_key(cls, tuple(gate for gate in gates if gate != name))
        turn.connection.execute(_MOVE_TO_LANE, (job_id, free))
        turn.tally.moved(queue, lane, READY, None)
        turn.tally.moved(queue, free, None, READY)
        turn.lanes.left(queue, lane)
        turn.lanes.arrived(queue, free, rank, job_id)
    if passed and turn.scribe is not None:
        turn.scribe.tell("release", name=name)
    return len(passed)
