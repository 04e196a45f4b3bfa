"""The gates in front of ready: who holds a slot, who is parked where, which gates may have room again.

Derived from the rows and rebuilt with them. A row holds a slot of each of its gates while it is ready or running.
It takes all of them or none, so two gates cannot deadlock; a row that finds one closed parks at that one.
An ordered gate has one slot and gives it only to the smallest unfinished id of its line. A gate that nobody holds,
waits at or was configured for is forgotten: a million subjects leave nothing behind.
"""

from collections.abc import Mapping
from heapq import nsmallest

from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.row import Row
from forebay.store.protocol import GateUse


class _Place:
    """One gate's slots. `held` counts them; `parked` are due rows that found it closed; `line` is the order."""

    __slots__ = ("held", "limit", "line", "parked")

    def __init__(self, gate: Gate) -> None:
        self.limit = gate.limit
        self.held = 0
        self.parked = LazyHeap()
        self.line = LazyHeap() if gate.ordered else None

    @property
    def unused(self) -> bool:
        return self.held == 0 and not len(self.parked) and (self.line is None or not len(self.line))


class Gates:
    """All gates of a store; `opened` may have room for someone parked.

    `limits` are the operators' own numbers, which win over the stamped ones.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._places: dict[str, _Place] = {}
        self._parked_at: dict[int, str] = {}
        self.opened: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, row: Row) -> None:
        """A new row joins the lines of its ordered gates; its stamps are the newest, so their limits hold."""
        for gate in row.entry.gates:
            place = self._place(gate)
            if place.line is not None:
                place.line.push(row.entry.id, row)
            if place.limit != gate.limit:
                place.limit = gate.limit
                self._may_open(gate.name, place)

    def rejoin(self, row: Row) -> None:
        """A dead row came back to life; where it blocked its line, it never left it."""
        for gate in row.entry.gates:
            place = self._place(gate)
            if place.line is not None and not gate.blocks:
                place.line.push(row.entry.id, row)

    def stand(self, row: Row) -> None:
        """A dead row of a recovered store stands in the lines that it blocks."""
        for gate in row.entry.gates:
            if gate.blocks:
                line = self._place(gate).line
                assert line is not None
                line.push(row.entry.id, row)

    def hold(self, row: Row) -> None:
        for gate in row.entry.gates:
            self._place(gate).held += 1

    def admit(self, row: Row) -> bool:
        """Take a slot of every gate, or park at the first one that is closed."""
        for gate in row.entry.gates:
            place = self._place(gate)
            if not self._has_room(gate.name, place) or (place.line is not None and place.line.peek() is not row):
                self._parked_at[row.entry.id] = gate.name
                place.parked.push(row.rank, row)
                return False
        self.hold(row)
        return True

    def release(self, row: Row) -> None:
        """Give the row's slots back."""
        for gate in row.entry.gates:
            place = self._places[gate.name]
            place.held -= 1
            self._may_open(gate.name, place)

    def end(self, row: Row) -> None:
        """The row ended as its state says: it is parked nowhere, and in no line unless it died and blocks it."""
        self._unpark(row)
        for gate in row.entry.gates:
            if not (gate.blocks and row.state is State.DEAD):
                self._leave(gate, row)

    def forget(self, row: Row) -> None:
        """A dead row that blocked its lines is gone for good."""
        for gate in row.entry.gates:
            if gate.blocks:
                self._leave(gate, row)

    def reconsider(self, name: str) -> None:
        """The gate's number of slots changed."""
        place = self._places.get(name)
        if place is not None:
            self._may_open(name, place)

    def next_candidate(self, now: Instant) -> Row | None:
        """A parked row whose gate has room now; the caller tries to admit it."""
        while self.opened:
            name = next(iter(self.opened))
            place = self._places.get(name)
            row = None if place is None else self._candidate(name, place, now)
            if row is not None:
                return row
            del self.opened[name]
        return None

    def used(self, after: str, limit: int) -> list[GateUse]:
        """Up to `limit` gates whose names come after this one."""
        names = nsmallest(limit, (name for name in self._places if name > after))
        return [self._use(name, self._places[name]) for name in names]

    def where(self, row: Row) -> str | None:
        """The gate at which the row is parked."""
        return self._parked_at.get(row.entry.id)

    def _candidate(self, name: str, place: _Place, now: Instant) -> Row | None:
        if not self._has_room(name, place):
            return None
        row = place.parked.peek() if place.line is None else place.line.peek()
        if row is None or self._parked_at.get(row.entry.id) != name or row.due_at > now:
            return None
        self._unpark(row)
        return row

    def _has_room(self, name: str, place: _Place) -> bool:
        """No number of slots lets two in where a line says who is next."""
        return place.held < self._slots(name, place)

    def _slots(self, name: str, place: _Place) -> int:
        slots = self._limits.get(name, place.limit)
        return slots if place.line is None else min(slots, 1)

    def _use(self, name: str, place: _Place) -> GateUse:
        return GateUse(name, self._slots(name, place), place.held, len(place.parked))

    def _unpark(self, row: Row) -> None:
        name = self._parked_at.pop(row.entry.id, None)
        if name is not None:
            self._places[name].parked.forget(row.rank, row)

    def _leave(self, gate: Gate, row: Row) -> None:
        place = self._places.get(gate.name)
        if place is not None:
            if place.line is not None:
                place.line.forget(row.entry.id, row)
            self._may_open(gate.name, place)

    def _may_open(self, name: str, place: _Place) -> None:
        if place.unused:
            del self._places[name]
            self.opened.pop(name, None)
        elif len(place.parked) and self._has_room(name, place):
            self.opened[name] = None

    def _place(self, gate: Gate) -> _Place:
        place = self._places.get(gate.name)
        if place is None:
            place = self._places[gate.name] = _Place(gate)
        return place
