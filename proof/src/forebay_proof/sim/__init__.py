"""Deterministic simulation: the real worker roles and the real in-process store on a virtual clock, by seed.

    world           time, chance, the heap of events            actors      producers, an operator, queues, schedules
    store_process   the store process and its disk              faults      what goes wrong, and how often it did
    connection      requests and replies that get lost          evidence    what the simulation itself observed
    pool            handlers that follow their payloads         checks      what must hold, by name
    worker          one process made of real roles              simulation  one run from chaos to the last check
    cells           several stores, and links to each           moves       queues that move between them
    cells_simulation  one run over cells                        runs        `simulate`: one seed

`python -m forebay_proof.sim --seed 7` runs one seed; docs/internals/simulation.md lists what is simulated.
"""

from forebay_proof.sim.faults import Kind
from forebay_proof.sim.runs import simulate
from forebay_proof.sim.simulation import CHAOS_SECONDS, SeedResult

__all__ = ["CHAOS_SECONDS", "Kind", "SeedResult", "simulate"]
