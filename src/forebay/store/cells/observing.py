"""What can be seen of all cells together. A cell that is down is left out, and `Capabilities.unsafe` names it.

Pages of jobs are the exception: a page that leaves out a cell would read as the end, so `browse` fails by name instead.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from forebay.core.instant import Instant
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.ids import LOCAL_BITS, cell_of
from forebay.store.protocol import Backlog, Capabilities, GateUse, Hold, Page, Query, Totals

_STATES: Final = ("waiting", "ready", "running", "done", "dead", "cancelled")
_COUNTS: Final = (*_STATES, "keys", "held", "blocked")


class Observing:
    """Reads that merge what the cells have."""

    def __init__(self, group: CellGroup) -> None:
        self._group: Final = group

    @property
    def capabilities(self) -> Capabilities:
        """What holds in every cell. Order is exact as long as no queue lives in several."""
        each = [cell.capabilities for cell in self._group.cells]
        unsafe = [
            f"{cell.name}: {setting}"
            for cell, has in zip(self._group.cells, each, strict=True)
            for setting in has.unsafe
        ]
        down = [f"{cell.name}: {cell.guard.down}" for cell in self._group.cells if cell.guard.down]
        exact = all(has.order == "exact" for has in each) and not any(self._group.map.partitioned())
        return Capabilities(
            name="cells",
            durable=all(has.durable for has in each),
            order="exact" if exact else "banded",
            processes="many" if all(has.processes == "many" for has in each) else "one",
            settle_memory=min(has.settle_memory for has in each),
            lease_grain=max(has.lease_grain for has in each),
            unsafe=(*unsafe, *down),
        )

    def now(self) -> Instant:
        """By the clock of the first cell that answers."""
        return self._group.first(lambda cell: cell.now())

    def browse(self, query: Query, after: int, limit: int) -> Page:
        """Ids of a cell follow each other, so pages go through the cells in the order of their numbers."""
        self._group.check_open()
        cells = self._group.cells if query.queue is None else self._group.of_queue(query.queue)
        ordered = sorted((cell for cell in cells if cell.number >= cell_of(after)), key=lambda cell: cell.number)
        page = Page([], None)
        for cell in ordered:
            found = cell.browse(query, after, limit - len(page.jobs))
            last = found.next is not None or cell is ordered[-1]
            page = Page([*page.jobs, *found.jobs], found.next if last else (cell.number + 1) << LOCAL_BITS)
            if found.next is not None or len(page.jobs) == limit:
                break
        return page

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        if queues is None:
            return _merged(each for page in self._group.each(lambda cell: cell.backlog(None)) for each in page)
        by_cell = self._group.of_queues(dict.fromkeys(queues))
        pages = self._group.each(lambda cell: cell.backlog(by_cell[cell]), list(by_cell))
        merged = {each.queue: each for each in _merged(each for page in pages for each in page)}
        empty = Backlog("", 0, 0, 0, 0, 0, 0, 0, None, 0)
        return [merged.get(queue) or replace(empty, queue=queue) for queue in queues]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        pages = self._group.each(lambda cell: cell.queues(after, limit, prefix))
        return sorted({name for page in pages for name in page})[:limit]

    def totals(self, limit: int) -> Totals:
        """The deepest of each cell, and all queues that live in several, are those that can be the deepest of all."""
        found = self._group.each(lambda cell: cell.totals(limit))
        spread = {*self._group.map.partitioned(), *self._group.map.moves}
        known = self._group.each(lambda cell: {name for name in spread if name in cell.queues("", 1, name)})
        several = set().union(*known)
        twice = sum(map(len, known)) - len(several)
        deepest = self.backlog(sorted(several.union(each.queue for total in found for each in total.deepest)))
        deepest.sort(key=lambda each: (-each.depth, -each.dead, each.queue))
        sums = {name: sum(getattr(total, name) for total in found) for name in _STATES}
        return Totals(deepest[:limit], sum(total.queues for total in found) - twice, **sums)

    def specs(self) -> list[QueueSpec]:
        """From the cells in which a queue lives: the cell that it left has it as closed."""
        self._group.check_open()
        placement = self._group.map.placement
        specs = ((cell, spec) for cell in self._group.cells for spec in cell.specs())
        found = {spec.name: spec for cell, spec in specs if cell.name in placement(spec.name).distinct}
        return [found[name] for name in sorted(found)]

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        merged: dict[str, GateUse] = {}
        for page in self._group.each(lambda cell: cell.gates(after, limit, prefix)):
            for gate in page:
                other = merged.get(gate.name)
                merged[gate.name] = gate if other is None else replace(gate, used=gate.used + other.used)
        return [merged[name] for name in sorted(merged)][:limit]

    def hold(self, job_id: int) -> Hold | None:
        self._group.check_open()
        cell = self._group.home(job_id)
        return None if cell is None else cell.hold(job_id)

    def ahead(self, job_id: int) -> int | None:
        self._group.check_open()
        cell = self._group.home(job_id)
        return None if cell is None else cell.ahead(job_id)

    def schedules(self) -> list[Schedule]:
        found = (each for page in self._group.each(lambda cell: cell.schedules()) for each in page)
        return sorted(found, key=lambda schedule: schedule.name)

    def workers(self, after: str, limit: int) -> list[Presence]:
        """A worker of several cells as it was seen last."""
        found: dict[str, Presence] = {}
        for page in self._group.each(lambda cell: cell.workers(after, limit)):
            for worker in page:
                other = found.get(worker.owner)
                if other is None or worker.seen_at > other.seen_at:
                    found[worker.owner] = worker
        return [found[owner] for owner in sorted(found)][:limit]

    # -- the ledger: each cell has its own. Of several there is no order, so the whole has none: off, and empty.

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        only = self._only()
        return [] if only is None else only.ledger(after, limit)

    def ledger_extent(self) -> tuple[int, int]:
        only = self._only()
        return (0, 0) if only is None else only.ledger_extent()

    def ledger_rule(self) -> LedgerRule:
        only = self._only()
        return LedgerRule(on=False) if only is None else only.ledger_rule()

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._group.check_open()
        for cell in self._group.cells:
            cell.put_ledger_rule(rule)

    def trim_ledger(self, limit: int) -> int:
        self._group.check_open()
        gone = 0
        for cell in self._group.cells:
            if gone < limit:
                gone += cell.trim_ledger(limit - gone)
        return gone

    def _only(self) -> Cell | None:
        self._group.check_open()
        return self._group.cells[0] if len(self._group.cells) == 1 else None


def _sum(one: Backlog, two: Backlog) -> Backlog:
    counts = {name: getattr(one, name) + getattr(two, name) for name in _COUNTS}
    paused = max((at for at in (one.paused_until, two.paused_until) if at is not None), default=None)
    return replace(one, **counts, oldest_age=max(one.oldest_age, two.oldest_age), paused_until=paused)


def _merged(backlogs: Iterable[Backlog]) -> list[Backlog]:
    """By name; a queue is paused where one of its cells is, since an operator pauses all of them."""
    merged: dict[str, Backlog] = {}
    for each in backlogs:
        other = merged.get(each.queue)
        merged[each.queue] = each if other is None else _sum(each, other)
    return [merged[name] for name in sorted(merged)]
