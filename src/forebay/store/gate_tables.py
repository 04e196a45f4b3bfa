"""`GateTables` in SQL: slots, operators' numbers, lines, and who is parked. What they mean is `store.gating`'s.

The statements are the store's own, by these names: look, put_gate, drop_gate, opened, enter_line, line_up, leave_line,
head_of_line, first_parked, one, first_of, first_of_class, paced, put_pace, drop_pace, next_start, next_start_of, and of
the rings join_turns, whose_turn, rest_of_turn, go_on, end_turn, leave_turns, drop_turns. Their parameters come in the
order in which the methods name them; how a list is given to look, and many rows to put_gate, drop_gate, line_up,
join_turns and drop_turns, is the store's own way too. A store that lets parked jobs in by itself, and not by
`Gates.next_candidate` and `Gates.next_start`, has no opened, one, next_start and next_start_of.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from forebay.core.instant import Instant
from forebay.store.places import Place, Row
from forebay.store.sql_logs import Cursor


class SqlTables:
    """The tables of the gates inside one transaction. `many`: a statement for many rows; `names`: a list of names."""

    def __init__(
        self,
        execute: Callable[[str, Sequence[Any]], Cursor],
        many: Callable[[str, Sequence[Sequence[Any]]], object],
        names: Callable[[Sequence[str]], Any],
        statement: Callable[[str], str],
    ) -> None:
        self._execute = execute
        self._many = many
        self._names = names
        self._statement = statement

    def look(self, names: Sequence[str]) -> Iterator[Place]:
        return (Place(*found) for found in self._execute(self._statement("look"), (self._names(names),)).fetchall())

    def put(self, places: Sequence[Place]) -> None:
        rows = [
            (
                each.name,
                each.slots,
                each.held,
                each.parked,
                each.standing,
                bool(each.opened),
                each.step,
                each.tide,
                each.fallen,
            )
            for each in places
        ]
        self._many(self._statement("put_gate"), rows)

    def drop(self, names: Sequence[str]) -> None:
        self._many(self._statement("drop_gate"), [(name,) for name in names])

    def opened(self, most: int) -> Iterator[str]:
        return (name for (name,) in self._execute(self._statement("opened"), (most,)).fetchall())

    def line_up(self, places: Sequence[tuple[str, int]]) -> None:
        self._many(self._statement("line_up"), places)

    def join(self, name: str, job_id: int) -> bool:
        return self._execute(self._statement("enter_line"), (name, job_id)).rowcount > 0

    def leave(self, name: str, job_id: int) -> bool:
        return self._execute(self._statement("leave_line"), (name, job_id)).rowcount > 0

    def head(self, name: str) -> int | None:
        head: int | None = self._first("head_of_line", name)[0]
        return head

    def first_parked(self, name: str) -> Row | None:
        found = self._first("first_parked", name)
        return None if found is None else Row.of(found)

    def one(self, job_id: int) -> Row | None:
        found = self._first("one", job_id)
        return None if found is None else Row.of(found)

    def first_of(self, name: str, queue: str) -> Row | None:
        found = self._execute(self._statement("first_of"), (name, queue)).fetchone()
        return None if found is None else Row.of(found)

    def paced(self, name: str) -> list[str]:
        return [queue for (queue,) in self._execute(self._statement("paced"), (name,)).fetchall()]

    def put_pace(self, queue: str, first: Row, opens_at: Instant | None, now: Instant) -> None:
        values = (
            queue,
            first.gate,
            opens_at,
            first.rank,
            first.id,
            opens_at is not None and opens_at <= now,
            first.cls,
        )
        self._execute(self._statement("put_pace"), values)

    def drop_pace(self, queue: str, name: str) -> None:
        self._execute(self._statement("drop_pace"), (queue, name))

    def first_of_class(self, name: str, queue: str, cls: str) -> Row | None:
        found = self._execute(self._statement("first_of_class"), (name, queue, cls)).fetchone()
        return None if found is None else Row.of(found)

    def join_turns(self, classes: Sequence[tuple[str, str, str]]) -> None:
        self._many(self._statement("join_turns"), classes)

    def whose_turn(self, name: str, queue: str) -> str | None:
        found = self._execute(self._statement("whose_turn"), (name, queue)).fetchone()
        return None if found is None else str(found[0])

    def rest_of_turn(self, name: str, queue: str, cls: str) -> int | None:
        found = self._execute(self._statement("rest_of_turn"), (name, queue, cls)).fetchone()
        return None if found is None else int(found[0])

    def go_on(self, name: str, queue: str, cls: str, rest: int) -> None:
        self._execute(self._statement("go_on"), (rest, name, queue, cls))

    def end_turn(self, name: str, queue: str, cls: str) -> None:
        self._execute(self._statement("end_turn"), (name, queue, name, queue, cls))

    def leave_turns(self, name: str, queue: str, cls: str) -> None:
        self._execute(self._statement("leave_turns"), (name, queue, cls))

    def drop_turns(self, names: Sequence[str]) -> None:
        self._many(self._statement("drop_turns"), [(name,) for name in names])

    def next_start(self, queue: str, cls: str | None) -> Row | None:
        if cls is None:
            found = self._first("next_start", queue)
        else:
            found = self._execute(self._statement("next_start_of"), (queue, cls)).fetchone()
        return None if found is None else Row.of(found)

    def _first(self, statement: str, value: object) -> Any:
        return self._execute(self._statement(statement), (value,)).fetchone()
