"""The map that all processes agree on. Each cell keeps its versions in a log; the newest one counts.

A file that differs is refused before anything is routed. A file with a newer version is accepted if every job that
exists still lives where it lived; its map is then appended in every cell. Moves and added cells are newer versions too:
a process follows those as soon as it notices them, as long as its file has the addresses of all cells in use. Versions
are appended to the cell with the lowest number first, so of two that are made at once the first one counts everywhere.

URLs are not part of the map, so a process could have another store, or an empty one, as a cell. Each log therefore also
has the instants at which the logs of all cells began, and a cell whose own log began at another one is refused.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.instant import Instant
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import MAP_LOG, CellMap, Placement
from forebay.store.cells.promises import check_promises

_RESTART: Final = "give this process the file that the others have"
_MOVE: Final = "keep its entry as it was, and use `forebay cells move`"


class AgreedMap(Struct, frozen=True, omit_defaults=True):
    """What a cell keeps: its own name, and the map. `began`: when the log of each cell began, once all have agreed."""

    cell: str
    map: CellMap
    began: dict[str, Instant] = {}


class MapHistory(Struct, frozen=True):
    """A log: the versions as they were agreed, when it began (None: never), and when those of all `stores` did."""

    versions: dict[int, CellMap]
    began: Instant | None
    stores: dict[str, Instant]

    @property
    def newest(self) -> int:
        return max(self.versions, default=0)


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(AgreedMap).decode


class MapLog:
    """The versions of the map in one cell; of equal versions the first one counts."""

    def __init__(self, cell: str, backend: Backend) -> None:
        self.cell: Final = cell
        self.backend: Final = backend

    def end(self) -> int:
        ((_, following),) = self.backend.extent(MAP_LOG)
        return following

    def read(self) -> MapHistory:
        try:
            ((first, following),) = self.backend.extent(MAP_LOG)
        except WrongQueueKind:
            return MapHistory({}, None, {})
        versions: dict[int, CellMap] = {}
        stores: dict[int, dict[str, Instant]] = {}
        began: Instant | None = None
        after = first - 1
        while after < following - 1 and (page := self.backend.read(MAP_LOG, 0, after, MAX_BATCH)):
            for entry in page:
                agreed = _decode(entry.body)
                if agreed.cell != self.cell:
                    reason = f"its store is that of cell {agreed.cell!r}"
                    raise Invalid(f"cell {self.cell}", reason, "a cell is one store: give each its own URL")
                began = entry.at if began is None else began
                versions.setdefault(agreed.map.version, agreed.map)
                if agreed.began:
                    stores.setdefault(agreed.map.version, agreed.began)
            after = page[-1].offset
        return MapHistory(versions, began, stores[max(stores)] if stores else {})

    def agree(self, cells: CellMap) -> None:
        """Append a map, unless this version exists; another one that was first is refused."""
        found = self.read()
        if found.newest < cells.version:
            self.backend.put_spec(QueueSpec(name=MAP_LOG, retention=Retained(1)))
            self.append(AgreedMap(self.cell, cells))
            found = self.read()
        if found.versions.get(cells.version, cells) != cells:
            _refuse(self.cell, found.versions[cells.version], cells)

    def append(self, agreed: AgreedMap) -> None:
        self.backend.append(MAP_LOG, [(_encode(agreed), None)])


class Agreement:
    """The map of this process, and the logs of its cells."""

    def __init__(self, cells: CellMap, logs: Mapping[str, MapLog]) -> None:
        self._file = cells
        self._map = cells
        self._versions = {cells.version: cells}
        self._logs = sorted(logs.values(), key=lambda log: cells.cells[log.cell])
        self._read_to: dict[str, int] = {}
        self._lock = Lock()

    @property
    def map(self) -> CellMap:
        return self._map

    @property
    def founders(self) -> Collection[str]:
        """The cells of the first map, without those that were taken out since; all cells, if none of them is left."""
        cells = self._map.cells.keys()
        return self._versions[min(self._versions)].cells.keys() & cells or cells

    def version(self, number: int) -> CellMap:
        """A map that was agreed on, now or earlier."""
        return self._versions[number]

    def open(self) -> None:
        """Follow what the cells have agreed on, or agree on the file; where one refuses, nothing is changed."""
        logs = self._read()
        newest = max((found.newest for _, found in logs), default=0)
        history: dict[int, CellMap] = {}
        for _, found in logs:
            if newest in found.versions:
                history = found.versions | history
        self._versions = history or self._versions
        agreed = history.get(newest)
        if agreed is not None and self._file.version <= newest:
            self._map = self._followed(agreed, history, self._logs[0].cell)
            _check_stores(logs)
        elif agreed is not None:
            self._map = self._next(agreed)
        for log, found in logs:
            last = found.versions.get(found.newest)
            if last is not None and history.get(last.version) != last:
                _refuse(log.cell, last, self._file)
            if last is None or self._map.version > newest:
                _check_next(log, last and agreed, self._map)
        self.publish(self._map)
        self._record_stores()

    def _read(self) -> list[tuple[MapLog, MapHistory]]:
        return [(log, log.read()) for log in self._logs]

    def _record_stores(self) -> None:
        """In every cell. Of two processes that agree on a map at once, with different stores, the second is refused."""
        logs = self._read()
        began = {log.cell: at for log, found in logs if log.cell in self._map.cells and (at := found.began) is not None}
        behind = [log for log, found in logs if not began.items() <= found.stores.items()]
        for log in behind:
            log.append(AgreedMap(log.cell, self._map, began))
        if behind:
            _check_stores(self._read())

    def publish(self, cells: CellMap) -> None:
        """Agree on a map in every cell, and follow it."""
        for log in self._logs:
            log.agree(cells)
        self._adopt(cells)

    def probe(self, log: MapLog) -> None:
        """Follow the cell's map if it is newer. Raises if the cell does not answer, or its map cannot be followed."""
        end = log.end()
        if end != self._read_to.get(log.cell):
            found = log.read()
            newest = found.versions[found.newest]
            self._versions = self._versions | found.versions
            if newest.version > self._map.version:
                self._adopt(newest)
            elif newest.version == self._map.version and newest != self._map:
                _refuse(log.cell, newest, self._map)
            self._read_to[log.cell] = end

    def _adopt(self, cells: CellMap) -> None:
        self._check_addresses(cells)
        with self._lock:
            self._versions = self._versions | {cells.version: cells}
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


def _check_stores(logs: Sequence[tuple[MapLog, MapHistory]]) -> None:
    """Each cell is the store with which the others agreed."""
    began = {log.cell: found.began for log, found in logs}
    for log, found in logs:
        for name, at in found.stores.items():
            if name in began and began[name] != at:
                reason = f"cell {log.cell} has agreed with another store as {name}, and its jobs are there"
                remedy = "give the URL of that store; if it is lost for good, give the file its next version"
                raise Invalid(f"cell {name}", reason, remedy)


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
    for queue in _queue_names(log.backend):
        before = old.placement(queue) if old else Placement((log.cell,))
        after = new.placement(queue)
        if _lives_alike(before, after) or not (queue in logs or _holds_jobs(log.backend, queue)):
            continue
        reason = f"queue {queue!r} holds jobs, and {_described(before)} became {_described(after)} without a move"
        divided_anew = (before.by, len(before.cells)) != (after.by, len(after.cells)) and (
            before.is_divided or after.is_divided
        )
        remedy = "partitions and by stay as they are as long as it holds jobs" if divided_anew else _MOVE
        raise Invalid(f"cell {log.cell}", reason, remedy)


def _lives_alike(before: Placement, after: Placement) -> bool:
    return before == after or (not before.is_divided and not after.is_divided and before.distinct == after.distinct)


def _described(placement: Placement) -> str:
    cells = ", ".join(placement.distinct)
    return (
        f"{len(placement.cells)} partitions by {placement.by} in {cells}" if placement.is_divided else f"cell {cells}"
    )


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


def _queue_names(backend: Backend) -> Iterator[str]:
    after = ""
    while page := backend.queues(after, MAX_BATCH, ""):
        yield from (name for name in page if name != MAP_LOG)
        after = page[-1]


def _holds_jobs(backend: Backend, queue: str) -> bool:
    (backlog,) = backend.backlog([queue])
    return backlog.depth + backlog.done + backlog.dead + backlog.cancelled > 0
