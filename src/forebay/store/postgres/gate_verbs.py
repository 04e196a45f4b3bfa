"""The verbs about gates: their numbers, passing a condition, and what holds a job."""

from typing import Any, Final

from forebay.core.gate import Gate, gate_of, is_open, lane_key, opens_at
from forebay.core.instant import Instant
from forebay.core.limits import AHEAD_MOST, ID_MOST, INSTANT_MOST
from forebay.store.checks import LAST
from forebay.store.postgres.base import Turn
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import BEHIND, READY
from forebay.store.postgres.settling import Settling
from forebay.store.postgres.specs import gate_key
from forebay.store.postgres.tend import expire
from forebay.store.protocol import GateUse, Hold

_LIMIT: Final = statement("gate_limit")
_SET_LIMIT: Final = statement("set_gate_limit")
_DROP_LIMIT: Final = statement("drop_gate_limit")
_GATES: Final = statement("gates")
_GATE_STATES: Final = statement("gate_states")
_LANES_UNTIL: Final = statement("lanes_until")
_HELD_UNTIL: Final = statement("held_until")
_CHANGE_LANE: Final = statement("change_lane")
_DUE_JOB: Final = statement("due_job")
_LANE_HEAD: Final = statement("lane_head")
_LINE_HEAD: Final = statement("line_head")
_LINE_BEFORE: Final = statement("line_before")
_AHEAD: Final = statement("ahead")
_WAKE: Final = "SELECT forebay.wake(%s, ARRAY[%s]), forebay.sharing(ARRAY[%s])"


class GateVerbs(Settling):
    """Numbers of gates, release, hold, ahead."""

    def set_gate(self, name: str, limit: int | None) -> None:
        self._write(lambda turn: _set_gate(turn, name, limit), keys=[gate_key(name)])

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        page = (after, prefix, prefix + LAST)
        return [GateUse(*row) for row in self._server.query(_GATES, (*page, self.now(), limit, *page, limit, limit))]

    def release(self, name: str, count: int) -> int:
        return self._write(lambda turn: _release(turn, name, count), keys=[gate_key(name)])

    def hold(self, job_id: int) -> Hold | None:
        self._empty_inbox()
        found = self._server.query(_DUE_JOB, (job_id,)) if 0 < job_id <= ID_MOST else []
        if not found:
            return None
        _, queue, state, lane, line, gates, _, due_at = found[0]
        now = self.now()
        if state == READY:
            return self._held_at_gate(job_id, queue, lane, gates or (), now)
        return self._held_in_line(job_id, line, now) if state == BEHIND and due_at <= now else None

    def ahead(self, job_id: int) -> int | None:
        self._empty_inbox()
        found = self._server.query(_AHEAD, (AHEAD_MOST, AHEAD_MOST, job_id, job_id)) if 0 < job_id <= ID_MOST else []
        return int(found[0][0]) if found else None

    def _held_at_gate(self, job_id: int, queue: str, lane: str, names: Any, now: Instant) -> Hold | None:
        """The first closed gate of the whole queue or of the lane, as the first job of the lane meets it."""
        self._specs.reload([queue])
        stamper = self._specs.of(queue).stamper
        stamped = [gate for name in names if (gate := gate_of(stamper.spec, name)) is not None]
        gates: list[Gate] = [*stamper.whole, *stamped]
        head = self._server.query(_LANE_HEAD, (queue, lane, now)) if gates else []
        if not head:
            return None
        states = {row[0]: row[1:] for row in self._server.query(_GATE_STATES, ([gate.name for gate in gates],))}
        for gate in gates:
            used, tat, given = states[gate.name]
            if not is_open(gate, used, tat, head[0][0], now, given):
                opens = opens_at(gate, tat, head[0][0], given) if gate.step else INSTANT_MOST
                slots = gate.limit if given is None else given
                before = self.ahead(job_id) or 0
                return Hold(gate.name, slots, used, before, None, None if opens >= INSTANT_MOST else opens)
        return None

    def _held_in_line(self, job_id: int, line: str, now: Instant) -> Hold | None:
        found = self._server.query(_LINE_HEAD, (line,))
        if not found or found[0][0] == job_id:
            return None
        head, runs = found[0]
        before = self._server.query(_LINE_BEFORE, (line, head, job_id, AHEAD_MOST))[0][0]
        return Hold(line, 1, int(runs), before, head)


def _set_gate(turn: Turn, name: str, limit: int | None) -> None:
    known = turn.fetch(_LIMIT, (name,))
    if [(limit,)] != (known or [(None,)]):
        turn.scribe.tell("set_gate", name=name)
    if limit is None:
        turn.execute(_DROP_LIMIT, (name,))
    else:
        turn.execute(_SET_LIMIT, (name, limit))
    for queues in turn.fetch(_WAKE, (turn.now, name, name))[0]:
        turn.news.update(queues)


def _release(turn: Turn, name: str, count: int) -> int:
    turn.hold([queue for (queue,) in turn.fetch(_LANES_UNTIL, (name,))])
    expire(turn)
    turn.write_lanes()
    rows = turn.fetch(_HELD_UNTIL, (turn.now, count, name, count))
    for job_id, queue, lane, cls, gates in rows:
        left = tuple(gate for gate in gates if gate != name)
        turn.execute(_CHANGE_LANE, (list(left) or None, lane_key(cls, left), job_id))
        turn.touch(queue, lane, None)
        turn.touch(queue, lane_key(cls, left), None)
        turn.news.add(queue)
    if rows:
        turn.scribe.tell("release", name=name)
    return len(rows)
