"""A run over cells: up to 64 store processes, links that are cut, queues that move, and the checks of every run.

Besides those, caps and rates are checked over all cells in the order of their records: while a queue that has them
moves, no job of its target starts before the source has finished. When all has healed, every move must have come to
its last step but one: what remains are dead letters and results.
"""

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from forebay.core.instant import seconds
from forebay.core.policy import AtMost, Routing
from forebay.core.spec import QueueSpec
from forebay.store.cells.cell_map import Step
from forebay_proof.checkers import caps, rates
from forebay_proof.sim.actors import QUEUES, QUICK, chosen_queues
from forebay_proof.sim.cells import CellsConnection, CellStores, cut, slow
from forebay_proof.sim.connection import ProcessStore
from forebay_proof.sim.faults import PLANNED_OF_CELLS, Kind
from forebay_proof.sim.moves import MoverSlot
from forebay_proof.sim.simulation import PATIENCE, Simulation
from forebay_proof.sim.store_process import StoreProcess
from forebay_proof.sim.worker import SimContext
from forebay_proof.sim.world import SECOND, Process

MAX_CELLS: Final = 64
_KEYS: Final = seconds(60)
_TENANTS: Final = QueueSpec(name="tenants", eligibility=AtMost(2, per="tenant"), routing=Routing(3, QUICK))
_PARTITIONED: Final = {
    "plain": 'by = "key"',
    "order": 'by = "subject", keys = "cell"',
    "latest": 'by = "subject", keys = "cell"',
    "tenants": 'by = "tenant", keys = "cell"',
}
"""Queues that may be spread over several cells, and by what."""


class CellsContext(SimContext):
    """What the users of the cells share."""

    stores: CellStores

    def can_start(self) -> bool:
        return self.stores.up

    def connect(self, process: Process) -> ProcessStore:
        return CellsConnection(self.world, self.stores, self.faults, self.evidence, process)


class CellsSimulation(Simulation):
    """One run over cells."""

    planned = PLANNED_OF_CELLS
    ticks_more = 15 * SECOND

    def __init__(self, seed: int, duration: int, chosen: Collection[Kind] | None, keep: bool, cells: int) -> None:
        self._count = cells
        # The more cells, the more has to happen for something to happen in each.
        self._scale = max(1.0, cells**0.5 / 2)
        self.per_call = 0.4 / cells
        # More cells have more jobs, and caps and rates of whole queues are as narrow as before.
        self.patience = PATIENCE + 6 * SECOND * cells
        self.workers = (3, 4)
        self.max_producers = 3
        super().__init__(seed, duration, chosen, keep)
        self.faults.profile = replace(self.faults.profile, pause=self.faults.profile.pause / self._scale)
        around, stores = self._around, self.stores
        together = [names for names in self._together if names]
        self.movers = [MoverSlot(number, around, stores, together) for number in range(self.world.between(1, 2))]

    def _build(self) -> tuple[CellStores, SimContext]:
        world = self.world
        specs = chosen_queues([*world.random.sample([*QUEUES[:-1], _TENANTS], world.between(3, 5))])
        specs = [replace(spec, key_window=_KEYS) if spec.unique is None else spec for spec in specs]
        stores = self.stores = CellStores(world, self._file(specs))
        around = self._around = CellsContext(
            world, stores, self.faults, self.evidence, tuple(spec.name for spec in specs)
        )
        around.stores = stores
        around.tenants = ("big", "small", *(f"t{number}" for number in range(2 * self._count)))
        around.subjects = max(2, self._count)
        around.pauses = tuple(each / max(1, self._count / 6) for each in around.pauses)
        around.repeats = 0.2
        around.edits_slots = False
        around.specs = specs
        around.leases = (4, 6, 8)
        for spec in specs:
            stores.store.put_spec(spec)
        return stores, around

    def _file(self, specs: Collection[QueueSpec]) -> str:
        """The file of cells that all processes have. Queues that belong together live and move together."""
        world = self.world
        names = [f"c{number}" for number in range(self._count)]
        lines = [
            f"[cells.{name}]\nnumber = {number}\nurl = 'memory://{name}'\ndeadline = 0.3"
            for number, name in enumerate(names)
        ]
        lines += ["[queues]", '"*" = "c0"']
        tied = {spec.name for spec in specs if spec.is_broker}
        tied.update(route.queue for spec in specs if spec.fan_out is not None for route in spec.fan_out.routes)
        self._together = [sorted(tied)]
        shared = world.random.choice(names)
        for spec in specs:
            by = None if spec.name in tied else _PARTITIONED.get(spec.name)
            if spec.name not in tied:
                self._together.append([spec.name])
            if by is not None and self._count > 1 and world.chance(0.8):
                cells = names if world.chance(0.5) else world.random.sample(names, world.between(2, self._count))
                partitions = len(cells) * world.between(1, 2)
                lines.append(f"{spec.name} = {{ partitions = {partitions}, {by}, cells = {cells} }}")
            else:
                lines.append(f'{spec.name} = "{shared if spec.name in tied else world.random.choice(names)}"')
        return "\n".join(["version = 1", *lines])

    def _struck(self) -> StoreProcess:
        return self.world.random.choice(list(self.stores.processes.values()))

    def _happen(self, kind: Kind) -> bool:
        world, stores = self.world, self.stores
        name = world.random.choice(list(stores.processes))
        duration = world.between(SECOND // 2, 8 * SECOND)
        match kind:
            case Kind.PARTITION:
                process = world.random.choice(self._processes())
                cut(stores, stores.link(process.name, name), duration, hangs=world.chance(0.5))
                world.record(f"{process.name} is cut off from {name}, {duration}")
            case Kind.SLOW_CELL:
                slow(stores, name, duration, [process.name for process in self._processes()])
                world.record(f"{name} is slow, {duration}")
            case Kind.JUMP:
                world.skew += world.between(SECOND // 5, 6 * SECOND)
                world.jumped_at = world.now
                world.trouble.append((world.now, world.now + 10 * SECOND))
            case _:
                return super()._happen(kind)
        return True

    def _processes(self) -> list[Process]:
        return [*super()._processes(), *(slot.mover for slot in self.movers)]

    def _end(self) -> None:
        world = self.world
        super()._end()
        cells = self.stores.agreed
        for queue in cells.moves:
            if (move := cells.move(queue)) is not None and move.step is not Step.LEAVING:
                world.violation("a move ends", f"{queue} from {move.source} to {move.target} is still {move.step}")
        changes = self.stores.changes()
        for violation in (*caps(changes), *rates(changes)):
            world.violation("caps and rates of all cells", str(violation))
