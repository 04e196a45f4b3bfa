"""`simulate`: one seed, over one store or over several cells."""

from collections.abc import Collection

from forebay.core.errors import Invalid
from forebay_proof.sim.cells_simulation import MAX_CELLS, CellsSimulation
from forebay_proof.sim.faults import Kind
from forebay_proof.sim.simulation import CHAOS_SECONDS, SeedResult, Simulation
from forebay_proof.sim.world import SECOND


def simulate(
    seed: int,
    *,
    cells: int = 0,
    chaos_seconds: float = CHAOS_SECONDS,
    chosen: Collection[Kind] | None = None,
    keep: bool = False,
) -> SeedResult:
    """Run one seed. `cells` 0: one store. `chosen`: only these faults. `keep`: the whole trace, not only its end."""
    if not 0 <= cells <= MAX_CELLS:
        raise Invalid("cells", f"{cells} is not in 0 … {MAX_CELLS}", "0 simulates one store")
    duration = int(chaos_seconds * SECOND)
    if cells:
        return CellsSimulation(seed, duration, chosen, keep, cells).run()
    return Simulation(seed, duration, chosen, keep).run()
