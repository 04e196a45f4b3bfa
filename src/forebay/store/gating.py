"""The gates in front of ready, for stores that keep them in tables: who holds a slot, who is parked where, who is next.

A job holds a slot of each of its gates while it is ready or running. It takes all of them or none, so two gates cannot
deadlock; a job that finds one closed parks at that one. An ordered gate has one slot and gives it only to the smallest
unfinished id of its line. One `Gates` lives for one transaction: it reads the gates that the transaction touches, each
once, and `write` puts them back. The caller writes what becomes of the jobs, and sees to it that nobody else changes
these gates meanwhile. How the tables look is the store's own business: `GateTables` is all that is asked of it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import BATCH_MOST

STATES: Final = tuple(State)
"""By their number in the tables; the numbers are part of the schemas."""

WAITING, READY, RUNNING, DONE, DEAD, CANCELLED = range(len(STATES))

_decode_gates: Final = msgspec.json.Decoder(tuple[Gate, ...]).decode


class Row(NamedTuple):
    """What a move from state to state needs to know of a job. `gate`: where a waiting job is parked."""

    id: int
    queue: str
    cls: str
    state: int
    rank: int
    due_at: Instant
    gates: tuple[Gate, ...]
    gate: str | None

    @classmethod
    def of(cls, columns: Sequence[Any]) -> "Row":
        """From the first eight columns of a statement; the gates are JSON, or NULL."""
        job_id, queue, group, state, rank, due_at, gates, gate = columns[:8]
        return cls(job_id, queue, group, state, rank, due_at, _decode_gates(gates) if gates else (), gate)


class Place:
    """One gate. `limit` is the operator's number of slots, which wins over the stamped `slots`.

    `held` slots are taken, so many jobs are `parked` and `standing` in its line; `opened`: a parked one may have room.
    """

    __slots__ = ("held", "limit", "name", "opened", "parked", "slots", "standing", "stored")

    def __init__(
        self,
        name: str,
        slots: int,
        held: int = 0,
        parked: int = 0,
        standing: int = 0,
        opened: bool = False,
        limit: int | None = None,
    ) -> None:
        self.name = name
        self.slots = slots
        self.held = held
        self.parked = parked
        self.standing = standing
        self.opened = opened
        self.limit = limit
        self.stored = False

    @property
    def has_room(self) -> bool:
        """No number of slots lets two in where a line says who is next."""
        slots = self.slots if self.limit is None else self.limit
        return self.held < (min(slots, 1) if self.standing else slots)

    @property
    def unused(self) -> bool:
        return not (self.held or self.parked or self.standing)


class GateTables(Protocol):
    """What a store keeps of its gates."""

    def gate(self, name: str) -> Place | None:
        """The gate with the operator's number, if anybody is at it."""

    def limit(self, name: str) -> int | None:
        """The operator's number of a gate that nobody is at."""

    def put(self, places: Sequence[Place]) -> None:
        """These gates look like this from now on; they may be new. The operators' numbers are not theirs to write."""

    def drop(self, names: Sequence[str]) -> None:
        """Nobody holds them, waits at them or stands in line."""

    def opened(self, most: int) -> Iterable[str]:
        """Names of gates that may have room for someone parked."""

    def join(self, name: str, job_id: int) -> bool:
        """The job stands in the line of an ordered gate; False: it did so already."""

    def leave(self, name: str, job_id: int) -> bool:
        """The job leaves the line; False: it was not there."""

    def head(self, name: str) -> int | None:
        """The smallest id in the line."""

    def first_parked(self, name: str) -> Row | None:
        """Of the jobs that are parked at the gate, the one with the smallest (rank, id)."""

    def one(self, job_id: int) -> Row | None:
        """The job."""


class Gates:
    """All gates that one transaction touches."""

    def __init__(self, tables: GateTables) -> None:
        self._tables = tables
        self._places: dict[str, Place] = {}
        self._opened: dict[str, None] | None = None

    def enter(self, job_id: int, gates: tuple[Gate, ...]) -> None:
        """A new job joins the lines of its ordered gates; its stamps are the newest, so their numbers hold."""
        for gate in gates:
            place = self._place(gate)
            if gate.ordered:
                place.standing += self._tables.join(gate.name, job_id)
            if place.slots != gate.limit:
                place.slots = gate.limit
                self._may_open(place)

    def rejoin(self, row: Row) -> None:
        """A dead job came back to life; where it blocked its line, it never left it."""
        for gate in row.gates:
            if gate.ordered:
                self._place(gate).standing += self._tables.join(gate.name, row.id)

    def admit(self, job_id: int, gates: tuple[Gate, ...]) -> str | None:
        """Take a slot of every gate; or park at the first one that is closed, and return its name."""
        for gate in gates:
            place = self._place(gate)
            if not place.has_room or (gate.ordered and self._tables.head(gate.name) != job_id):
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
                place.opened = False
        return None

    def write(self) -> None:
        """Put back what was touched; a gate that nobody is at any more is forgotten."""
        used = [place for place in self._places.values() if not place.unused]
        unused = [place.name for place in self._places.values() if place.unused and place.stored]
        if used:
            self._tables.put(used)
        if unused:
            self._tables.drop(unused)

    def _candidate(self, place: Place, now: Instant) -> Row | None:
        if not place.has_room or not place.parked:
            return None
        head = self._tables.head(place.name) if place.standing else None
        row = self._tables.first_parked(place.name) if head is None else self._tables.one(head)
        if row is None or row.gate != place.name or row.due_at > now:
            return None
        self._unpark(row)
        return row

    def _unpark(self, row: Row) -> None:
        place = None if row.gate is None else self._find(row.gate)
        if place is not None:
            place.parked -= 1

    def _leave(self, gate: Gate, job_id: int) -> None:
        place = self._place(gate)
        if gate.ordered:
            place.standing -= self._tables.leave(gate.name, job_id)
        self._may_open(place)

    def _may_open(self, place: Place) -> None:
        if place.parked and place.has_room:
            place.opened = True
            if self._opened is not None:
                self._opened[place.name] = None

    def _load_opened(self) -> dict[str, None]:
        if self._opened is None:
            opened = dict.fromkeys(self._tables.opened(BATCH_MOST))
            self._opened = opened | {name: None for name, place in self._places.items() if place.opened}
        return self._opened

    def _find(self, name: str) -> Place | None:
        """The gate, if anybody is at it."""
        place = self._places.get(name)
        if place is None:
            place = self._tables.gate(name)
            if place is not None:
                place.stored = True
                self._places[name] = place
        return place

    def _place(self, gate: Gate) -> Place:
        place = self._find(gate.name)
        if place is None:
            place = self._places[gate.name] = Place(gate.name, gate.limit, limit=self._tables.limit(gate.name))
        return place
