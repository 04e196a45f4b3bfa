"""Cells that a test can stop and start: SQLite files behind a backend that fails while it is down."""

from pathlib import Path
from typing import Any, cast

import pytest

from forebay.core.errors import StoreFailed
from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.events import Event, EventFilter, EventReader, EventStream, Since
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import read_cells
from forebay.store.cells.store import CellsStore, open_cells
from forebay.store.protocol import Want
from tests.stores import openers
from tests.waiting import eventually

QUEUES = {"a": "a-jobs", "b": "b-jobs"}


class Breakable:
    """The backend of a cell, which fails while `down` is set."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if self.down and name not in ("close", "capabilities"):
            raise StoreFailed("the store", "connection refused", "start it")
        return getattr(self._backend, name)


class Fleet:
    """SQLite files as the cells a (0) and b (1), with a queue each."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "cells.toml"
        urls = {name: f"sqlite:///{directory}/{name}.db" for name in QUEUES}
        self.file.write_text(openers.cells_file(urls, ["a"], "".join(f'{q} = "{c}"\n' for c, q in QUEUES.items())))
        self.backends: dict[str, Breakable] = {}
        self.store = self._open()

    def _open(self) -> CellsStore:
        def opened(url: str) -> Backend:
            backend = self.backends[url[-4:-3]] = Breakable(openers.unsynced(url, None))
            return cast(Backend, backend)

        return open_cells(*read_cells(self.file.read_text(), "cells.toml"), opened)

    def work(self, cell: str, count: int) -> list[int]:
        """So many jobs of a cell, from their acceptance to their end."""
        queue = QUEUES[cell]
        ids = [receipt.id for receipt in self.store.enqueue([Draft("work", queue=queue) for _ in range(count)])]
        leases = self.store.claim([Want(queue, count)], "w", minutes(5))
        assert len(self.store.settle([(lease, Ack()) for lease in leases])) == count
        return ids

    def stop(self, cell: str) -> None:
        self.backends[cell].down = True
        with pytest.raises(StoreFailed):
            self.store.cells()[cell].ledger_extent()

    def start(self, cell: str) -> None:
        self.backends[cell].down = False
        eventually(lambda: not self.store.capabilities.unsafe, f"cell {cell} is used again")

    def events(self, since: Since) -> list[Event]:
        return list(EventStream(EventReader(self.store, EventFilter(), since), follow=False))
