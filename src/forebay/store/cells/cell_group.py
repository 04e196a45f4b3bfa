"""The cells of one process, and the ways to call several of them: each, the first that answers, by the ids of jobs."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, TypeVar, cast

from forebay.core.errors import Closed, ForebayError, PartlyDone, StoreFailed
from forebay.store.cells.agreement import Agreement
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_map import CellMap, Router
from forebay.store.cells.ids import cell_of

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741


class CellGroup:
    """Cells by name and by number, in the order of their numbers, which is that of ids."""

    def __init__(self, agreement: Agreement, members: Iterable[Cell]) -> None:
        self.agreement: Final = agreement
        self.router: Final = Router(lambda: agreement.map)
        self.cells: Final = sorted(members, key=lambda cell: cell.number)
        self._by_name = {cell.name: cell for cell in self.cells}
        self._by_number = {cell.number: cell for cell in self.cells}
        self._turn = count()
        self._closed = False

    @property
    def map(self) -> CellMap:
        return self.agreement.map

    def refresh(self) -> None:
        """Follow the newest map that a cell has now. One that does not answer in time is left out."""
        for cell in self.cells:
            with suppress(StoreFailed):
                cell.guard.probe()

    def close(self) -> None:
        self._closed = True
        for cell in self.cells:
            cell.close()

    def check_open(self) -> None:
        if self._closed:
            raise Closed("the store")

    def all_down(self) -> bool:
        return all(cell.guard.down for cell in self.cells)

    def named(self, name: str) -> Cell:
        return self._by_name[name]

    def home(self, job_id: int) -> Cell | None:
        """The cell of a job; None: no cell has such ids."""
        return self._by_number.get(cell_of(job_id))

    def of_queue(self, queue: str) -> list[Cell]:
        return [self._by_name[name] for name in self.map.homes(queue)]

    def claimable(self, queue: str) -> list[Cell]:
        """The cells in which jobs of the queue may start."""
        return [self._by_name[name] for name in self.map.claimable(queue)]

    def of_queues(self, queues: Iterable[str], *, claimable: bool = False) -> dict[Cell, list[str]]:
        """The cells of some queues, each with its own of them; `claimable`: only where their jobs may start."""
        found: dict[Cell, list[str]] = {}
        for queue in queues:
            for cell in self.claimable(queue) if claimable else self.of_queue(queue):
                found.setdefault(cell, []).append(queue)
        return found

    def in_turn(self, cells: Sequence[Cell]) -> list[Cell]:
        """The same cells, from another one on at each call; those that a queue leaves are first."""
        start = next(self._turn) % max(1, len(cells))
        turned = [*cells[start:], *cells[:start]]
        sources = {move.source for queue in self.map.moves if (move := self.map.move(queue)) is not None}
        return sorted(turned, key=lambda cell: cell.name not in sources) if sources else turned

    def each(self, call: Callable[[Cell], T], cells: Sequence[Cell] | None = None) -> list[T]:
        """The answers of the cells that answer; `StoreFailed` where none does."""
        self.check_open()
        answers: list[T] = []
        failure: StoreFailed | None = None
        for cell in self.cells if cells is None else cells:
            try:
                answers.append(call(cell))
            except StoreFailed as error:
                failure = error
        if failure is not None and not answers:
            raise failure
        return answers

    def first(self, call: Callable[[Cell], T]) -> T:
        """The answer of the first cell that answers."""
        self.check_open()
        for cell in self.cells[:-1]:
            try:
                return call(cell)
            except StoreFailed:
                continue
        return call(self.cells[-1])

    def by_id(
        self, items: Sequence[I], key: Callable[[I], int], call: Callable[[Cell, list[I]], Sequence[T]], gone: T
    ) -> list[T]:
        """The answer to each item from the cell of its id, in order; `gone` for ids that no cell has.

        A cell that does not answer, or refuses, holds up no other: `PartlyDone` has the answers of those that did. A
        refusal before anything was done refuses the call.
        """
        self.check_open()
        parts: dict[Cell, list[int]] = {}
        for place, item in enumerate(items):
            if (cell := self.home(key(item))) is not None:
                parts.setdefault(cell, []).append(place)
        answers: list[T | None] = [gone] * len(items)
        causes: list[ForebayError | None] = [None] * len(items)
        failed = 0
        for number, (cell, places) in enumerate(parts.items()):
            try:
                found = call(cell, [items[place] for place in places])
            except ForebayError as error:
                if number == 0 and not isinstance(error, StoreFailed):
                    raise
                failed += 1
                for place in places:
                    answers[place], causes[place] = None, error
                continue
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        if failure := next((cause for cause in causes if cause is not None), None):
            raise failure if failed == len(parts) else PartlyDone(answers, failure, causes)
        return cast(list[T], answers)
