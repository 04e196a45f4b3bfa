"""Queues move between cells while everything else goes on, and movers are killed in the middle.

Promise: a mover is the real one of `forebay cells move`. After each of its writes others act before it goes on, and it
may be killed there, as by kill -9; a new one goes on with what the agreed map says. There may be two at once. Specs
that processes without the map of the move have put arrive late in the cell that the queue leaves.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from forebay.core.errors import Invalid, QueueMoved, StoreFailed
from forebay.store.cells.cell_map import Step
from forebay.store.cells.moving import Mover
from forebay_proof.sim.cells import CellStores, open_view
from forebay_proof.sim.faults import Kind
from forebay_proof.sim.worker import SimContext
from forebay_proof.sim.world import SECOND, Killed, Process, SteppedRole

_KILLED: Final = 0.15
_BEGINS: Final = 0.3


class SimMover(Process):
    """One process that moves queues."""

    def __init__(self, name: str, around: SimContext, stores: CellStores, queues: Sequence[Sequence[str]]) -> None:
        super().__init__(name)
        self._around = around
        self._world = around.world
        self._stores = stores
        self._queues = queues
        self._group = open_view(stores, around.faults, around.evidence, self).backend.group
        self._mover = Mover(self._group, self._reached)
        self.actor = SteppedRole(around.world, self, "mover", self._step)

    def _step(self) -> float:
        world = self._world
        if self._around.faults.allows(Kind.MOVE) and world.chance(_BEGINS):
            self._begin()
        self._mover.advance()
        return world.random.random() * 2

    def _begin(self) -> None:
        world, cells = self._world, self._group.map
        names = list(cells.cells)
        queues = world.random.choice(self._queues)
        source = world.random.choice(cells.placement(queues[0]).distinct)
        target = world.random.choice(names)
        world.record(f"moves {queues} from {source} to {target}")
        try:
            if world.chance(0.1):
                self._mover.drain(source, target, allow_over=True)
            else:
                self._mover.start(queues, source, target, allow_over=True)
        except Invalid as error:
            world.record(f"refused: {error}")

    def _reached(self, write: str) -> None:
        world, faults = self._world, self._around.faults
        world.record(f"wrote {write}")
        if write == Step.LEAVING:
            faults.count(Kind.MOVE)
        if write in (Step.DRAINING, Step.LEAVING) and faults.allows(Kind.LATE_SPEC):
            self._put_late(write)
        world.linger(self, world.between(0, SECOND // 5))
        if faults.allows(Kind.MOVE_KILL) and world.chance(_KILLED):
            faults.count(Kind.MOVE_KILL)
            world.record("the mover dies")
            self.alive = False
            raise Killed

    def _put_late(self, step: str) -> None:
        for spec in self._around.specs:
            move = self._group.map.move(spec.name)
            if move is None or move.step != step:
                continue
            cell = self._stores.processes[move.source]
            with suppress(QueueMoved, ConnectionError):
                cell.perform(partial(cell.store.backend.put_spec, spec))
            self._world.record(f"the spec of {spec.name} arrives late in {move.source}")
            self._around.faults.count(Kind.LATE_SPEC)


class MoverSlot:
    """A place for one mover after another."""

    def __init__(self, number: int, around: SimContext, stores: CellStores, queues: Sequence[Sequence[str]]) -> None:
        self._number = number
        self._around = around
        self._stores = stores
        self._queues = queues
        self._count = 0
        self.mover = self._start()

    def _start(self) -> SimMover:
        self._count += 1
        mover = SimMover(f"m{self._number}.{self._count}", self._around, self._stores, self._queues)
        mover.actor.start(self._around.world.between(0, 2 * SECOND))
        self._around.world.after(SECOND, self._watch)
        return mover

    def _watch(self) -> None:
        """A mover that was killed is followed by another."""
        if not self.mover.alive and self._around.can_start():
            with suppress(StoreFailed):
                self.mover = self._start()
                return
        self._around.world.after(SECOND, self._watch)
