"""The verbs about gates that are not about one queue: letting some pass a condition, and telling what holds a job."""

from typing import Final

from forebay.core.limits import AHEAD_MOST, BATCH_MOST, ID_MOST
from forebay.store.checks import check_ids, checked_condition
from forebay.store.places import Place, Row
from forebay.store.postgres.base import Turn
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import text_of
from forebay.store.postgres.settling import Settling
from forebay.store.postgres.tend import TEND_LIMIT, tend
from forebay.store.protocol import Hold

_PARKED: Final = statement("parked")
_LOOK: Final = statement("look")
_PARKED_AT: Final = statement("parked_at")
_PASS: Final = statement("pass")
_PACE: Final = statement("pace")
_PARKED_BEFORE: Final = statement("parked_before")
_CLASS_BEFORE: Final = statement("class_before")
_STANDING_BEFORE: Final = statement("standing_before")
_AHEAD: Final = statement("ahead")


class GateVerbs(Settling):
    """Release, hold, ahead."""

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        name = checked_condition(condition, count, value)
        return self._write(lambda turn: _release(turn, name, count), gated=True)

    def hold(self, job_id: int) -> Hold | None:
        check_ids("hold", [job_id])
        self._empty_inbox()
        found = self._server.query(_PARKED, (job_id,)) if 0 < job_id <= ID_MOST else []
        return self._hold(Row.of(found[0])) if found else None

    def ahead(self, job_id: int) -> int | None:
        check_ids("ahead", [job_id])
        self._empty_inbox()
        found = self._server.query(_AHEAD, (AHEAD_MOST, AHEAD_MOST, job_id, job_id)) if 0 < job_id <= ID_MOST else []
        return int(found[0][0]) if found else None

    def _hold(self, row: Row) -> Hold | None:
        name = row.gate or ""
        place = Place(*self._server.query(_LOOK, ([name],))[0])
        if not place.stored:
            return None
        if place.standing:
            before = self._server.query(_STANDING_BEFORE, (name, row.id, AHEAD_MOST))[0][0]
            return Hold(name, place.room, place.held, place.parked, before, place.head)
        by_class = any(gate.share for gate in row.gates if gate.name == name)
        if by_class:
            mine = (name, row.queue, row.cls, row.rank, row.id, AHEAD_MOST)
            before = self._server.query(_CLASS_BEFORE, mine)[0][0]
        else:
            before = self._server.query(_PARKED_BEFORE, (name, row.rank, row.id, AHEAD_MOST))[0][0]
        pace = self._server.query(_PACE, (row.queue, name)) if place.step else []
        opens_at = max(pace[0][0], self.now()) if pace and pace[0][0] is not None else None
        return Hold(name, place.room, place.held, place.parked, before, opens_at=opens_at, by_class=by_class)


def _release(turn: Turn, name: str, count: int) -> int:
    tend(turn, BATCH_MOST)
    rows = [Row.of(columns) for columns in turn.fetch(_PARKED_AT, (name, turn.now, count))]
    gates = [tuple(gate for gate in row.gates if gate.name != name) for row in rows]
    for row in rows:
        turn.gates.let_go(row)
    if rows:
        turn.execute(_PASS, ([row.id for row in rows], [text_of(each) if each else None for each in gates]))
        turn.scribe.tell("release", name=name)
        tend(turn, len(rows) + TEND_LIMIT)
    return len(rows)
