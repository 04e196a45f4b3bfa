"""Sources of drafts over cells: a batch is accepted cell by cell, and each draft once, whatever is repeated.

The checkpoint of a source is kept in one cell, its home, which alone says how far the source is. Every other cell that
accepts drafts of it has a mark: the position up to which it has its part, moved in the transaction that accepts the
part. The home comes last. So a batch that was interrupted is repeated, and cells whose mark is at its end are skipped.

The home depends on the name of the source and on the cells of the first agreed map: a cell that is added moves none.
A writer that was overtaken is refused by the compare-and-set of each cell. A mark has the version of the map by which
its drafts were chosen, so a queue may move before the batch is repeated. A cell that a queue has left gets a mark
first: a writer with an older map, which would add drafts there, has to follow the newer one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, Self

import msgspec
from msgspec import Struct

from forebay.core.errors import HalfIngested, Invalid, QueueFull, StoreFailed
from forebay.core.instant import Instant, days, micros
from forebay.core.job import Draft
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.cell_map import CellMap, Step, sourced
from forebay.store.protocol import Checkpoint, Tally

_SUFFIX: Final = "\x1fpart"
_REPEATED_WITHIN: Final = micros(days(1))
"""How long a cell that a queue has left for good is still part of batches that may be repeated."""

_encode: Final = msgspec.msgpack.Encoder().encode


class _Chosen(Struct, frozen=True, array_like=True):
    """By which map a cell has accepted its part. `closed`: a cell that is about to be left had refused drafts."""

    version: int
    closed: bool
    nothing: bool = False


class _Mark(Struct, frozen=True, array_like=True):
    """What a cell has of the batch up to its mark, and a digest of these drafts."""

    chosen: tuple[_Chosen, ...]
    digest: bytes

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Self:
        return msgspec.msgpack.decode(checkpoint.digest, type=cls)


class _Part(Struct, frozen=True):
    """Places of the drafts of one cell.

    current  those that belong to it by the newest map
    moved    those that belonged to it before their queue moved
    known    those of `moved` whose key or subject the cell may still have
    """

    current: list[int] = msgspec.field(default_factory=list)
    moved: list[int] = msgspec.field(default_factory=list)
    known: list[int] = msgspec.field(default_factory=list)


class _Outdated(Exception):
    """Another writer was first, or has a newer map."""


class _Batch:
    """A call of `ingest`. `accepted`: places of drafts that are in already."""

    def __init__(self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]) -> None:
        self.source: Final = source
        self.before: Final = before
        self.after: Final = after
        self.drafts: Final = drafts
        self.accepted: set[int] = set()

    def belonging_to(self, cells: CellMap, closed: bool, name: str) -> list[int]:
        homes = sourced(cells, self.source, self.drafts, closed=closed)
        return [place for place, (home, _) in enumerate(homes) if home == name]

    def left(self, places: Iterable[int]) -> list[Draft]:
        return [self.drafts[place] for place in places if place not in self.accepted]

    def digest(self, places: Iterable[int]) -> bytes:
        """What must be the same when it is repeated. Instants need not: they may be computed each time."""
        some = (self.drafts[place] for place in sorted(places))
        fields = [(draft.queue, draft.kind, draft.key, draft.subject, draft.tenant, draft.body) for draft in some]
        return hashlib.blake2b(_encode(fields), digest_size=16).digest()


class Sources:
    """Checkpoints of sources, and batches of their drafts."""

    def __init__(self, group: CellGroup) -> None:
        self._group: Final = group

    def ingested(self, source: str) -> Checkpoint | None:
        self._group.check_open()
        return self._home(source).ingested(source)

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        """`HalfIngested`: an interrupted batch of the source has to be finished first."""
        self._group.check_open()
        closed = False
        while True:
            batch = _Batch(source, before, after, drafts)
            home = self._home(source)
            if home.ingested(source) != before:
                return None
            try:
                return self._ingest(batch, home, closed)
            except _Outdated:
                continue
            except (HalfIngested, Invalid):
                if home.ingested(source) != before:
                    return None
                raise
            except QueueFull as full:
                if full.limit > 0 or closed:
                    raise
                self._group.refresh()
                closed = True

    def _home(self, source: str) -> Cell:
        founders = self._group.agreement.founders
        return self._group.named(max(founders, key=lambda name: hashlib.sha256(f"{name}/{source}".encode()).digest()))

    def _ingest(self, batch: _Batch, home: Cell, closed: bool) -> Tally | None:
        cells = self._group.map
        parts = self._parts(batch, home, cells, closed)
        last = parts.pop(home, _Part())
        if parts and _position(batch.after) <= _position(batch.before):
            reason = f"it goes from {batch.before} to {batch.after}, with drafts of several cells"
            raise Invalid(f"source {batch.source!r}", reason, "count batch, or the drafts taken of it, upwards")
        marks = {cell: cell.ingested(batch.source + _SUFFIX) for cell in parts}
        for cell, mark in marks.items():
            self._review(cell, mark, batch, cells)
        chosen = _Chosen(cells.version, closed)
        for cell, part in parts.items():
            if part.moved and _position(marks[cell]) < _position(batch.after):
                nothing = _Chosen(cells.version, closed, nothing=True)
                marks[cell], _ = self._accept(cell, marks[cell], batch, nothing, [])
        tally = Tally(len(batch.drafts))
        for cell, part in (*parts.items(), (home, last)):
            tally = tally.plus(self._recognized(cell, batch, part.known))
        for cell, part in parts.items():
            if batch.left(part.current):
                _, found = self._accept(cell, marks[cell], batch, chosen, part.current)
                tally = tally.plus(Tally(0, found.duplicates, found.merged))
        final = home.ingest(batch.source, batch.before, batch.after, batch.left(last.current))
        return None if final is None else tally.plus(Tally(0, final.duplicates, final.merged))

    def _parts(self, batch: _Batch, home: Cell, cells: CellMap, closed: bool) -> dict[Cell, _Part]:
        """What each cell has to do. Cells that queues have left are among them, for as long as batches are repeated."""
        parts: dict[Cell, _Part] = {}
        reached = {cell.name for cell in self._group.cells}
        now: Instant | None = None
        for place, (name, moves) in enumerate(sourced(cells, batch.source, batch.drafts, closed=closed)):
            parts.setdefault(self._group.named(name), _Part()).current.append(place)
            for move in moves:
                if move.step is Step.LEFT:
                    now = home.now() if now is None else now
                    if move.source not in reached or now - move.since > _REPEATED_WITHIN:
                        continue
                part = parts.setdefault(self._group.named(move.source), _Part())
                part.moved.append(place)
                if move.step is not Step.LEFT and (batch.drafts[place].key is not None or move.merges):
                    part.known.append(place)
        return parts

    def _review(self, cell: Cell, mark: Checkpoint | None, batch: _Batch, cells: CellMap) -> None:
        """Find out which drafts the cell has accepted in an earlier attempt."""
        if mark is None:
            return
        found = _Mark.read(mark)
        if any(each.version > cells.version for each in found.chosen):
            self._follow(cell, max(each.version for each in found.chosen))
        if _position(mark) <= _position(batch.before):
            return
        if _position(mark) != _position(batch.after):
            raise HalfIngested(batch.source, cell.name, mark.batch, mark.taken)
        places = self._chosen(cell, batch, found.chosen)
        if batch.digest(places) != found.digest:
            reason = f"cell {cell.name} has other drafts of it up to batch {mark.batch}, draft {mark.taken}"
            raise Invalid(f"source {batch.source!r}", reason, "repeat the same drafts, or use another source for these")
        batch.accepted |= places

    def _follow(self, cell: Cell, version: int) -> None:
        self._group.refresh()
        if self._group.map.version < version:
            reason = f"a source was written by version {version} of the map, which no cell that answers has"
            raise StoreFailed(f"cell {cell.name}", reason, "repeat it when all cells answer")
        raise _Outdated

    def _chosen(self, cell: Cell, batch: _Batch, chosen: Iterable[_Chosen]) -> set[int]:
        """Places of the drafts that belong to the cell by these maps."""
        places = set[int]()
        for each in chosen:
            if not each.nothing:
                places.update(batch.belonging_to(self._group.agreement.version(each.version), each.closed, cell.name))
        return places

    def _accept(
        self, cell: Cell, mark: Checkpoint | None, batch: _Batch, chosen: _Chosen, places: Sequence[int]
    ) -> tuple[Checkpoint, Tally]:
        """Drafts of a cell that is not the home of the source; its mark is at the end of the batch then."""
        earlier = _Mark.read(mark).chosen if mark and _position(mark) == _position(batch.after) else ()
        together = tuple(dict.fromkeys((*earlier, chosen)))
        digest = batch.digest(self._chosen(cell, batch, together))
        moved = Checkpoint(batch.after.batch, batch.after.taken, _encode(_Mark(together, digest)))
        found = cell.ingest(batch.source + _SUFFIX, mark, moved, batch.left(places))
        if found is None:
            raise _Outdated
        return moved, found

    def _recognized(self, cell: Cell, batch: _Batch, places: Iterable[int]) -> Tally:
        """Duplicates and merges of jobs in a cell that the queue has left; the others are accepted elsewhere."""
        tally = Tally()
        for place in places:
            if place not in batch.accepted and (receipt := cell.offer([batch.drafts[place]])[0]) is not None:
                batch.accepted.add(place)
                tally = tally.plus(Tally(0, receipt.duplicate, receipt.merged))
        return tally


def _position(checkpoint: Checkpoint | None) -> tuple[float, int]:
    return (-inf, 0) if checkpoint is None else (checkpoint.batch, checkpoint.taken)
