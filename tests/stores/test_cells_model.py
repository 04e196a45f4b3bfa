"""Cells against the reference model: two and five memory stores, over which its queues are spread.

Queues that decide together live together: a broker and its routes, dead letters, shared gates and conditions. One queue
has partitions.
"""

from forebay.store.backend import Backend
from forebay.store.cells.cell_map import read_cells
from forebay.store.cells.store import open_cells
from forebay.store.memory.store import MemoryBackend
from forebay.testing.clock import ManualClock
from forebay_proof.model.lockstep import OpenedStore
from forebay_proof.model.machine import StoreMachine
from tests.stores.histories import HISTORIES
from tests.stores.openers import cells_file

_BESIDE_THE_BROKER = ("broker", "tight", "shed", "keep", "merge", "buried", "graves", "order")
_SHARING_GATES = ("dear", "stock", "paces", "turns", "until", "pace")


def open_some(count: int, clock: ManualClock) -> OpenedStore:
    names = [f"c{number}" for number in range(count)]

    def open_cell(_: str) -> Backend:
        return MemoryBackend(clock=clock)

    queues = "".join(
        [f'{queue} = "{names[0]}"\n' for queue in _BESIDE_THE_BROKER]
        + [f'{queue} = "{names[1]}"\n' for queue in _SHARING_GATES]
        + [f'unique = {{ partitions = 8, by = "key", cells = {names} }}\n']
    )
    text = cells_file({name: f"memory://{name}" for name in names}, names, queues)
    store = open_cells(*read_cells(text, "cells.toml"), open_cell)
    group = store.backend.group
    return OpenedStore(store, home=lambda draft: group.named(group.router.homes([draft])[0]).number)


def open_two(clock: ManualClock) -> OpenedStore:
    return open_some(2, clock)


def open_five(clock: ManualClock) -> OpenedStore:
    return open_some(5, clock)


TestTwoCells = StoreMachine.for_store(open_two).TestCase
TestTwoCells.settings = HISTORIES
TestFiveCells = StoreMachine.for_store(open_five).TestCase
TestFiveCells.settings = HISTORIES
