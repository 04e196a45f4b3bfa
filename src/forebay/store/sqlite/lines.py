"""The heads of lines as the rules see them (`engine.lines`). A job of a line is exposed while it is not `behind`."""

import json
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from forebay.store.sqlite.tables import SQL
from forebay.store.states import DONE, RUNNING


class LineRow(NamedTuple):
    """The fields of it that the rules, and a unit that moves the job, need."""

    line: str
    id: int
    state: int
    behind: int
    queue: str
    lane: str

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state >= DONE


def line_heads(connection: sqlite3.Connection, lines: Iterable[str]) -> list[LineRow]:
    """The heads of those of these lines that have jobs."""
    return [LineRow._make(found) for found in connection.execute(SQL.heads, (json.dumps(list(lines)),))]


def exposed_in_line(connection: sqlite3.Connection, head: LineRow, vacant: bool) -> LineRow | None:
    """The exposed job of the line with this head; `vacant`: it is the head, or there is none."""
    if not (head.behind or head.has_ended):
        return head
    found = None if vacant else connection.execute(SQL.exposed, (head.line,)).fetchone()
    return None if found is None else LineRow._make(found)
