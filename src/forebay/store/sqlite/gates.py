"""The gates that one turn touches: read once, changed here, written back together.

A gate has a row while running jobs use it, while starts are owed to it, while lanes wait for it to open, and while it
has an operator's number.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from forebay.core.instant import Instant
from forebay.engine.lanes import GateState
from forebay.store.sqlite.queries import statement

_STATES: Final = statement("gate_states")
_PUT: Final = statement("put_gate")
_DROP: Final = statement("drop_gate")


class GateRow(NamedTuple):
    """A gate as its row has it."""

    name: str
    used: int = 0
    tat: Instant = 0
    queue: str | None = None
    given: int | None = None
    wake_at: Instant | None = None


class Gates:
    """States by name. `freed`: what is given back and not yet written; `wake_at`: when a rate opens for its lanes."""

    def __init__(self, connection: sqlite3.Connection, now: Instant) -> None:
        self._connection = connection
        self._now = now
        self._rows: dict[str, GateRow] = {}
        self._states: dict[str, GateState] = {}
        self.wake_at: dict[str, Instant | None] = {}
        self.freed: Counter[str] = Counter()

    def load(self, names: Iterable[str]) -> None:
        """Read all of these that are not known yet."""
        missing = [name for name in dict.fromkeys(names) if name not in self._states]
        if not missing:
            return
        rows = {row.name: row for row in map(GateRow._make, self._connection.execute(_STATES, (json.dumps(missing),)))}
        for name in missing:
            row = rows.get(name)
            if row is not None:
                self._rows[name] = row
            state = GateState(name) if row is None else GateState(name, row.used, row.tat, row.given)
            state.queue = None if row is None else row.queue
            self._states[name] = state
            self.wake_at[name] = None if row is None else row.wake_at

    def state(self, name: str) -> GateState:
        self.load((name,))
        return self._states[name]

    def give_back(self, name: str, cost: int) -> None:
        self.freed[name] += cost

    def count_freed(self) -> None:
        """Take what was given back out of the states."""
        self.load(self.freed)
        for name, cost in self.freed.items():
            self._states[name].used -= cost
        self.freed.clear()

    def write(self) -> None:
        put: list[GateRow] = []
        gone: list[tuple[str]] = []
        for name, state in self._states.items():
            row = GateRow(name, state.used, state.tat, state.queue, state.given, self.wake_at[name])
            stored = self._rows.get(name)
            used = row.used or row.tat > self._now or row.given is not None or row.wake_at is not None
            if used and row != stored:
                put.append(row)
                self._rows[name] = row
            elif not used and stored is not None:
                gone.append((name,))
                del self._rows[name]
        if gone:
            self._connection.executemany(_DROP, gone)
        if put:
            self._connection.executemany(_PUT, put)
