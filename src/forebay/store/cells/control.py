"""Specs, gates, schedules, presences and logs over cells: each goes to the cells of its queue."""

from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, TypeVar

from msgspec.structs import replace

from forebay.core.errors import Invalid, QueueMoved, StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft
from forebay.core.policy import Moved
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.cell_map import CellMap, Step
from forebay.store.cells.promises import check_promises

P = ParamSpec("P")
T = TypeVar("T")
_MAX_PUTS: Final = 5
"""How often a spec is put anew, because a newer map was agreed on meanwhile."""


def closed(spec: QueueSpec, version: int) -> QueueSpec:
    """The spec in a cell that the queue has left. A broker holds no jobs; the queues of its routes are closed."""
    return spec if spec.is_broker else replace(spec, capacity=Moved(version=version))


def put_open(cell: Cell, spec: QueueSpec, version: int) -> None:
    """Put a spec in a cell in which the queue is by this version of the map, also if it had left that cell before.

    The cell refuses if a newer version than this one has closed it.
    """
    try:
        cell.put_spec(spec)
    except QueueMoved:
        cell.put_spec(replace(spec, capacity=Moved(version=version, released=True)))
        cell.put_spec(spec)


def _at_home(verb: Callable[Concatenate[Cell, str, P], T]) -> Callable[Concatenate["Control", str, P], T]:
    """A verb of a log, in its cell."""

    def call(self: "Control", log: str, /, *args: P.args, **options: P.kwargs) -> T:
        self._group.check_open()
        return verb(self._group.of_queue(log)[0], log, *args, **options)

    return call


class Control:
    """What operators and applications declare."""

    append, read, commit = _at_home(Cell.append), _at_home(Cell.read), _at_home(Cell.commit)
    position, extent, offset_at = _at_home(Cell.position), _at_home(Cell.extent), _at_home(Cell.offset_at)
    trim, groups = _at_home(Cell.trim), _at_home(Cell.groups)
    own, disown = _at_home(Cell.own), _at_home(Cell.disown)

    def __init__(self, group: CellGroup) -> None:
        self._group: Final = group

    def put_spec(self, spec: QueueSpec) -> None:
        """In every cell of the queue, by the map that is agreed on at the end. A put that failed halfway is repeated.

        A cell that the queue leaves stays closed: it refuses what was put by an older map, which is why its log has the
        newer one before it is closed.
        """
        self._group.check_open()
        for _ in range(_MAX_PUTS):
            cells = self._group.map
            check_promises(spec, cells, (each for cell in self._group.cells for each in cell.specs()))
            try:
                self._put_spec(spec, cells)
            except QueueMoved as moved:
                self._follow(moved)
                continue
            for name in cells.homes(spec.name):
                self._group.named(name).guard.probe()
            if self._group.map.version == cells.version:
                return
        reason = f"the map of cells changed in each of {_MAX_PUTS} attempts to put its spec"
        raise StoreFailed(f"queue {spec.name}", reason, "call it again")

    def _follow(self, moved: QueueMoved) -> None:
        """The map by which a cell was closed is in that cell, or, if its mover was stopped, at least in one of them."""
        self._group.refresh()
        if self._group.map.version < moved.version:
            if all(cell.guard.down is None for cell in self._group.cells):
                raise moved
            reason = f"it has left a cell by version {moved.version} of the map, which no cell that answers has"
            raise StoreFailed(moved.field, reason, "call it again when all cells answer") from moved

    def _put_spec(self, spec: QueueSpec, cells: CellMap) -> None:
        move = cells.move(spec.name)
        for name in cells.homes(spec.name):
            cell = self._group.named(name)
            if move is None or name != move.source:
                put_open(cell, spec, cells.version)
                continue
            if move.step is Step.CLOSING:
                with suppress(QueueMoved):
                    cell.put_spec(spec)
                    continue
            cell.put_spec(closed(spec, cells.version))

    def pause(self, queue: str, until: Instant | None) -> None:
        self._group.check_open()
        for cell in self._group.of_queue(queue):
            cell.pause(queue, until)

    def set_gate(self, name: str, limit: int | None) -> None:
        for cell in self._of_gate(name):
            cell.set_gate(name, limit)

    def release(self, gate: str, count: int) -> int:
        """Queues with the same condition live in the same cells, so the ranks of one cell decide."""
        released = 0
        for cell in self._of_gate(gate):
            if released < count:
                released += cell.release(gate, count - released)
        return released

    def _of_gate(self, name: str) -> list[Cell]:
        """The cells of the gate's queue; all of them where queues may share it."""
        self._group.check_open()
        sort, queue = name.split("/")[:2]
        return self._group.cells if sort == "until" or queue.startswith("@") else self._group.of_queue(queue)

    # -- schedules

    def put_schedule(self, schedule: Schedule) -> None:
        """In the cell of its draft. Where an edit moves it, it is paused elsewhere first: it never fires in two."""
        self._group.check_open()
        self._group.refresh()
        home = self._home(schedule.draft)
        left: list[Cell] = []
        for cell in self._group.cells:
            known = next((each for each in cell.schedules() if each.name == schedule.name), None)
            if known is not None and cell is not home:
                known = cell.stop_schedule(known)
                schedule = edited(known, schedule, known.last_at)
                left.append(cell)
        home.put_schedule(schedule)
        for cell in left:
            cell.drop_schedule(schedule.name)

    def drop_schedule(self, name: str) -> bool:
        self._group.check_open()
        return sum(cell.drop_schedule(name) for cell in self._group.cells) > 0

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        """In the cell that has the schedule; the others do not know it."""
        cells = self._group.cells if draft is None else self._group.of_queue(draft.queue)
        if any(self._group.each(lambda cell: cell.fire(name, tick, next_at, draft), cells)):
            return True
        for cell in self._group.cells:
            if draft is not None and cell not in cells and any(each.name == name for each in cell.schedules()):
                self._group.refresh()
                if cell in self._group.of_queue(draft.queue):
                    return cell.fire(name, tick, next_at, draft)
                reason = f"it is kept in cell {cell.name!r}, where queue {draft.queue!r} does not live"
                raise Invalid(f"schedule {name}", reason, "put it with a draft for that queue")
        return False

    def _home(self, draft: Draft) -> Cell:
        return self._group.named(self._group.router.homes([draft])[0])

    # -- workers

    def announce(self, presence: Presence, duration: Duration) -> None:
        """In the cells of its queues that answer."""
        self._group.each(lambda cell: cell.announce(presence, duration), list(self._group.of_queues(presence.queues)))

    def withdraw(self, owner: str) -> bool:
        return any(self._group.each(lambda cell: cell.withdraw(owner)))
