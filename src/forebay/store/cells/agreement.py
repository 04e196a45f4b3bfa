"""The map that all processes agree on. Each cell keeps its versions in a log; the newest one counts.

A file that differs is refused before anything is routed. A file with a newer version is accepted if every job that
exists still lives where it lived; its map is then appended in every cell. Moves and added cells are newer versions too:
a process follows those as soon as it notices them, as long as its file has the addresses of all cells in use. Versions
are appended to the cell with the lowest number first, so of two that are made at once the first one counts everywhere.
"""

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

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


class MapLog:
    """The versions of the map in one cell; of equal versions the first one counts."""

    def __init__(self, cell: str, backend: Backend) -> None:
        self.cell: Final = cell
        self.backend: Final = backend

    def end(self) -> int:
        return self.backend.extent(MAP_LOG)[0][1]

    def versions(self) -> dict[int, CellMap]:
        """In the order in which they were agreed; empty: this cell has agreed on nothing."""
        try:
            first, following = self.backend.extent(MAP_LOG)[0]
        except WrongQueueKind:
            return {}
        found: dict[int, CellMap] = {}
        after = first - 1
        while after < following - 1 and (page := self.backend.read(MAP_LOG, 0, after, MAX_BATCH)):
            for entry in page:
                agreed = _decode(entry.body)
                if agreed.cell != self.cell:
                    reason = f"its store is that of cell {agreed.cell!r}"
                    raise Invalid(f"cell {self.cell}", reason, "a cell is one store: give each its own URL")
                found.setdefault(agreed.map.version, agreed.map)
            after = page[-1].offset
        return found

    def append(self, cells: CellMap) -> None:
        """Agree on a map, unless this version exists; another one that was first is refused."""
        found = self.versions()
        if max(found, default=0) < cells.version:
            self.backend.put_spec(QueueSpec(name=MAP_LOG, retention=Retained(1)))
            self.backend.append(MAP_LOG, [(_encode(AgreedMap(self.cell, cells)), None)])
            found = self.versions()
        if found.get(cells.version, cells) != cells:
            _refuse(self.cell, found[cells.version], cells)


class Agreement:
    """The map of this process, and the logs of its cells."""

    def __init__(self, cells: CellMap, logs: Mapping[str, MapLog]) -> None:
        self._file = cells
        self._map = cells
        self._logs = sorted(logs.values(), key=lambda log: cells.cells[log.cell])
        self._read_to: dict[str, int] = {}
        self._guard = Lock()

    @property
    def map(self) -> CellMap:
        return self._map

    def open(self) -> None:
        """Follow what the cells have agreed on, or agree on the file; where one refuses, nothing is changed."""
        logs = [(log, log.versions()) for log in self._logs]
        newest = max((max(versions, default=0) for _, versions in logs), default=0)
        history: dict[int, CellMap] = {}
        for _, versions in logs:
            if newest in versions:
                history = versions | history
        agreed = history.get(newest)
        if agreed is not None and self._file.version <= newest:
            self._map = self._followed(agreed, history, self._logs[0].cell)
        elif agreed is not None:
            self._map = self._next(agreed)
        for log, versions in logs:
            last = versions.get(max(versions, default=0))
            if last is not None and history.get(last.version) != last:
                _refuse(log.cell, last, self._file)
            if last is None or self._map.version > newest:
                _check_next(log, last and agreed, self._map)
        self.publish(self._map)

    def publish(self, cells: CellMap) -> None:
        """Agree on a map in every cell, and follow it."""
        for log in self._logs:
            log.append(cells)
        self._adopt(cells)

    def probe(self, log: MapLog) -> None:
        """Follow the cell's map if it is newer. Raises if the cell does not answer, or its map cannot be followed."""
        end = log.end()
        if end != self._read_to.get(log.cell):
            versions = log.versions()
            newest = versions[max(versions)]
            if newest.version > self._map.version:
                self._adopt(newest)
            elif newest.version == self._map.version and newest != self._map:
                _refuse(log.cell, newest, self._map)
            self._read_to[log.cell] = end

    def _adopt(self, cells: CellMap) -> None:
        self._check_addresses(cells)
        with self._guard:
            if cells.version >= self._map.version:
                self._map = cells

    def _followed(self, agreed: CellMap, history: dict[int, CellMap], cell: str) -> CellMap:
        """The agreed map, if the file is one of its earlier versions; it may have more cells, or lack unused ones."""
        known = history.get(self._file.version)
        if known is None or known.queues != self._file.queues:
            _refuse(cell, agreed, self._file)
        self._check_addresses(agreed)
        return agreed

    def _check_addresses(self, agreed: CellMap) -> None:
        for name, number in agreed.cells.items():
            mine = self._file.cells.get(name)
            if mine != number and (mine is not None or name in agreed.in_use()):
                has = "no such cell" if mine is None else f"number {mine}"
                reason = f"the agreed map, version {agreed.version}, has it with number {number}, the file has {has}"
                raise Invalid(f"cell {name}", reason, "give this process the file with the addresses of all cells")

    def _next(self, agreed: CellMap) -> CellMap:
        """The file as the version after the agreed one."""
        for queue in agreed.moves:
            if (move := agreed.move(queue)) is not None:
                reason = f"it moves from cell {move.source} to {move.target} in version {agreed.version}"
                raise Invalid(f"queue {queue}", reason, "finish the move before the file has another version")
        return replace(self._file, moves=agreed.moves)


def _refuse(cell: str, agreed: CellMap, mine: CellMap) -> None:
    differences = ", ".join(_differences(agreed, mine))
    reason = f"it has agreed on version {agreed.version}, which differs in {differences}"
    raise Invalid(f"cell {cell}", f"{reason}; this process has version {mine.version}", _RESTART)


def _check_next(log: MapLog, old: CellMap | None, new: CellMap) -> None:
    """Every job that is in the cell still lives there, and every spec still holds. `old` None: it is a new cell."""
    for name, number in (old.cells if old else {}).items():
        if new.cells.get(name) != number and (name in new.cells or (old and name in old.in_use())):
            reason = f"version {new.version} has no cell {name!r} with number {number}, and ids carry it"
            raise Invalid(f"cell {log.cell}", reason, "keep the cell and its number in the file")
    specs = [spec for spec in log.backend.specs() if spec.name != MAP_LOG]
    for spec in specs:
        check_promises(spec, new, specs)
    logs = {spec.name for spec in specs if spec.is_log}
    for queue in _names(log.backend):
        before = old.placement(queue) if old else Placement((log.cell,))
        after = new.placement(queue)
        if _same(before, after) or not (queue in logs or _holds_jobs(log.backend, queue)):
            continue
        reason = f"queue {queue!r} holds jobs, and {_words(before)} became {_words(after)} without a move"
        raise Invalid(f"cell {log.cell}", reason, "keep its entry as it was, and use `forebay cells move`")


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
    for name in sorted(theirs.moves.keys() | ours.moves.keys()):
        if theirs.moves.get(name) != ours.moves.get(name):
            yield f"moves.{name}"
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
