"""`CellsStore`: every verb of the contract over several stores. It routes and merges, and has no rule of its own.

What is atomic in one store is atomic in one cell. A call whose items live in several cells is done cell by cell, and
`PartlyDone` says which items are done when one of them fails.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Final, TypeAlias

from forebay.core.errors import Invalid, StoreFailed
from forebay.core.job import Job
from forebay.store.backend import Backend
from forebay.store.cells.agreement import Agreement, MapLog
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.cell_map import CellAddress, CellMap
from forebay.store.cells.control import Control
from forebay.store.cells.guard import Guard
from forebay.store.cells.jobs import Jobs
from forebay.store.cells.observing import Observing
from forebay.store.cells.sources import Sources
from forebay.store.cells.waiting import Waiting
from forebay.store.protocol import Capabilities, Store
from forebay.store.shell import Shell


class CellsBackend:
    """The verbs of all parts; these share one group of cells."""

    def __init__(self, group: CellGroup) -> None:
        self.group: Final = group
        jobs, control, waiting, sources = Jobs(group), Control(group), Waiting(group), Sources(group)
        self._observing = observing = Observing(group)
        self.close, self.now = group.close, observing.now
        self.enqueue, self.wait_for_room = jobs.enqueue, jobs.wait_for_room
        self.ingested, self.ingest, self.replace_dead = sources.ingested, sources.ingest, jobs.replace_dead
        self.promote, self.claim, self.extend = jobs.promote, jobs.claim, jobs.extend
        self.settle, self.overdue, self.report_progress = jobs.settle, jobs.overdue, jobs.report_progress
        self.get, self.cancel, self.redrive = jobs.get, jobs.cancel, jobs.redrive
        self.purge_dead, self.purge = jobs.purge_dead, jobs.purge
        self.browse, self.backlog, self.queues = observing.browse, observing.backlog, observing.queues
        self.totals, self.specs, self.gates = observing.totals, observing.specs, observing.gates
        self.hold, self.ahead = observing.hold, observing.ahead
        self.schedules, self.workers = observing.schedules, observing.workers
        self.ledger, self.ledger_extent = observing.ledger, observing.ledger_extent
        self.ledger_rule, self.put_ledger_rule = observing.ledger_rule, observing.put_ledger_rule
        self.trim_ledger = observing.trim_ledger
        self.put_spec, self.pause = control.put_spec, control.pause
        self.set_gate, self.release = control.set_gate, control.release
        self.put_schedule, self.drop_schedule, self.fire = control.put_schedule, control.drop_schedule, control.fire
        self.announce, self.withdraw = control.announce, control.withdraw
        self.append, self.read = control.append, control.read
        self.commit, self.position = control.commit, control.position
        self.extent, self.offset_at, self.trim = control.extent, control.offset_at, control.trim
        self.own, self.disown, self.groups = control.own, control.disown, control.groups
        self.wait, self.wait_ended = waiting.wait, waiting.wait_ended
        self.wait_cancel_requests = waiting.wait_cancel_requests

    @property
    def capabilities(self) -> Capabilities:
        return self._observing.capabilities


class CellsStore(Shell[CellsBackend]):
    """Several stores as one."""

    def cells(self) -> dict[str, Store]:
        """Each cell as a store by itself, with the ids that all cells use."""
        return dict(self._cells)

    def home(self, job_id: int) -> Store | None:
        """The cell of a job, likewise; None: no cell has such ids."""
        cell = self.backend.group.home(job_id)
        return None if cell is None else self._cells[cell.name]

    def held_by(self, job: Job) -> str | None:
        """The cell that the job's queue leaves, if no job of its own cell starts before that one is empty."""
        cell, move = self.backend.group.home(job.id), self.backend.group.map.move(job.queue)
        may_start = move is None or cell is None or cell.name in self.backend.group.map.claimable(job.queue)
        return None if may_start or move is None else move.source

    @cached_property
    def _cells(self) -> dict[str, Store]:
        return {cell.name: Shell(cell) for cell in self.backend.group.cells}


NewGuard: TypeAlias = Callable[[str, float | None, Callable[[], object]], Guard]
"""The guard of a cell, from its name, its deadline and its probe."""


def open_cells(
    cells: CellMap,
    addresses: Mapping[str, CellAddress],
    open_cell: Callable[[str], Backend],
    new_guard: NewGuard = Guard,
) -> CellsStore:
    """Open every cell, and agree on the map; where one refuses, none is used."""
    members: list[Cell] = []
    try:
        backends = {name: _opened(name, address, open_cell) for name, address in addresses.items()}
        logs = {name: MapLog(name, backend) for name, backend in backends.items()}
        agreement = Agreement(cells, logs)
        for name, address in addresses.items():
            probe = partial(agreement.probe, logs[name])
            guard = new_guard(name, address.deadline, probe)
            members.append(Cell(name, cells.cells[name], backends[name], guard))
        agreement.open()
    except BaseException:
        for cell in members:
            cell.close()
        raise
    for cell in members:
        cell.guard.start()
    return CellsStore(CellsBackend(CellGroup(agreement, members)))


def _opened(name: str, address: CellAddress, open_cell: Callable[[str], Backend]) -> Backend:
    try:
        backend = open_cell(address.url)
        backend.now()
    except (Invalid, StoreFailed) as error:
        raise StoreFailed(f"cell {name}", error.reason, "every cell has to answer when the cells are opened") from error
    return backend
