"""Cells against the reference model: two and five memory stores, the queues of the model in the last of them."""

from forebay.store.backend import Backend
from forebay.store.cells.cell_map import read_cells
from forebay.store.cells.store import open_cells
from forebay.store.memory.store import MemoryBackend
from forebay.testing.clock import ManualClock
from forebay_proof.model.lockstep import OpenedStore
from forebay_proof.model.machine import StoreMachine
from tests.stores.histories import HISTORIES
from tests.stores.openers import cells_file


def open_some(count: int, clock: ManualClock) -> OpenedStore:
    names = [f"c{number}" for number in range(count)]

    def open_cell(_: str) -> Backend:
        return MemoryBackend(clock=clock)

    text = cells_file({name: f"memory://{name}" for name in names}, names[-1:])
    return OpenedStore(open_cells(*read_cells(text, "cells.toml"), open_cell), None, None, None)


def open_two(clock: ManualClock) -> OpenedStore:
    return open_some(2, clock)


def open_five(clock: ManualClock) -> OpenedStore:
    return open_some(5, clock)


TestTwoCells = StoreMachine.for_store(open_two).TestCase
TestTwoCells.settings = HISTORIES
TestFiveCells = StoreMachine.for_store(open_five).TestCase
TestFiveCells.settings = HISTORIES
