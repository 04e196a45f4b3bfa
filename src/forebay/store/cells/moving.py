"""Moving house: a queue, or all that it has in one cell, goes to another cell while jobs flow.

Jobs do not move, drafts do: jobs that a cell has accepted finish there, under the ids that their producers know, and
new drafts go to the target. So nothing is copied that could be lost or run twice. The steps of a move (`Step`) are
versions of the agreed map; a move that was interrupted goes on from the last of them, and every step may be repeated.

1. The target gets spec, pause and operator's numbers; the map says closing. Drafts are offered to the source first.
2. Active schedules move: paused in the source, put into the target, dropped in the source.
3. The source is closed: its store refuses drafts in the transaction that would accept them, and specs that would open
   it again, whichever map their process has. Its log has the map of the move before. This is the instant that divides
   the jobs of the source from those of the target. The map says draining.
4. If the queue has an order, caps or rates (`held`), jobs of the target start once the source has no unfinished job
   and no unpaid start. The map says leaving. Keys are compared in the source until their window has ended.
5. Once no job is left, neither dead nor kept, the map says left, and the source is not visited any more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.errors import Invalid, QueueMoved
from forebay.core.humanize import format_duration
from forebay.core.instant import Duration, micros
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import Bounded, Moved, terms_of
from forebay.core.spec import QueueSpec
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.cell_map import OTHERS, CellMap, Move, Placement, Step
from forebay.store.cells.control import closed, put_open
from forebay.store.cells.promises import check_promises, shared_gates
from forebay.store.protocol import GateUse

_FOLLOWED_WITHIN: Final = 60_000_000
"""How long a queue stays away from a cell that it has left. A process reads the map every three seconds; one with an
older map would offer drafts with keys to that cell first, which were refused only as long as it was closed."""


class MoveState(Struct, frozen=True):
    """A move that is under way, and the jobs of its source.

    unfinished  those that are yet to run or running
    waiting     those of them that are not due, or behind the head of their line
    kept        all others: done, dead or cancelled
    window      for how long after the source was closed keys are compared there
    """

    queue: str
    source: str
    target: str
    step: Step
    unfinished: int
    waiting: int
    kept: int
    window: Duration


class _Overtaken(Exception):
    """Another mover has changed the move meanwhile."""


class Mover:
    """Changes the agreed map by moves. `reached` is called after each write, by its name: tests interrupt it there."""

    def __init__(self, group: CellGroup, reached: Callable[[str], None] = lambda _: None) -> None:
        self._group: Final = group
        self._reached = reached

    @property
    def _map(self) -> CellMap:
        return self._group.map

    def add(self, name: str) -> None:
        """Agree on a cell that the file has and the map has not."""
        cells = self._newest()
        if all(cell.name != name for cell in self._group.cells):
            raise Invalid(f"cell {name}", "the file does not have it", f"write [cells.{name}] into it first")
        if name in cells.cells:
            raise Invalid(f"cell {name}", f"it is in the agreed map, version {cells.version}", "nothing to do")
        number = self._cell(name).number
        if number in cells.cells.values():
            raise Invalid(f"cell {name}", f"number {number} belongs to another cell", "ids carry it: give a new number")
        self._publish("added", replace(cells, cells=cells.cells | {name: number}))

    def queues_in(self, name: str) -> list[str]:
        """Queues and logs that live in a cell, also those that only a schedule there names."""
        cell, after = self._cell(name), ""
        placed = {queue for queue, each in self._map.queues.items() if queue != OTHERS and name in each.cells}
        named = (each.draft.queue for each in cell.schedules())
        placed.update(queue for queue in named if name in self._map.placement(queue).cells)
        while page := cell.queues(after, MAX_BATCH, ""):
            placed.update(queue for queue in page if name in self._map.placement(queue).cells)
            after = page[-1]
        return sorted(placed)

    def start(self, queues: Sequence[str], source: str, target: str, *, allow_over: bool = False) -> None:
        """Begin to move what these queues have in a cell; a move that has begun already goes on."""
        cells = self._newest()
        moves = {queue: cells.move(queue) for queue in queues}
        begun = {queue for queue, move in moves.items() if move and (move.source, move.target) == (source, target)}
        if new := [queue for queue in queues if queue not in begun]:
            self._publish("closing", self._moved(cells, new, self._cell(source), self._cell(target), allow_over))

    def drain(self, source: str, target: str, *, allow_over: bool = False) -> None:
        """Begin to move all queues of a cell, and let new ones live in the target."""
        known = self._newest()
        others = known.queues[OTHERS]
        after = replace(others, cells=tuple(target if name == source else name for name in others.cells))
        cells = self._moved(known, self.queues_in(source), self._cell(source), self._cell(target), allow_over)
        cells = self._with_strays(replace(cells, queues=cells.queues | {OTHERS: after}), self._cell(source))
        if cells != known:
            self._publish("closing", cells)

    def split(self, queue: str, partitions: Sequence[int], target: str) -> None:
        """Place some partitions elsewhere, while their cell keeps others. No promise may depend on the partition."""
        known = self._newest()
        placement = known.placement(queue)
        if wrong := [number for number in partitions if not 0 <= number < len(placement.cells)]:
            reason = f"{wrong[0]} is not a partition in 0 … {len(placement.cells) - 1}"
            raise Invalid(f"queue {queue}", reason, "see its entry in the file of cells")
        cells = tuple(target if number in partitions else name for number, name in enumerate(placement.cells))
        spec = self._spec(queue, self._group.of_queue(queue)[0])
        if _held(spec) or spec.unique or placement.by == "key" or placement.keys == "cell":
            reason = f"it keeps order, caps, keys or merges by {placement.by}, which its cell counts"
            raise Invalid(f"queue {queue}", reason, "move all its partitions in a cell together: leave out --partition")
        if gone := set(placement.cells) - set(cells):
            raise Invalid(f"queue {queue}", f"none is left in cell {min(gone)}", "leave out --partition")
        moves = (*known.moves.get(queue, ()), *self._split(placement, partitions, target))
        queues = known.queues | {queue: replace(placement, cells=cells)}
        new = replace(known, queues=queues, moves=known.moves | {queue: moves})
        self._check(new)
        put_open(self._cell(target), spec, known.version)
        self._publish("split", new)

    def _split(self, placement: Placement, partitions: Sequence[int], target: str) -> Iterator[Move]:
        """Moves that are over at once: batches of sources that were interrupted before may be in the old cells."""
        for name in placement.distinct:
            left = tuple(number for number in partitions if placement.cells[number] == name != target)
            if left:
                yield Move(name, target, left, held=False, step=Step.LEFT, since=self._cell(name).now())

    def advance(self) -> list[MoveState]:
        """Take every step that can be taken now; the moves that are not over."""
        return [state for queue in self._newest().moves for state in self._advance(queue)]

    def _advance(self, queue: str) -> list[MoveState]:
        while (move := (cells := self._map).move(queue)) is not None:
            with suppress(_Overtaken):
                return list(self._steps(cells, queue, move))
        return []

    def _newest(self) -> CellMap:
        """The map to go on from. It may be followed by others meanwhile; a step from it is refused then."""
        self._group.refresh()
        return self._map

    def _moved(self, cells: CellMap, queues: Sequence[str], source: Cell, target: Cell, allow_over: bool) -> CellMap:
        """The map with new moves, which are prepared in the target. `allow_over`: see `_check_bound`."""
        version = cells.version
        specs = {queue: self._spec(queue, source) for queue in queues}
        for spec in specs.values():
            if isinstance(spec.capacity, Moved):
                reason = f"it is closed in cell {source.name}, though it is placed there"
                raise Invalid(f"queue {spec.name}", reason, "put its spec, which opens it, and move it then")
            if not allow_over:
                _check_bound(spec)
            cells = self._with_move(cells, spec, source, target)
        self._check(cells)
        for queue, spec in specs.items():
            put_open(target, spec, version)
            (backlog,) = source.backlog([queue])
            if backlog.paused_until is not None:
                target.pause(queue, backlog.paused_until)
            for gate in _gates(source, queue):
                if gate.given is not None:
                    target.set_gate(gate.name, gate.given)
        self._reached("prepared")
        return cells

    def _with_move(self, cells: CellMap, spec: QueueSpec, source: Cell, target: Cell) -> CellMap:
        queue, placement, under_way = spec.name, cells.placement(spec.name), cells.move(spec.name)
        held = _held(spec)
        if under_way is not None:
            command = f"forebay cells move {queue} --from {under_way.source} --to {under_way.target}"
            reason = f"it moves from cell {under_way.source} to {under_way.target}"
            raise Invalid(f"queue {queue}", reason, f"finish that move first: `{command}` shows what is left")
        if source is target or source.name not in placement.cells:
            reason = f"it is in {', '.join(placement.distinct)}, so it cannot move from {source.name}"
            raise Invalid(f"queue {queue}", f"{reason} to {target.name}", "name two cells, the first one of these")
        schedules = [each for each in source.schedules() if each.draft.queue == queue]
        if not schedules and queue not in cells.queues and queue not in source.queues("", 1, queue):
            raise Invalid(f"queue {queue}", f"cell {source.name} has no such queue", "see `forebay queues ls`")
        if spec.is_log:
            raise Invalid(f"queue {queue}", "a log cannot move: its readers count offsets of its cell", "keep it there")
        if gates := [*shared_gates(spec)]:
            raise Invalid(f"queue {queue}", f"it may share {gates[0]} with other queues", "give it gates of its own")
        if given := [
            gate.name for gate in _gates(source, queue) if gate.given is not None and gate.name[:5] == "rate/"
        ]:
            reason = f"gate {given[0]} has an operator's number, so whether its starts are paid is not known"
            raise Invalid(f"queue {queue}", reason, "restore the number of the spec, and move it then")
        left_at = max((each.since for each in cells.moves.get(queue, ()) if each.source == target.name), default=None)
        if left_at is not None and (ago := target.now() - left_at) < _FOLLOWED_WITHIN:
            reason = (
                f"it left cell {target.name} {format_duration(ago)} ago, and processes with that map offer drafts there"
            )
            raise Invalid(f"queue {queue}", reason, f"move it there {format_duration(_FOLLOWED_WITHIN)} after it left")
        if held and target.name in placement.cells:
            reason = f"it keeps order, caps or rates, and the jobs that it has in cell {target.name} would wait"
            raise Invalid(f"queue {queue}", reason, "move it to a cell in which it has no partition")
        partitions = tuple(number for number, name in enumerate(placement.cells) if name == source.name)
        active = tuple(each.name for each in schedules if not each.paused)
        move = Move(source.name, target.name, partitions, held, schedules=active, merges=spec.merge is not None)
        elsewhere = tuple(target.name if name == source.name else name for name in placement.cells)
        before = tuple(each for each in cells.moves.get(queue, ()) if each.source != target.name)
        return replace(
            cells,
            queues=cells.queues | {queue: replace(placement, cells=elsewhere)},
            moves=cells.moves | {queue: (*before, move)},
        )

    def _with_strays(self, cells: CellMap, source: Cell) -> CellMap:
        """With moves of queues that processes with an older map have begun in a cell since it takes no new ones."""
        moves = {}
        for backlog in source.backlog(None):
            home = cells.placement(backlog.queue).cells[0]
            if backlog.depth and source.name not in cells.homes(backlog.queue):
                spec = self._stray(backlog.queue, source, self._cell(home))
                moves[spec.name] = (Move(source.name, home, (0,), _held(spec), merges=spec.merge is not None),)
        return replace(cells, moves=cells.moves | moves) if moves else cells

    def _stray(self, queue: str, source: Cell, home: Cell) -> QueueSpec:
        """The spec in the home of the queue counts."""
        spec = next((spec for spec in home.read_specs() if spec.name == queue), None)
        if spec is not None:
            source.put_spec(spec)
        return self._spec(queue, source)

    def _check(self, cells: CellMap) -> None:
        """Refuse a map in which a promise of any queue would not hold."""
        found = (spec for cell in self._group.cells for spec in cell.read_specs())
        specs = {spec.name: spec for spec in found if not isinstance(spec.capacity, Moved)}
        for spec in specs.values():
            check_promises(spec, cells, specs.values())

    def _steps(self, cells: CellMap, queue: str, move: Move) -> Iterator[MoveState]:
        source, target = self._cell(move.source), self._cell(move.target)
        if move.step is Step.CLOSING:
            # The cell that is closed must have the map by which it is.
            self._group.agreement.publish(cells)
            self._move_schedules(move, queue, source, target)
            self._copy_spec(queue, source, target, cells.version)
            self._close(queue, source, cells.version)
            move = self._step(queue, move, replace(move, step=Step.DRAINING, since=source.now()))
        if move.step is Step.DRAINING:
            self._move_schedules(move, queue, source, target)
            self._close(queue, source, cells.version)
        # Read behind the closing: what was accepted before it counts.
        (backlog,) = source.backlog([queue])
        if move.step is Step.DRAINING:
            paid = not any(gate.used or gate.name.startswith("rate/") for gate in _gates(source, queue))
            if backlog.depth == 0 and (paid or not move.held):
                move = self._step(queue, move, replace(move, step=Step.LEAVING))
        kept = backlog.done + backlog.dead + backlog.cancelled
        window = micros(self._spec(queue, target).key_window)
        if move.step is Step.LEAVING:
            self._move_schedules(move, queue, source, target)
            if backlog.depth + kept == 0 and source.now() > move.since + window:
                self._step(queue, move, replace(move, step=Step.LEFT, since=source.now()))
                return
        yield MoveState(queue, move.source, move.target, move.step, backlog.depth, backlog.waiting, kept, window)

    def _move_schedules(self, move: Move, queue: str, source: Cell, target: Cell) -> None:
        for schedule in source.schedules():
            if schedule.draft.queue != queue:
                continue
            stopped = source.stop_schedule(schedule)
            self._reached("schedule paused")
            target.put_schedule(replace(stopped, paused=stopped.paused and stopped.name not in move.schedules))
            self._reached("schedule put")
            source.drop_schedule(schedule.name)

    def _copy_spec(self, queue: str, source: Cell, target: Cell, version: int) -> None:
        """What processes without the map of the move have put since the target was prepared; those with it put both."""
        copied = None
        while (spec := self._spec(queue, source)) != copied and not _is_closed(spec):
            if self._spec(queue, target) != spec:
                put_open(target, spec, version)
            copied = spec

    def _close(self, queue: str, source: Cell, version: int) -> None:
        spec = self._spec(queue, source)
        if not _is_closed(spec) and not spec.is_broker:
            try:
                source.put_spec(closed(spec, version))
            except QueueMoved:
                raise _Overtaken from None
            self._reached("closed")

    def _step(self, queue: str, known: Move, move: Move) -> Move:
        """From the map that has the move as it was read: another mover may have gone on with it since."""
        cells = self._newest()
        if cells.move(queue) != known:
            raise _Overtaken
        moves = (*(each for each in cells.moves[queue] if each.step is Step.LEFT), move)
        self._publish(move.step, replace(cells, moves=cells.moves | {queue: moves}))
        return move

    def _publish(self, name: str, cells: CellMap) -> None:
        self._group.agreement.publish(replace(cells, version=cells.version + 1))
        self._reached(name)

    def _cell(self, name: str) -> Cell:
        found = next((cell for cell in self._group.cells if cell.name == name), None)
        if found is None:
            known = ", ".join(cell.name for cell in self._group.cells)
            raise Invalid("cell", f"there is no cell {name!r}", f"the cells are {known}")
        return found

    def _spec(self, queue: str, cell: Cell) -> QueueSpec:
        return next((spec for spec in cell.read_specs() if spec.name == queue), QueueSpec(name=queue))


def _held(spec: QueueSpec) -> bool:
    """Whether jobs that run in two cells at once would break a promise."""
    return bool(terms_of(spec.eligibility)) or spec.merge is not None


def _check_bound(spec: QueueSpec) -> None:
    """The target counts its own jobs only, so both cells together may hold more than the bound."""
    if isinstance(spec.capacity, Bounded):
        reason = f"its bound of {spec.capacity.limit} counts only the jobs of the target while it moves"
        raise Invalid(f"queue {spec.name}", reason, "allow more for as long as the move takes: --allow-over")


def _is_closed(spec: QueueSpec) -> bool:
    return isinstance(spec.capacity, Moved) and not spec.capacity.released


def _gates(cell: Cell, queue: str) -> Iterator[GateUse]:
    after = ""
    while page := cell.gates(after, MAX_BATCH, ""):
        yield from (gate for gate in page if gate.name.split("/")[1] == queue)
        after = page[-1].name
