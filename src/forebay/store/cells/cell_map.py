"""The map of cells: which cells there are, in which of them a queue or each of its partitions is, and what moves.

It is read from a TOML file. URLs are not part of the map: processes may reach a cell by different addresses, and URLs
may hold secrets. Everything else is, and all processes must agree on it (`agreement`).
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import count
from typing import Any, Final, Literal, TypeAlias
from zlib import crc32

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.limits import MAX_PARTITIONS
from forebay.core.names import check_name
from forebay.store.cells.ids import MAX_CELL

By: TypeAlias = Literal["tenant", "subject", "key", "id", "queue"]
OTHERS: Final = "*"
"""The placement of every queue that the file does not name."""

MAP_LOG: Final = "forebay.cells"
"""The log in which each cell keeps the agreed map."""

MAX_VERSION: Final = 2**31 - 1
DEADLINE: Final = 2.0
_MIN_DEADLINE: Final = 0.05
_MAX_DEADLINE: Final = 60.0


class Placement(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a queue is placed: partition i in `cells[i]`. One partition: the whole queue in one cell.

    keys  "queue": a key is unique in the whole queue, so drafts with keys need `by = "key"`
          "cell": a key is compared with those in its own cell only, so keys should name the tenant or subject
    """

    cells: tuple[str, ...]
    by: By = "id"
    keys: Literal["queue", "cell"] = "queue"

    @property
    def distinct(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.cells))

    @property
    def is_divided(self) -> bool:
        """Whether its jobs are spread over more than one cell."""
        return self.by != "queue" and len(self.distinct) > 1


class Step(StrEnum):
    """How far a move is. Every step is a version of the map, so a move that was interrupted goes on from it.

    CLOSING   new drafts still go to the source, until it is closed
    DRAINING  the source is closed; its jobs finish there, new drafts go to the target
    LEAVING   the source has no unfinished job; results, dead letters and keys are left
    LEFT      nothing is left
    """

    CLOSING = "closing"
    DRAINING = "draining"
    LEAVING = "leaving"
    LEFT = "left"


class Move(Struct, frozen=True, forbid_unknown_fields=True):
    """What a queue has in one cell goes to another: drafts from now on, while jobs that exist finish where they are.

    partitions  those that the source had
    held        no job of the target starts before the source has finished its own: order, caps and rates go on
    since       when the source was closed, by its clock; of a move that is over, when it was left
    schedules   names of those that were active in the source
    merges      waiting jobs of the source take over newer drafts of their subjects, as long as there are any
    """

    source: str
    target: str
    partitions: tuple[int, ...]
    held: bool
    step: Step = Step.CLOSING
    since: Instant = 0
    schedules: tuple[str, ...] = ()
    merges: bool = False


class CellMap(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of cells by name, placements and moves by queue. Values that are equal route every draft alike."""

    version: int
    cells: dict[str, int]
    queues: dict[str, Placement]
    moves: dict[str, tuple[Move, ...]] = {}

    def placement(self, queue: str) -> Placement:
        """Where the queue is placed; of queues without an entry those that `*` spreads have one cell each."""
        found = self.queues.get(queue)
        if found is not None:
            return found
        others = self.queues[OTHERS]
        return Placement((others.cells[partition_of(queue, len(others.cells))],))

    def homes(self, queue: str) -> tuple[str, ...]:
        """The cells that have jobs of the queue."""
        move = self.move(queue)
        homes = self.placement(queue).distinct
        return homes if move is None else (move.source, *(name for name in homes if name != move.source))

    def claimable(self, queue: str) -> tuple[str, ...]:
        """The cells in which its jobs may start; first the one that it leaves."""
        move = self.move(queue)
        waiting = None
        if move is not None and move.held and move.step in (Step.CLOSING, Step.DRAINING):
            waiting = move.target
        return tuple(name for name in self.homes(queue) if name != waiting)

    def move(self, queue: str) -> Move | None:
        """The move that is under way."""
        return next((move for move in self.moves.get(queue, ()) if move.step is not Step.LEFT), None)

    def in_use(self) -> set[str]:
        """Cells in which a queue is placed, or which one is leaving."""
        placed = {name for placement in self.queues.values() for name in placement.cells}
        return placed.union(*(self.homes(queue) for queue in self.moves))

    def partitioned(self) -> Iterator[str]:
        """Queues whose jobs are spread over more than one cell."""
        return (name for name, placement in self.queues.items() if placement.is_divided)


def partition_of(value: str, partitions: int) -> int:
    """The same on every machine and in every version, as in retained logs."""
    return crc32(value.encode()) % partitions


class Router:
    """The cell of each draft. By id a call goes to one partition, in turn, so that it is all or nothing."""

    def __init__(self, current: Callable[[], CellMap]) -> None:
        self._current = current
        self._turn = count()

    def homes(self, drafts: Sequence[Draft], *, moving: bool = False) -> list[str]:
        """`moving`: of a queue that moves, the cell that it leaves, where that may accept the draft or know its key."""
        turn, cells = next(self._turn), self._current()
        homes: list[str] = []
        for draft in drafts:
            placement = cells.placement(draft.queue)
            partition = _partition(placement, draft, turn)
            move = cells.move(draft.queue) if moving and cells.moves else None
            offered = move is not None and (move.step is Step.CLOSING or draft.key is not None or move.merges)
            leaves = move is not None and offered and partition in move.partitions
            homes.append(move.source if move is not None and leaves else placement.cells[partition])
        return homes


def homes_of_source(
    cells: CellMap, source: str, drafts: Sequence[Draft], *, closed: bool = False
) -> Iterator[tuple[str, list[Move]]]:
    """The cell of each draft of a source, and the moves by which its queue has left others.

    By id a source has one partition, which does not depend on how its drafts are divided into batches. `closed`: a cell
    that a queue is about to leave has refused drafts already.
    """
    turn = crc32(source.encode())
    for draft in drafts:
        placement = cells.placement(draft.queue)
        partition = _partition(placement, draft, turn)
        moves = [move for move in cells.moves.get(draft.queue, ()) if partition in move.partitions]
        closing = next((move.source for move in moves if move.step is Step.CLOSING), None)
        home = closing if closing is not None and not closed else placement.cells[partition]
        yield home, [move for move in moves if move.source != home]


def _partition(placement: Placement, draft: Draft, turn: int) -> int:
    cells = placement.cells
    if len(cells) == 1:
        return 0
    match placement.by:
        case "tenant":
            value = draft.tenant
        case "subject":
            value = draft.subject
        case "key":
            value = draft.key
        case _:
            return turn % len(cells)
    if placement.is_divided and draft.key is not None and placement.by != "key" and placement.keys == "queue":
        _refuse_key(draft.queue, placement.by)
    return partition_of(value or "", len(cells))


def _refuse_key(queue: str, by: str) -> None:
    reason = f"queue {queue!r} is partitioned by {by}, so a key would be unique in one cell only"
    raise Invalid("key", reason, 'partition it by = "key", or say keys = "cell" for it in the file of cells')


class CellAddress(Struct, frozen=True):
    """How a process reaches a cell. `deadline`: seconds for which others wait for it; None: as long as it takes."""

    url: str
    deadline: float | None


def read_cells(text: str, source: str) -> tuple[CellMap, dict[str, CellAddress]]:
    """The map in a file, and the addresses in it; `Invalid` names the place of what is wrong."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(source, str(error), "see docs/guides/cells.md for the shape") from None
    _check_fields(source, found, {"version", "cells", "queues"})
    version, cells, queues = found.get("version"), found.get("cells"), found.get("queues")
    if type(version) is not int or not 1 <= version <= MAX_VERSION:
        raise Invalid(f"{source} version", f"{version!r} is not an integer in 1 … {MAX_VERSION}", "begin with 1")
    if not isinstance(cells, dict) or not cells or not isinstance(queues, dict) or OTHERS not in queues:
        reason = 'it has no [cells.NAME], or [queues] without an entry for "*"'
        raise Invalid(source, reason, 'name the cells, and in "*" those of queues that have no entry of their own')
    numbers: dict[str, int] = {}
    addresses: dict[str, CellAddress] = {}
    for name, entry in cells.items():
        numbers[check_name("cell", name)], addresses[name] = _read_cell(f"{source} cells.{name}", entry)
    for what, values in (("number", list(numbers.values())), ("url", [each.url for each in addresses.values()])):
        if len(set(values)) != len(values):
            raise Invalid(
                f"{source} cells", f"two of them have the same {what}", "a cell is one store, with one number"
            )
    placements = {name: _read_placement(f"{source} queues.{name}", name, queues[name], numbers) for name in queues}
    return CellMap(version, numbers, placements), addresses


def _read_cell(at: str, entry: Any) -> tuple[int, CellAddress]:
    _check_fields(at, entry, {"number", "url", "deadline"})
    number, url = entry.get("number"), entry.get("url")
    if type(number) is not int or not 0 <= number <= MAX_CELL:
        reason = f"number = {number!r} is not an integer in 0 … {MAX_CELL}"
        raise Invalid(at, reason, "give each cell its own number; ids of its jobs carry it, so it never changes")
    if type(url) is not str or url.startswith("cells:"):
        raise Invalid(at, "it has no url of a store", 'write url = "sqlite:///a.db", "postgresql://host/db", …')
    behind_server = not url.startswith(("sqlite:", "memory:"))
    deadline = entry.get("deadline", DEADLINE if behind_server else None)
    if deadline is not None and not (
        isinstance(deadline, int | float) and _MIN_DEADLINE <= deadline <= _MAX_DEADLINE and deadline is not True
    ):
        reason = f"deadline = {deadline!r} is not a number of seconds from {_MIN_DEADLINE:g} to {_MAX_DEADLINE:g}"
        raise Invalid(at, reason, f"write deadline = {DEADLINE:g}, or leave it out")
    return number, CellAddress(url, deadline)


def _read_placement(at: str, queue: str, entry: Any, numbers: Mapping[str, int]) -> Placement:
    if queue != OTHERS:
        check_name("queue", queue)
    if isinstance(entry, str):
        entry = {"cells": [entry]}
    _check_fields(at, entry, {"partitions", "by", "cells", "keys"})
    given = entry.get("cells")
    if not isinstance(given, list) or not given:
        raise Invalid(at, "it names no cells", 'write "a", or { partitions = 8, by = "tenant", cells = ["a", "b"] }')
    if unknown := [name for name in given if name not in numbers]:
        raise Invalid(at, f"there is no cell {unknown[0]!r}", f"the cells are {', '.join(numbers)}")
    partitions = entry.get("partitions", 1)
    if type(partitions) is not int or not len(given) <= partitions <= MAX_PARTITIONS:
        reason = f"partitions = {partitions!r} is not an integer in {len(given)} … {MAX_PARTITIONS}"
        raise Invalid(at, reason, "a queue has at least one partition for each cell that it names")
    allowed = ("queue",) if queue == OTHERS else ("tenant", "subject", "key", "id")
    by, keys = entry.get("by", allowed[-1] if partitions == 1 else None), entry.get("keys", "queue")
    if by not in allowed or keys not in ("queue", "cell"):
        reason = f"by = {by!r}, keys = {keys!r} is not known here"
        raise Invalid(at, reason, f"use by = {' or '.join(allowed)}, keys = queue or cell")
    return Placement(tuple(given[number % len(given)] for number in range(partitions)), by, keys)


def _check_fields(at: str, entry: Any, known: set[str]) -> None:
    if not isinstance(entry, dict) or not entry.keys() <= known:
        odd = ", ".join(sorted(entry.keys() - known)) if isinstance(entry, dict) else repr(entry)
        raise Invalid(at, f"{odd} is not known here", f"it has {', '.join(sorted(known))}")
