"""The gates in front of ready, for stores that keep them in tables: who holds a slot, who is parked where, who is next.

A job holds as many slots of each of its gates as it costs, while it is ready or running. It takes all of them or none,
so two gates cannot deadlock; a job that finds one closed parks at that one, and so does one that would pass somebody
who is parked there. An ordered gate has one slot and gives it only to the smallest unfinished id of its line. Of a rate
nothing is held: it has a tide, and lets in only who starts; `pace` tells for each queue who is first there, and when.
One `Gates` lives for one transaction: it reads the gates that the transaction touches, each once, and `write` puts them
back. The caller writes what becomes of the jobs, and sees to it that nobody else changes these gates meanwhile. How the
tables look is the store's own business: `GateTables` is all that is asked of it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from forebay.core.gate import Gate, has_room, opens_at, tide_after
from forebay.core.instant import Instant, Span
from forebay.core.job import State
from forebay.core.limits import BATCH_MOST, INSTANT_MOST

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
    `fallen` of those in line are dead, and block it once they are its head.
    `step` and `tide` are those of a rate. `first`: who of those that parked in this transaction goes before the others;
    `queues`: where somebody came to the rate, or left it.
    """

    __slots__ = (
        "fallen",
        "first",
        "held",
        "limit",
        "moved",
        "name",
        "opened",
        "parked",
        "queues",
        "slots",
        "standing",
        "step",
        "stored",
        "tide",
    )

    def __init__(
        self,
        name: str,
        slots: int,
        held: int = 0,
        parked: int = 0,
        standing: int = 0,
        opened: bool = False,
        limit: int | None = None,
        step: Span = 0,
        tide: Instant = 0,
        fallen: int = 0,
    ) -> None:
        self.name = name
        self.slots = slots
        self.held = held
        self.parked = parked
        self.standing = standing
        self.opened = opened
        self.limit = limit
        self.step = step
        self.tide = tide
        self.fallen = fallen
        self.stored = False
        self.first: tuple[int, int] | None = None
        self.queues: dict[str, None] = {}
        self.moved = False

    def has_room(self, cost: int = 1) -> bool:
        """No number of slots lets two in where a line says who is next."""
        slots = self.slots if self.limit is None else self.limit
        return has_room(self.held, cost, min(slots, 1) if self.standing else slots)

    def opens_at(self, cost: int) -> Instant:
        """When the rate lets in a job of this cost."""
        return opens_at(self.tide, Gate(self.name, self.slots, cost=cost, step=self.step), self.limit)

    def start(self, cost: int, now: Instant) -> None:
        self.tide = tide_after(self.tide, Gate(self.name, self.slots, cost=cost, step=self.step), now)
        self.moved = True

    def unused(self, now: Instant) -> bool:
        return not (self.held or self.parked or self.standing) and self.tide <= now


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

    def first_of(self, name: str, queue: str) -> Row | None:
        """The same of one queue's jobs, which are parked at a rate."""

    def paced(self, name: str) -> list[str]:
        """The queues whose paces at this rate are known."""

    def put_pace(self, queue: str, first: Row, opens_at: Instant | None, now: Instant) -> None:
        """The job is the first of its queue at the rate where it is parked, which lets it in then; None: never."""

    def drop_pace(self, queue: str, name: str) -> None:
        """Nobody of the queue is parked at the rate."""

    def next_start(self, queue: str, cls: str | None) -> Row | None:
        """The first of those who are let in by now at the rates of the queue; with `cls`, of that class."""


class Gates:
    """All gates that one transaction touches."""

    def __init__(self, tables: GateTables, now: Instant) -> None:
        self._tables = tables
        self._now = now
        self._places: dict[str, Place] = {}
        self._opened: dict[str, None] | None = None

    def enter(self, job_id: int, gates: tuple[Gate, ...]) -> None:
        """A new job joins the lines of its ordered gates; its stamps are the newest, so their numbers hold."""
        for gate in gates:
            place = self._place(gate)
            if gate.ordered:
                place.standing += self._tables.join(gate.name, job_id)
            if place.slots != gate.limit or place.step != gate.step:
                place.slots, place.step = gate.limit, gate.step
                self._changed(place)

    def rejoin(self, row: Row) -> None:
        """A dead job came back to life; where it blocked its line, it never left it."""
        for gate in row.gates:
            if gate.ordered:
                joined = self._tables.join(gate.name, row.id)
                place = self._place(gate)
                place.standing += joined
                place.fallen -= not joined

    def admit(self, row: Row, *, starts: bool = False) -> str | None:
        """Take the slots of every gate; or park at the first one that is closed, and return its name.

        `starts`: a claim hands the job out, so rates may let it in.
        """
        for gate in row.gates:
            place = self._place(gate)
            if not self._lets_in(gate, place, row, starts):
                place.parked += 1
                place.queues[row.queue] = None
                mine = (row.rank, row.id)
                place.first = mine if place.first is None else min(place.first, mine)
                return gate.name
        for gate in row.gates:
            if gate.step:
                self._place(gate).start(gate.cost, self._now)
            else:
                self._place(gate).held += gate.cost
        return None

    def release(self, row: Row) -> None:
        """Give the job's slots back."""
        for gate in row.gates:
            if not gate.step:
                place = self._place(gate)
                place.held -= gate.cost
                self._may_open(place)

    def end(self, row: Row, state: int) -> None:
        """The job ended: it is parked nowhere, and in no line unless it died and blocks it."""
        self._unpark(row)
        for gate in row.gates:
            if gate.blocks and state == DEAD:
                self._place(gate).fallen += 1
            else:
                self._leave(gate, row.id)

    def forget(self, row: Row) -> None:
        """A dead job that blocked its lines is gone for good."""
        for gate in row.gates:
            if gate.blocks:
                self._place(gate).fallen -= self._leave(gate, row.id)

    def let_go(self, row: Row) -> None:
        """The job is not held any more by the gate where it is parked."""
        place = None if row.gate is None else self._find(row.gate)
        self._unpark(row)
        if place is not None:
            self._may_open(place)

    def limited(self, name: str, limit: int | None) -> None:
        """An operator gave the gate another number."""
        place = self._find(name)
        if place is not None:
            place.limit = limit
            self._changed(place)

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

    def next_start(self, queue: str, cls: str | None) -> Row | None:
        """A job whose rate lets it in now; it is parked no longer, and the caller tries to admit it as it starts."""
        self.write_paces()
        row = self._tables.next_start(queue, cls)
        if row is not None:
            self._unpark(row)
        return row

    def write_paces(self) -> set[str]:
        """Who is first at the rates that were touched; returns the queues where one of them may start."""
        starting = set()
        for place in list(self._places.values()):
            if place.step and (place.queues or place.moved):
                others = self._tables.paced(place.name) if place.moved else []
                for queue in {*place.queues, *others}:
                    if self._write_pace(place, queue):
                        starting.add(queue)
                place.queues, place.moved = {}, False
        return starting

    def write(self) -> set[str]:
        """Put back what was touched; a gate that nobody is at any more is forgotten. Returns as `write_paces` does."""
        starting = self.write_paces()
        used = [place for place in self._places.values() if not place.unused(self._now)]
        unused = [place.name for place in self._places.values() if place.stored and place.unused(self._now)]
        if used:
            self._tables.put(used)
        if unused:
            self._tables.drop(unused)
        return starting

    def _write_pace(self, place: Place, queue: str) -> bool:
        row = self._tables.first_of(place.name, queue)
        if row is None:
            self._tables.drop_pace(queue, place.name)
            return False
        opens = place.opens_at(_cost(row, place.name))
        self._tables.put_pace(queue, row, opens if opens < INSTANT_MOST else None, self._now)
        return opens <= self._now

    def _candidate(self, place: Place, now: Instant) -> Row | None:
        if not place.has_room() or not place.parked:
            return None
        head = self._tables.head(place.name) if place.standing else None
        row = self._tables.first_parked(place.name) if head is None else self._tables.one(head)
        if row is None or row.gate != place.name or row.due_at > now or not place.has_room(_cost(row, place.name)):
            return None
        self._unpark(row)
        return row

    def _lets_in(self, gate: Gate, place: Place, row: Row, starts: bool) -> bool:
        if gate.ordered:
            return place.has_room() and self._tables.head(gate.name) == row.id
        if gate.step and not (starts and place.opens_at(gate.cost) <= self._now):
            return False
        return (gate.step > 0 or place.has_room(gate.cost)) and not self._passes(row, gate, place)

    def _passes(self, row: Row, gate: Gate, place: Place) -> bool:
        """Whether the job would pass somebody who waits for room."""
        if not place.parked:
            return False
        mine = (row.rank, row.id)
        if not gate.step and place.first is not None and place.first < mine:
            return True
        first = self._tables.first_of(gate.name, row.queue) if gate.step else self._tables.first_parked(gate.name)
        return first is not None and (first.rank, first.id) < mine

    def _unpark(self, row: Row) -> None:
        place = None if row.gate is None else self._find(row.gate)
        if place is not None:
            place.parked -= 1
            place.queues[row.queue] = None
            place.first = None

    def _leave(self, gate: Gate, job_id: int) -> bool:
        """Whether it stood in the gate's line."""
        place = self._place(gate)
        stood = gate.ordered and self._tables.leave(gate.name, job_id)
        place.standing -= stood
        self._may_open(place)
        return stood

    def _changed(self, place: Place) -> None:
        """Its numbers are others now."""
        if place.step:
            place.moved = True
        else:
            self._may_open(place)

    def _may_open(self, place: Place) -> None:
        if place.parked and not place.step and place.has_room():
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
            limit = self._tables.limit(gate.name)
            place = self._places[gate.name] = Place(gate.name, gate.limit, limit=limit, step=gate.step)
        return place


def _cost(row: Row, name: str) -> int:
    return next((gate.cost for gate in row.gates if gate.name == name), 1)
