"""The map that all processes agree on. Each cell keeps it in a log; the first entry of the newest version counts.

A process whose file differs is refused before it routes anything. A file with a newer version is accepted if every job
that exists still lives where it lived; its map is then appended in every cell. Processes with the older one notice it
when they probe their cells, and stop routing.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import MAP_LOG, CellMap, Placement
from forebay.store.cells.promises import check_promises

_RESTART: Final = "give this process the file that the others have"


class AgreedMap(Struct, frozen=True):
    """What a cell keeps: its own name, and the map."""

    cell: str
    map: CellMap


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(AgreedMap).decode


class Agreement:
    """The map as one cell has it, compared with the map of this process."""

    def __init__(self, cell: str, backend: Backend, cells: CellMap) -> None:
        self._cell = cell
        self._backend = backend
        self._map = cells
        self._read_to = -1

    def probe(self) -> None:
        """Raise where the cell does not answer, or is agreed on another map by now."""
        following = self._backend.extent(MAP_LOG)[0][1]
        if following != self._read_to:
            self._check_same(self._agreed())
            self._read_to = following

    def check(self) -> None:
        """Refuse a map that is not the cell's, nor a sound next version of it. Changes nothing."""
        agreed = self._agreed()
        if agreed is not None and agreed.map.version >= self._map.version:
            self._check_same(agreed)
            return
        self._check_next(agreed.map if agreed else None)

    def record(self) -> None:
        """Agree on the map of this process; another one that was first counts."""
        agreed = self._agreed()
        if agreed is None or agreed.map.version < self._map.version:
            self._backend.put_spec(QueueSpec(name=MAP_LOG, retention=Retained(1)))
            self._backend.append(MAP_LOG, [(_encode(AgreedMap(self._cell, self._map)), None)])
        self._check_same(self._agreed())

    def _check_same(self, agreed: AgreedMap | None) -> None:
        if agreed is None or agreed.map != self._map:
            theirs = "nothing" if agreed is None else f"version {agreed.map.version}"
            difference = (
                "" if agreed is None else f", which differs in {', '.join(_differences(agreed.map, self._map))}"
            )
            reason = f"it has agreed on {theirs}{difference}; this process has version {self._map.version}"
            raise Invalid(f"cell {self._cell}", reason, _RESTART)

    def _check_next(self, old: CellMap | None) -> None:
        """Every job that is here still lives here, and every spec still holds."""
        for name, number in (old.cells if old else {}).items():
            if self._map.cells.get(name) != number:
                reason = f"version {self._map.version} has no cell {name!r} with number {number}, and ids carry it"
                raise Invalid(f"cell {self._cell}", reason, "keep the cell and its number in the file")
        specs = [spec for spec in self._backend.specs() if spec.name != MAP_LOG]
        for spec in specs:
            check_promises(spec, self._map, specs)
        logs = {spec.name for spec in specs if spec.is_log}
        for queue in _names(self._backend):
            before = old.placement(queue) if old else Placement((self._cell,))
            after = self._map.placement(queue)
            if _same(before, after) or not (queue in logs or _holds_jobs(self._backend, queue)):
                continue
            reason = f"queue {queue!r} holds jobs, and {_words(before)} became {_words(after)} without a move"
            raise Invalid(f"cell {self._cell}", reason, "keep its entry as it was, or empty the queue first")

    def _agreed(self) -> AgreedMap | None:
        try:
            first, following = self._backend.extent(MAP_LOG)[0]
        except WrongQueueKind:
            return None
        agreed: AgreedMap | None = None
        after = first - 1
        while after < following - 1 and (page := self._backend.read(MAP_LOG, 0, after, MAX_BATCH)):
            for entry in page:
                found = _decode(entry.body)
                if agreed is None or found.map.version > agreed.map.version:
                    agreed = found
            after = page[-1].offset
        if agreed is not None and agreed.cell != self._cell:
            reason = f"its store is that of cell {agreed.cell!r}"
            raise Invalid(f"cell {self._cell}", reason, "a cell is one store: give each its own URL")
        return agreed


def _same(before: Placement, after: Placement) -> bool:
    return before == after or (not before.spans and not after.spans and before.distinct == after.distinct)


def _words(placement: Placement) -> str:
    cells = ", ".join(placement.distinct)
    return f"{len(placement.cells)} partitions by {placement.by} in {cells}" if placement.spans else f"cell {cells}"


def _differences(theirs: CellMap, ours: CellMap) -> Iterator[str]:
    if theirs.version != ours.version:
        yield "version"
    for name in sorted(theirs.cells.keys() | ours.cells.keys()):
        if theirs.cells.get(name) != ours.cells.get(name):
            yield f"cells.{name}"
    for name in sorted(theirs.queues.keys() | ours.queues.keys()):
        if theirs.queues.get(name) != ours.queues.get(name):
            yield f"queues.{name}"


def _names(backend: Backend) -> Iterator[str]:
    after = ""
    while page := backend.queues(after, MAX_BATCH, ""):
        yield from (name for name in page if name != MAP_LOG)
        after = page[-1]


def _holds_jobs(backend: Backend, queue: str) -> bool:
    (backlog,) = backend.backlog([queue])
    return backlog.depth + backlog.done + backlog.dead + backlog.cancelled > 0
