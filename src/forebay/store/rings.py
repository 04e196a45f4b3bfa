"""Whose turn it is at gates where classes take turns, for stores that keep that in tables: `core.share.Ring`, stored.

A class joins when somebody of it parks and loses its place when it is its turn and nobody of it is there, so nothing
has to be told when a job leaves. One `Rings` lives for one transaction; who parked in it may not be in the tables yet,
and is known here.
"""

from forebay.core.gate import Gate
from forebay.store.places import GateTables, Place, Row


class Rings:
    """The rings of all gates that one transaction touches."""

    def __init__(self, tables: GateTables) -> None:
        self._tables = tables
        self._joining: dict[tuple[str, str, str], None] = {}
        self._firsts: dict[tuple[str, str, str], tuple[int, int]] = {}

    def park(self, place: Place, row: Row) -> None:
        name, mine = (place.name, row.queue, row.cls), (row.rank, row.id)
        self._joining[name] = None
        self._firsts[name] = min(mine, self._firsts.get(name, mine))
        place.turning = True

    def leave(self, place: Place, row: Row) -> None:
        """Who of its class came first in this transaction is not known any more, but it is in the tables by now."""
        self._firsts.pop((place.name, row.queue, row.cls), None)
        place.turning = True

    def in_turn(self, place: Place, first: Row) -> Row:
        """Who goes for the first in rank of those that are parked there."""
        stamp = next((gate for gate in first.gates if gate.name == place.name), None)
        if stamp is None or not stamp.share:
            return first
        cls = self._head(place.name, first.queue)
        if cls is None or cls == first.cls:
            return first
        return self._tables.first_of_class(place.name, first.queue, cls) or first

    def passes(self, place: Place, row: Row) -> bool:
        """Whether it would pass somebody of its queue: another class has its turn, or somebody of its own is before."""
        if self._head(place.name, row.queue) not in (None, row.cls):
            return True
        first, mine = self._tables.first_of_class(place.name, row.queue, row.cls), (row.rank, row.id)
        parked = self._firsts.get((place.name, row.queue, row.cls), mine)
        return parked < mine or (first is not None and (first.rank, first.id) < mine)

    def took(self, place: Place, gate: Gate, row: Row) -> None:
        """The gate has let one of the class in."""
        self.write()
        name = (place.name, row.queue, row.cls)
        rest = self._tables.rest_of_turn(*name)
        if rest is not None:
            rest = (rest or gate.share) - 1
            if rest:
                self._tables.go_on(*name, rest)
            else:
                self._tables.end_turn(*name)
            place.turning = True

    def write(self) -> None:
        """Who parked takes his place in the ring."""
        if self._joining:
            self._tables.join_turns(list(self._joining))
            self._joining = {}

    def _head(self, name: str, queue: str) -> str | None:
        self.write()
        while (cls := self._tables.whose_turn(name, queue)) is not None:
            if (name, queue, cls) in self._firsts or self._tables.first_of_class(name, queue, cls) is not None:
                return cls
            self._tables.leave_turns(name, queue, cls)
        return None
