"""How far a lake has read the ledger of its store, or the ledger of each cell, and what the next micro-batch adds.

The lake of a single store has the offsets of its ledger. In a lake of several cells an offset counts the records of all
cells in the order in which they were added: a section of one cell follows a section of another, so the records of a
cell, and with them the events of a job, keep their order. The commit that adds a section has the offset that each cell
has reached as an application transaction (`cell/NUMBER`), so no record of a cell is added twice or left out.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from forebay.core.errors import Invalid, StoreFailed
from forebay.spark.lake import Contents, LakeTable, identity
from forebay.spark.options import Reading
from forebay.spark.tails import CellsTail, Tail, open_tail

_MAX_EVENTS: Final = 2_000_000
_MAX_RECORDS: Final = 500_000
"""Bounds of a micro-batch."""


class SectionPosition(Struct, frozen=True):
    """Of a lake in one ledger. `cell`: its number; None: the ledger of a single store. `first`, `following`: what the
    ledger holds. `reached`: the lake has the records below it; None: it has none."""

    partition: int
    cell: int | None
    name: str
    first: int
    following: int
    reached: int | None

    @property
    def start(self) -> int:
        return self.first if self.reached is None else self.reached

    @property
    def new(self) -> int:
        return max(0, self.following - self.start)


class Section(Struct, frozen=True):
    """[start, end) of one ledger. `shift`: from these offsets to those of the lake. `more`: the ledger goes on."""

    position: SectionPosition
    start: int
    end: int
    shift: int
    more: bool


class Positions(Struct, frozen=True):
    """`unread`: cells that did not answer, and why."""

    known: list[SectionPosition]
    unread: dict[str, str]
    names: dict[int, str]

    @property
    def new(self) -> int:
        return sum(each.new for each in self.known)

    @property
    def heads(self) -> dict[int, int]:
        """Where the ledgers end now, by partition."""
        return {each.partition: each.following for each in self.known}


def check_ledger(url: str, contents: Contents) -> Positions:
    """Where the lake is; `Invalid` when it cannot continue from the ledger."""
    tail = open_tail(Reading.of({"url": url, "table": "events"}))
    try:
        found = _positions(tail, contents.events)
    finally:
        tail.close()
    for each in found.known:
        if each.reached and each.first > each.reached:
            reason = f"offsets {each.reached} … {each.first - 1} were trimmed before the pipeline had read them"
            remedy = "start another lake, and keep more of the ledger: forebay ledger keep --help"
            raise Invalid(each.name, reason, remedy)
        if each.following < (each.reached or 0):
            reason = f"it ends at offset {each.following}, the lake at {each.reached}: {identity(url)} was replaced or"
            raise Invalid(each.name, f"{reason} restored", "start another lake")
    return found


def next_sections(
    reading: Reading, table: LakeTable, heads: Mapping[int, int] | None
) -> tuple[list[Section], Positions]:
    """What the next batch adds, not beyond `heads`. The bounds of a batch are divided among the cells."""
    tail = open_tail(reading)
    try:
        positions = _positions(tail, table)
        sections: list[Section] = []
        at = table.end
        for each in positions.known:
            following = each.following if heads is None else min(heads.get(each.partition, 0), each.following)
            if each.start >= following:
                continue
            share = max(1, len(positions.known))
            largest = min(following, each.start + max(1, _MAX_RECORDS // share))
            end = tail.within(each.partition, each.start, largest, max(1, _MAX_EVENTS // share))
            shift = 0 if each.cell is None else at - each.start
            sections.append(Section(each, each.start, end, shift, end < following))
            at = end + shift
    finally:
        tail.close()
    return sections, positions


def reached_by(sections: list[Section]) -> dict[str, int]:
    """The application transactions of the commit that adds these."""
    found: dict[str, int] = {}
    for each in sections:
        cell = each.position.cell
        if cell is not None:
            found[f"cell/{cell}"] = each.end
            if each.position.reached is None:
                found[f"cell/{cell}/first"] = each.start
    return found


def _positions(tail: Tail, table: LakeTable) -> Positions:
    if not isinstance(tail, CellsTail):
        ((first, following),) = tail.extents()
        return Positions([SectionPosition(0, None, "ledger", first, following, table.end or None)], {}, {})
    unread: dict[str, str] = {}
    known = list(_of_cells(tail, table, unread))
    if not known:
        raise StoreFailed("cells", "none of them answers: " + "; ".join(unread.values()), "start them")
    return Positions(known, unread, {cell.number: cell.name for cell in tail.cells})


def _of_cells(tail: CellsTail, table: LakeTable, unread: dict[str, str]) -> Iterator[SectionPosition]:
    for partition, cell in enumerate(tail.cells):
        coverage = table.coverage(cell.number)
        try:
            extent = tail.extent(partition)
        except StoreFailed as error:
            unread[cell.name] = str(error)
            continue
        reached = None if coverage is None else coverage.end
        yield SectionPosition(partition, cell.number, f"ledger of cell {cell.name}", *extent, reached)
