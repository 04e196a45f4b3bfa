"""The gates in front of ready, as tables: who holds a slot, who is parked where, which gates may have room again.

A job holds a slot of each of its gates while it is ready or running. It takes all of them or none, so two gates cannot
deadlock; a job that finds one closed parks at that one. An ordered gate has one slot and gives it only to the smallest
unfinished id of its line. One `Gates` lives for one turn: it reads the gates that the turn touches and writes them
back. The caller writes what becomes of the jobs.
"""

import sqlite3
from typing import Final

from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.limits import BATCH_MOST
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import DEAD, Row

_GATE: Final = statement("gate")
_GATE_LIMIT: Final = statement("gate_limit")
_PUT_GATE: Final = statement("put_gate")
_DROP_GATE: Final = statement("drop_gate")
_OPENED: Final = statement("opened")
_ENTER_LINE: Final = statement("enter_line")
_LEAVE_LINE: Final = statement("leave_line")
_HEAD_OF_LINE: Final = statement("head_of_line")
_FIRST_PARKED: Final = statement("first_parked")
_ONE: Final = statement("one")


class _Place:
    """One gate's slots. `limit` is the operator's number, which wins over the stamped `slots`."""

    __slots__ = ("held", "limit", "name", "opened", "parked", "slots", "standing", "stored")

    def __init__(self, name: str, slots: int, limit: int | None) -> None:
        self.name = name
        self.slots = slots
        self.limit = limit
        self.held = self.parked = self.standing = self.opened = 0
        self.stored = False

    @property
    def has_room(self) -> bool:
        return self.held < (self.slots if self.limit is None else self.limit)

    @property
    def unused(self) -> bool:
        return not (self.held or self.parked or self.standing)


class Gates:
    """All gates that one turn touches."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._places: dict[str, _Place] = {}
        self._opened: dict[str, None] | None = None

    def enter(self, job_id: int, gates: tuple[Gate, ...]) -> None:
        """A new job joins the lines of its ordered gates; its stamps are the newest, so their numbers hold."""
        for gate in gates:
            place = self._place(gate)
            if gate.ordered:
                self._join(place, job_id)
            if place.slots != gate.limit:
                place.slots = gate.limit
                self._may_open(place)

    def rejoin(self, row: Row) -> None:
        """A dead job came back to life; where it blocked its line, it never left it."""
        for gate in row.gates:
            if gate.ordered:
                self._join(self._place(gate), row.id)

    def admit(self, job_id: int, gates: tuple[Gate, ...]) -> str | None:
        """Take a slot of every gate; or park at the first one that is closed, and return its name."""
        for gate in gates:
            place = self._place(gate)
            if not place.has_room or (gate.ordered and self._head(gate.name) != job_id):
                place.parked += 1
                return gate.name
        for gate in gates:
            self._place(gate).held += 1
        return None

    def release(self, row: Row) -> None:
        """Give the job's slots back."""
        for gate in row.gates:
            place = self._place(gate)
            place.held -= 1
            self._may_open(place)

    def end(self, row: Row, state: int) -> None:
        """The job ended: it is parked nowhere, and in no line unless it died and blocks it."""
        self._unpark(row)
        for gate in row.gates:
            if not (gate.blocks and state == DEAD):
                self._leave(gate, row.id)

    def forget(self, row: Row) -> None:
        """A dead job that blocked its lines is gone for good."""
        for gate in row.gates:
            if gate.blocks:
                self._leave(gate, row.id)

    def limited(self, name: str, limit: int | None) -> None:
        """An operator gave the gate another number."""
        place = self._find(name)
        if place is not None:
            place.limit = limit
            self._may_open(place)

    def next_candidate(self, now: Instant) -> Row | None:
        """A parked job whose gate has room now; it is parked no longer, and the caller tries to admit it."""
        opened = self._load_opened()
        while opened:
            name = next(iter(opened))
            place = self._find(name)
            row = None if place is None else self._candidate(place, now)
            if row is not None:
                return row
            del opened[name]
            if place is not None:
                place.opened = 0
        return None

    def write(self) -> None:
        for place in self._places.values():
            if place.unused:
                if place.stored:
                    self._connection.execute(_DROP_GATE, (place.name,))
            else:
                row = (place.name, place.slots, place.held, place.parked, place.standing, place.opened)
                self._connection.execute(_PUT_GATE, row)

    def _candidate(self, place: _Place, now: Instant) -> Row | None:
        if not place.has_room or not place.parked:
            return None
        if place.standing:
            found = self._connection.execute(_ONE, (self._head(place.name),)).fetchone()
        else:
            found = self._connection.execute(_FIRST_PARKED, (place.name,)).fetchone()
        row = None if found is None else Row.of(found)
        if row is None or row.gate != place.name or row.due_at > now:
            return None
        self._unpark(row)
        return row

    def _unpark(self, row: Row) -> None:
        if row.gate is not None:
            place = self._find(row.gate)
            if place is not None:
                place.parked -= 1

    def _leave(self, gate: Gate, job_id: int) -> None:
        place = self._place(gate)
        if gate.ordered:
            place.standing -= self._connection.execute(_LEAVE_LINE, (gate.name, job_id)).rowcount
        self._may_open(place)

    def _join(self, place: _Place, job_id: int) -> None:
        place.standing += self._connection.execute(_ENTER_LINE, (place.name, job_id)).rowcount

    def _head(self, name: str) -> int | None:
        head: int | None = self._connection.execute(_HEAD_OF_LINE, (name,)).fetchone()[0]
        return head

    def _may_open(self, place: _Place) -> None:
        if place.parked and place.has_room:
            place.opened = 1
            self._load_opened()[place.name] = None

    def _load_opened(self) -> dict[str, None]:
        if self._opened is None:
            names = self._connection.execute(_OPENED, (BATCH_MOST,)).fetchall()
            self._opened = dict.fromkeys(name for (name,) in names)
        return self._opened

    def _find(self, name: str) -> _Place | None:
        """The gate, if anybody is at it."""
        place = self._places.get(name)
        if place is None:
            found = self._connection.execute(_GATE, (name,)).fetchone()
            if found is None:
                return None
            slots, held, parked, standing, opened, limit = found
            place = self._places[name] = _Place(name, slots, limit)
            place.held, place.parked, place.standing, place.opened = held, parked, standing, opened
            place.stored = True
        return place

    def _place(self, gate: Gate) -> _Place:
        place = self._find(gate.name)
        if place is None:
            limit = self._connection.execute(_GATE_LIMIT, (gate.name,)).fetchone()
            place = self._places[gate.name] = _Place(gate.name, gate.limit, limit and limit[0])
        return place
