"""The tables of the gates: slots, operators' numbers, lines, and who is parked. What they mean is `store.gating`'s."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from forebay.store.gating import Place, Row
from forebay.store.sqlite.queries import statement

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


class Tables:
    """`GateTables` inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def gate(self, name: str) -> Place | None:
        found = self._first(_GATE, name)
        return None if found is None else Place(name, *found)

    def limit(self, name: str) -> int | None:
        found = self._first(_GATE_LIMIT, name)
        return None if found is None else found[0]

    def put(self, places: Sequence[Place]) -> None:
        rows = [(each.name, each.slots, each.held, each.parked, each.standing, each.opened) for each in places]
        self._connection.executemany(_PUT_GATE, rows)

    def drop(self, names: Sequence[str]) -> None:
        self._connection.executemany(_DROP_GATE, [(name,) for name in names])

    def opened(self, most: int) -> Iterator[str]:
        return (name for (name,) in self._connection.execute(_OPENED, (most,)).fetchall())

    def join(self, name: str, job_id: int) -> bool:
        return self._connection.execute(_ENTER_LINE, (name, job_id)).rowcount > 0

    def leave(self, name: str, job_id: int) -> bool:
        return self._connection.execute(_LEAVE_LINE, (name, job_id)).rowcount > 0

    def head(self, name: str) -> int | None:
        head: int | None = self._connection.execute(_HEAD_OF_LINE, (name,)).fetchone()[0]
        return head

    def first_parked(self, name: str) -> Row | None:
        return self._row(_FIRST_PARKED, name)

    def one(self, job_id: int) -> Row | None:
        return self._row(_ONE, job_id)

    def _row(self, text: str, parameter: str | int) -> Row | None:
        found = self._first(text, parameter)
        return None if found is None else Row.of(found)

    def _first(self, text: str, parameter: str | int) -> Sequence[Any] | None:
        found: Sequence[Any] | None = self._connection.execute(text, (parameter,)).fetchone()
        return found
