"""The gates in front of ready, for stores that keep them in tables: who holds a slot, who is parked where, who is next.

A job holds as many slots of each of its gates as it costs, while it is ready or running. It takes all of them or none,
so two gates cannot deadlock; a job that finds one closed parks at that one, and so does one that would pass somebody
who is parked there. The first in rank says to which queue a slot goes; where the stamps say so, classes of that queue
take turns for it (`store.rings`). An ordered gate has one slot and gives it only to the smallest unfinished id of its
line. Of a rate nothing is held: it has a tide, and lets in only who starts; `pace` tells for each queue who is next
there, and when. Who would stand behind one like it at an open rate stays where it is until that one has started.
One `Gates` lives for one transaction: it reads the gates that the transaction touches, each once, and `write` puts them
back. The caller writes what becomes of the jobs, and sees to it that nobody else changes these gates meanwhile. How the
tables look is the store's own business: `GateTables` is all that is asked of it.
"""

from collections.abc import Iterable, Sequence

from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.limits import BATCH_MOST, INSTANT_MOST
from forebay.store.places import GateTables, Place, Row
from forebay.store.rings import Rings
from forebay.store.states import DEAD


class Gates:
    """All gates that one transaction touches."""

    def __init__(self, tables: GateTables, now: Instant) -> None:
        self._tables = tables
        self._now = now
        self._places: dict[str, Place] = {}
        self._empty: dict[str, int | None] = {}
        self._joining: list[tuple[str, int]] = []
        self._opened: dict[str, None] | None = None
        self._rings = Rings(tables)

    def meet(self, gates: Iterable[Gate]) -> None:
        """Many jobs are about to come to these gates: all are looked at together."""
        names = dict.fromkeys(gate.name for gate in gates)
        self._look([name for name in names if name not in self._places and name not in self._empty])

    def enter(self, job_id: int, gates: tuple[Gate, ...]) -> None:
        """A new job joins the lines of its ordered gates; its stamps are the newest, so their numbers hold."""
        for gate in gates:
            place = self._place(gate)
            if gate.ordered:
                self._joining.append((gate.name, job_id))
                _joined(place, job_id)
            if place.slots != gate.limit or place.step != gate.step:
                place.slots, place.step = gate.limit, gate.step
                self._changed(place)

    def rejoin(self, row: Row) -> None:
        """A dead job came back to life; where it blocked its line, it never left it."""
        for gate in row.gates:
            if gate.ordered:
                place = self._place(gate)
                self._line_up()
                if self._tables.join(gate.name, row.id):
                    _joined(place, row.id)
                else:
                    place.fallen -= 1

    def admit(self, row: Row, *, starts: bool = False, its_turn: bool = False) -> str | None:
        """Take the slots of every gate; or park at the first one that is closed, and return its name.

        `starts`: a claim hands the job out, so rates may let it in. `its_turn`: the gate where it was parked chose it.
        """
        for gate in row.gates:
            place = self._place(gate)
            if not self._lets_in(gate, place, row, starts, its_turn and gate.name == row.gate):
                closed = gate
                if its_turn and not starts and gate.step and self._behind(row, gate, place):
                    closed = next(each for each in row.gates if each.name == row.gate)
                    self._shut(self._place(closed))
                self._park(row, closed)
                if starts:
                    self._look_again(row)
                return closed.name
        for gate in row.gates:
            place = self._place(gate)
            if gate.share and (place.parked or place.turning):
                self._rings.took(place, gate, row)
            if gate.step:
                place.start(gate.cost, self._now)
            else:
                place.held += gate.cost
        if starts:
            self._look_again(row)
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
            if place is None:
                del opened[name]
            else:
                self._shut(place)
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
        self._line_up()
        used = [place for place in self._places.values() if not place.unused(self._now)]
        unused = [place.name for place in self._places.values() if place.stored and place.unused(self._now)]
        if used:
            self._tables.put(used)
        if unused:
            self._tables.drop(unused)
        self._rings.write()
        over = [place.name for place in self._places.values() if place.turning and not place.parked]
        if over:
            self._tables.drop_turns(over)
        return starting

    def _write_pace(self, place: Place, queue: str) -> bool:
        row = self._tables.first_of(place.name, queue)
        if row is None:
            self._tables.drop_pace(queue, place.name)
            return False
        row = self._rings.in_turn(place, row)
        opens = place.opens_at(_cost(row, place.name))
        if opens > self._now:
            self._look_again(row)
        self._tables.put_pace(queue, row, opens if opens < INSTANT_MOST else None, self._now)
        return opens <= self._now

    def _candidate(self, place: Place, now: Instant) -> Row | None:
        if not place.has_room() or not place.parked:
            return None
        head = self._head(place) if place.standing else None
        row = self._tables.first_parked(place.name) if head is None else self._tables.one(head)
        if row is not None and head is None:
            row = self._rings.in_turn(place, row)
        if row is None or row.gate != place.name or row.due_at > now or not place.has_room(_cost(row, place.name)):
            return None
        self._unpark(row)
        return row

    def _lets_in(self, gate: Gate, place: Place, row: Row, starts: bool, its_turn: bool) -> bool:
        if gate.ordered:
            return place.has_room() and self._head(place) == row.id
        if gate.step and not (starts and place.opens_at(gate.cost) <= self._now):
            return False
        return (gate.step > 0 or place.has_room(gate.cost)) and (its_turn or not self._passes(row, gate, place, starts))

    def _behind(self, row: Row, gate: Gate, place: Place) -> bool:
        """Whether it would stand behind somebody at a rate that is open: then it need not go there yet.

        That one has the same gate before it: it looks again when that one is gone.
        """
        if not place.parked or place.opens_at(gate.cost) > self._now:
            return False
        if gate.share:
            first = self._tables.first_of_class(gate.name, row.queue, row.cls)
        else:
            first = self._tables.first_of(gate.name, row.queue)
        if first is None or (first.rank, first.id) > (row.rank, row.id):
            return False
        return any(each.name == row.gate and not each.ordered for each in first.gates)

    def _park(self, row: Row, gate: Gate) -> None:
        place = self._place(gate)
        if gate.share:
            self._rings.park(place, row)
        place.parked += 1
        place.queues[row.queue] = None
        mine = (row.rank, row.id)
        place.first = mine if place.first is None else min(place.first, mine)

    def _look_again(self, row: Row) -> None:
        """A claim has taken the job from its rate, or that is closed now: others may go on to there."""
        for gate in row.gates:
            if not gate.step:
                self._may_open(self._place(gate))

    def _shut(self, place: Place) -> None:
        place.opened = False
        self._load_opened().pop(place.name, None)

    def _passes(self, row: Row, gate: Gate, place: Place, starts: bool) -> bool:
        """Whether it would pass somebody who waits for room, or whose turn it is; who starts had its own before."""
        if not place.parked:
            return False
        mine = (row.rank, row.id)
        if gate.share:
            first = None if gate.step else self._tables.first_parked(gate.name)
            other = first is not None and first.queue != row.queue and (first.rank, first.id) < mine
            return other or (not (starts and not gate.step) and self._rings.passes(place, row))
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
            if not place.standing:
                self._rings.leave(place, row)

    def _leave(self, gate: Gate, job_id: int) -> bool:
        """Whether it stood in the gate's line."""
        place = self._place(gate)
        stood = False
        if gate.ordered:
            self._line_up()
            stood = self._tables.leave(gate.name, job_id)
            place.standing -= stood
            place.head = None if place.head == job_id else place.head
        self._may_open(place)
        return stood

    def _head(self, place: Place) -> int | None:
        if place.head is None:
            self._line_up()
            place.head = self._tables.head(place.name)
        return place.head

    def _line_up(self) -> None:
        if self._joining:
            self._tables.line_up(self._joining)
            self._joining = []

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
        if name not in self._places and name not in self._empty:
            self._look([name])
        return self._places.get(name)

    def _place(self, gate: Gate) -> Place:
        place = self._find(gate.name)
        if place is None:
            limit = self._empty.pop(gate.name)
            place = self._places[gate.name] = Place(gate.name, gate.limit, limit=limit, step=gate.step)
        return place

    def _look(self, names: Sequence[str]) -> None:
        for place in self._tables.look(names) if names else ():
            if place.stored:
                self._places[place.name] = place
            else:
                self._empty[place.name] = place.limit


def _joined(place: Place, job_id: int) -> None:
    if not place.standing:
        place.head = job_id
    elif place.head is not None:
        place.head = min(place.head, job_id)
    place.standing += 1


def _cost(row: Row, name: str) -> int:
    return next((gate.cost for gate in row.gates if gate.name == name), 1)
