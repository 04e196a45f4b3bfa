"""The gates in front of ready: who holds a slot, who is parked where, which gates may have room again.

Derived from the rows and rebuilt with them. A row holds as many slots of each of its gates as it costs, while it is
ready or running. It takes all of them or none, so two gates cannot deadlock; a row that finds one closed parks at that
one, and so does one that would pass somebody who is parked there. The first in rank says to which queue a slot goes;
where the stamps say so, classes of that queue take turns for it. An ordered gate has one slot and gives it only to the
smallest unfinished id of its line. Of a rate nothing is held: it has a tide, which is a fact, and lets in only who
starts; who would stand behind one like it at an open rate stays where it is until that one has started. A gate that
nobody holds, waits at or was configured for is forgotten: a million subjects leave nothing behind.
"""

from collections.abc import Mapping
from heapq import nsmallest

from forebay.core.gate import Gate, has_room, opens_at, tide_after
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import AHEAD_MOST, INSTANT_MOST
from forebay.store.memory.heap import LazyHeap
from forebay.store.memory.holdups import HoldUps
from forebay.store.memory.paces import Paces
from forebay.store.memory.row import Row
from forebay.store.memory.turns import Turns
from forebay.store.protocol import GateUse, Hold


class _Place:
    """One gate's slots. `held` counts them; `parked` are due rows that found it closed; `line` is the order.

    `turns`: by queue, those whose classes take turns.
    """

    __slots__ = ("held", "limit", "line", "parked", "step", "turns")

    def __init__(self, gate: Gate) -> None:
        self.limit = gate.limit
        self.step = gate.step
        self.held = 0
        self.parked = LazyHeap()
        self.line = LazyHeap() if gate.ordered else None
        self.turns: dict[str, Turns] = {}

    @property
    def unused(self) -> bool:
        return self.held == 0 and not len(self.parked) and (self.line is None or not len(self.line))


class Gates:
    """All gates of a store; `opened` may have room for someone parked.

    `limits` are the operators' own numbers, which win over the stamped ones. `tides` are those of the rates; `moved`
    has what is new of them, until it is written down and becomes a fact.
    """

    def __init__(self, limits: Mapping[str, int], tides: Mapping[str, Instant]) -> None:
        self._limits = limits
        self._tides = tides
        self.moved: dict[str, Instant] = {}
        self.paces = Paces(self._opens_at, self._in_turn)
        self._places: dict[str, _Place] = {}
        self._parked_at: dict[int, str] = {}
        self._holdups = HoldUps()
        self.opened: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, row: Row) -> None:
        """A new row joins the lines of its ordered gates; its stamps are the newest, so their limits hold."""
        for gate in row.entry.gates:
            place = self._place(gate)
            if place.line is not None:
                place.line.push(row.entry.id, row)
            if place.limit != gate.limit or place.step != gate.step:
                place.limit, place.step = gate.limit, gate.step
                self._changed(gate.name, place)

    def rejoin(self, row: Row) -> None:
        """A dead row came back to life; where it blocked its line, it never left it."""
        for gate in row.entry.gates:
            place = self._place(gate)
            if place.line is not None and not gate.blocks:
                place.line.push(row.entry.id, row)
            self._holdups.rise(gate.name, row)

    def stand(self, row: Row) -> None:
        """A dead row of a recovered store stands in the lines that it blocks."""
        for gate in row.entry.gates:
            if gate.blocks:
                line = self._place(gate).line
                assert line is not None
                line.push(row.entry.id, row)
                self._holdups.fall(gate.name, row)

    def hold(self, row: Row) -> None:
        for gate in row.entry.gates:
            if not gate.step:
                self._place(gate).held += gate.cost

    def admit(self, row: Row, now: Instant, *, starts: bool = False, turn: str | None = None) -> bool:
        """Take the slots of every gate, or park at the first one that is closed. `starts`: a claim hands it out.

        `turn`: the gate that has chosen it of all that were parked there.
        """
        for gate in row.entry.gates:
            place = self._place(gate)
            if not self._lets_in(gate, place, row, now, starts, gate.name == turn):
                if turn is not None and gate.step and not starts and self._behind(gate, place, row, turn, now):
                    self._park(_stamp(row, turn), self._places[turn], row)
                    self.opened.pop(turn, None)
                else:
                    self._park(gate, place, row)
                if starts:
                    self._look_again(row)
                return False
        self.hold(row)
        for gate in row.entry.gates:
            turns = self._places[gate.name].turns.get(row.entry.queue) if gate.share else None
            if turns is not None:
                turns.took(row, gate.share)
            if gate.step:
                self.moved[gate.name] = tide_after(self._tide(gate.name), self._newest(gate), now)
                self._rate_moved(gate.name)
        if starts:
            self._look_again(row)
        return True

    def next_start(self, queue: str, now: Instant, cls: str | None) -> tuple[Row, str] | None:
        """Who of the queue is next at a rate which lets it in, and that rate; the caller tries to admit it."""
        row = self.paces.next_start(queue, now, cls)
        return None if row is None else (row, self._unpark(row))

    def release(self, row: Row) -> None:
        """Give the row's slots back."""
        for gate in row.entry.gates:
            if not gate.step:
                place = self._places[gate.name]
                place.held -= gate.cost
                self._may_open(gate.name, place)

    def end(self, row: Row) -> None:
        """The row ended as its state says: it is parked nowhere, and in no line unless it died and blocks it."""
        self._unpark(row)
        for gate in row.entry.gates:
            if gate.blocks and row.state is State.DEAD:
                self._holdups.fall(gate.name, row)
            else:
                self._leave(gate, row)

    def forget(self, row: Row) -> None:
        """A dead row that blocked its lines is gone for good."""
        for gate in row.entry.gates:
            if gate.blocks:
                self._holdups.rise(gate.name, row)
                self._leave(gate, row)

    def reconsider(self, name: str) -> None:
        """The gate's number of slots changed."""
        place = self._places.get(name)
        if place is not None:
            self._changed(name, place)

    def next_candidate(self, now: Instant) -> tuple[Row, str] | None:
        """A parked row whose gate has room now, and that gate; the caller tries to admit it."""
        while self.opened:
            name = next(iter(self.opened))
            place = self._places.get(name)
            row = None if place is None else self._candidate(name, place, now)
            if row is not None:
                return row, name
            del self.opened[name]
        return None

    def reranked(self, before: Row, row: Row) -> None:
        """A row that may be parked has another rank now."""
        name = self._parked_at.get(row.entry.id)
        if name is not None:
            place = self._places[name]
            self._unpark(before)
            self._park(_stamp(row, name), place, row)
            self._changed(name, place)

    def used(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        """Up to `limit` gates whose names begin so and come after this one."""
        names = nsmallest(limit, (name for name in self._places if name > after and name.startswith(prefix)))
        return [self._use(name, self._places[name]) for name in names]

    def let_go(self, name: str, count: int) -> list[Row]:
        """The first of those that are parked at a gate without an order; they are parked no longer."""
        place = self._places.get(name)
        rows: list[Row] = []
        while place is not None and len(rows) < count and (row := place.parked.peek()) is not None:
            self._unpark(row)
            rows.append(row)
        return rows

    def left(self, name: str) -> None:
        """Some have left the gate, or the rates behind it."""
        place = self._places.get(name)
        if place is not None:
            self._may_open(name, place)

    def holding(self, row: Row, now: Instant) -> Hold | None:
        """The gate at which the row is parked, and how that stands."""
        name = self._parked_at.get(row.entry.id)
        if name is None:
            return None
        place = self._places[name]
        head, opens, by_class = None, None, _stamp(row, name).share > 0
        if place.line is not None:
            first = self._head(name)
            head = None if first is None else first.entry.id
            before = place.line.before(row.entry.id, row, AHEAD_MOST, lambda each: self.where(each) == name)
        elif by_class:
            before = place.turns[row.entry.queue].before(row, AHEAD_MOST)
        else:
            before = place.parked.before(row.rank, row, AHEAD_MOST)
        if place.step:
            first = self.paces.first(name, row.entry.queue)
            at = INSTANT_MOST if first is None else self._opens_at(name, first)
            opens = max(at, now) if at < INSTANT_MOST else None
        return Hold(name, self._slots(name, place), place.held, len(place.parked), before, head, opens, by_class)

    def where(self, row: Row) -> str | None:
        """The gate at which the row is parked."""
        return self._parked_at.get(row.entry.id)

    def oldest_parked(self, queue: str, now: Instant) -> int:
        """How long the one of the queue that has been due longest is parked."""
        return self._holdups.oldest(queue, now)

    def blocked(self, queue: str) -> int:
        """How many lines of the queue have a dead head."""
        return self._holdups.blocked(queue, self._head)

    def _head(self, name: str) -> Row | None:
        place = self._places.get(name)
        return None if place is None or place.line is None else place.line.peek()

    def _candidate(self, name: str, place: _Place, now: Instant) -> Row | None:
        row = place.parked.peek() if place.line is None else place.line.peek()
        if row is not None and place.turns:
            row = self._in_turn(name, row)
        if row is None or self._parked_at.get(row.entry.id) != name or row.due_at > now:
            return None
        if not self._has_room(name, place, _stamp(row, name).cost):
            return None
        self._unpark(row)
        return row

    def _behind(self, gate: Gate, place: _Place, row: Row, turn: str, now: Instant) -> bool:
        """Whether it would stand behind somebody at a rate that is open: then it need not go there yet.

        That one has the same gate before it: it looks again when that one is gone.
        """
        if self._opens_at(gate.name, row) > now:
            return False
        if gate.share:
            turns = place.turns.get(row.entry.queue)
            first = None if turns is None else turns.first(row.entry.cls)
        else:
            first = self.paces.earliest(gate.name, row.entry.queue)
        if first is None or not _before(first, row):
            return False
        return any(each.name == turn and not each.ordered for each in first.entry.gates)

    def _look_again(self, row: Row) -> None:
        """The row has left its rate, or that is another one now: others may go on to there."""
        for gate in row.entry.gates:
            if not gate.step:
                self.left(gate.name)

    def _in_turn(self, name: str, first: Row) -> Row:
        """Who goes for the first in rank of those that are parked there, where classes take turns."""
        turns = self._places[name].turns.get(first.entry.queue)
        if not turns or not _stamp(first, name).share:
            return first
        return turns.first(turns.head()) or first

    def _lets_in(self, gate: Gate, place: _Place, row: Row, now: Instant, starts: bool, its_turn: bool) -> bool:
        if place.line is not None:
            return self._has_room(gate.name, place) and place.line.peek() is row
        if gate.step:
            open_now = starts and self._opens_at(gate.name, row) <= now
        else:
            open_now = self._has_room(gate.name, place, gate.cost)
        return open_now and (its_turn or not self._passes(gate, place, row, starts))

    def _passes(self, gate: Gate, place: _Place, row: Row, starts: bool) -> bool:
        """Whether it would pass somebody who waits for room, or whose turn it is; who starts had its turn before."""
        if not len(place.parked):
            return False
        queue = row.entry.queue
        first = self.paces.earliest(gate.name, queue) if gate.step else place.parked.peek()
        if not gate.share or (first is not None and first.entry.queue != queue and _before(first, row)):
            return _before(first, row)
        turns = place.turns.get(queue)
        if turns is None or (starts and not gate.step):
            return False
        return turns.head() != row.entry.cls or _before(turns.first(row.entry.cls), row)

    def _has_room(self, name: str, place: _Place, cost: int = 1) -> bool:
        """No number of slots lets two in where a line says who is next."""
        return has_room(place.held, cost, self._slots(name, place))

    def _slots(self, name: str, place: _Place) -> int:
        slots = self._limits.get(name, place.limit)
        return slots if place.line is None else min(slots, 1)

    def _use(self, name: str, place: _Place) -> GateUse:
        return GateUse(name, self._slots(name, place), place.held, len(place.parked), self._limits.get(name))

    def _opens_at(self, name: str, row: Row) -> Instant:
        """When the rate lets the row in."""
        return opens_at(self._tide(name), self._newest(_stamp(row, name)), self._limits.get(name))

    def _newest(self, gate: Gate) -> Gate:
        """The gate with the numbers of the newest stamp; the cost is the row's own."""
        place = self._places[gate.name]
        return Gate(gate.name, place.limit, cost=gate.cost, step=place.step)

    def _tide(self, name: str) -> Instant:
        tide = self.moved.get(name)
        return self._tides.get(name, 0) if tide is None else tide

    def _park(self, gate: Gate, place: _Place, row: Row) -> None:
        self._parked_at[row.entry.id] = gate.name
        place.parked.push(row.rank, row)
        self._holdups.park(row)
        if gate.share:
            place.turns.setdefault(row.entry.queue, Turns()).park(row)
        if gate.step:
            self.paces.park(gate.name, row)

    def _unpark(self, row: Row) -> str:
        """Returns where it was parked."""
        name = self._parked_at.pop(row.entry.id, "")
        if name:
            place = self._places[name]
            place.parked.forget(row.rank, row)
            self._holdups.leave(row)
            if _stamp(row, name).share:
                place.turns[row.queue].leave(row)
                if not place.turns[row.queue]:
                    del place.turns[row.queue]
            if place.step:
                self.paces.leave(name, row)
        return name

    def _leave(self, gate: Gate, row: Row) -> None:
        place = self._places.get(gate.name)
        if place is not None:
            if place.line is not None:
                place.line.forget(row.entry.id, row)
            self._may_open(gate.name, place)

    def _changed(self, name: str, place: _Place) -> None:
        """Its numbers are others now."""
        if place.step:
            self._rate_moved(name)
        else:
            self._may_open(name, place)

    def _rate_moved(self, name: str) -> None:
        """If it is closed now, others may go on to there."""
        for row in self.paces.moved(name):
            self._look_again(row)

    def _may_open(self, name: str, place: _Place) -> None:
        if place.unused:
            del self._places[name]
            self.opened.pop(name, None)
        elif len(place.parked) and not place.step and self._has_room(name, place):
            self.opened[name] = None

    def _place(self, gate: Gate) -> _Place:
        place = self._places.get(gate.name)
        if place is None:
            place = self._places[gate.name] = _Place(gate)
        return place


def _stamp(row: Row, name: str) -> Gate:
    return next(gate for gate in row.entry.gates if gate.name == name)


def _before(parked: Row | None, row: Row) -> bool:
    return parked is not None and (parked.rank, parked.entry.id) < (row.rank, row.entry.id)
