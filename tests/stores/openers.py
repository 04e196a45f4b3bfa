"""How tests open the stores of the project: on a clock that they turn themselves, and without waiting for a disk.

An opener that is called again opens the same state. Each is given a place of its own: a directory, or a database.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from unittest.mock import patch

from forebay.core.clock import Clock
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import read_cells
from forebay.store.cells.store import CellsStore, open_cells
from forebay.store.connection_pool import MAX_CONNECTIONS
from forebay.store.memory.disk import RealDisk
from forebay.store.memory.journaled import open_journaled
from forebay.store.postgres import session
from forebay.store.postgres.connect import PooledConnection, Server
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Store
from forebay.store.redis.store import RedisStore
from forebay.store.sqlite.store import SqliteStore
from forebay_proof.conformance import Opener
from forebay_proof.servers.redis import RedisServer


class UnsyncedDisk(RealDisk):
    """Real files without the flushes: no case cuts the power, and a thousand flushes take half a minute."""

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


def journaled(directory: Path) -> Opener:
    return lambda clock: open_journaled(str(directory / "journal"), clock=clock, disk=UnsyncedDisk())


@cache
def empty_database() -> bytes:
    """A file with our tables and no row. Copying it spares each case the migrations and their flushes."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "jobs.db")
        SqliteStore(str(path)).close()
        return path.read_bytes()


def sqlite(directory: Path) -> Opener:
    def opener(clock: Clock | None) -> Store:
        path = directory / "jobs.db"
        if not path.exists():
            path.write_bytes(empty_database())
        store = SqliteStore(str(path), clock=clock)
        store.backend.session.writer._connection.execute("PRAGMA synchronous = OFF")
        return store

    return opener


class LentServer(Server):
    """Its sessions go to the next store on the same database: in a new session every function is compiled again, which
    takes longer than most cases. One that is in a transaction, or broken, is closed."""

    _kept: ClassVar[defaultdict[str, list[PooledConnection]]] = defaultdict(list)

    @classmethod
    def end_sessions(cls) -> None:
        for kept in cls._kept.values():
            while kept:
                kept.pop().connection.close()

    def _open(self) -> PooledConnection:
        with suppress(IndexError):
            return self._kept[self.url].pop()
        return super()._open()

    def _close_connection(self, connection: PooledConnection) -> None:
        kept = self._kept[self.url]
        if self._closed and connection.idle and len(kept) < MAX_CONNECTIONS:
            kept.append(connection)
        else:
            super()._close_connection(connection)


def postgres(url: str) -> Opener:
    def opener(clock: Clock | None) -> Store:
        with patch.object(session, "Server", LentServer):
            return PostgresStore(url, clock=clock)

    return opener


def redis(url: str) -> Opener:
    return lambda clock: RedisStore(url, clock=clock)


def streams(server: RedisServer) -> Opener:
    return redis(server.url(delivery="streams"))


def cells(count: int, directory: Path) -> Callable[[Clock | None], CellsStore]:
    """SQLite files as cells, over which queues are spread by their names."""
    names = [f"c{number}" for number in range(count)]
    text = cells_file({name: f"sqlite:///{directory}/{name}.db" for name in names}, names)

    def opener(clock: Clock | None) -> CellsStore:
        for name in names:
            if not (path := directory / f"{name}.db").exists():
                path.write_bytes(empty_database())
        return open_cells(*read_cells(text, "cells.toml"), lambda url: unsynced(url, clock))

    return opener


def one_cell(directory: Path) -> Opener:
    """The second of two cells, as a store by itself."""
    opener = cells(2, directory)

    def open_one(clock: Clock | None) -> Store:
        store = opener(clock)
        one = store.cells()["c1"]
        setattr(one, "close", store.close)  # noqa: B010
        return one

    return open_one


def cells_file(urls: dict[str, str], others: list[str], queues: str = "") -> str:
    """A file of cells: their numbers are their places, and queues without an entry are spread over `others`."""
    cells = "".join(
        f"[cells.{name}]\nnumber = {place}\nurl = {url!r}\n" for place, (name, url) in enumerate(urls.items())
    )
    spread = f'"*" = {{ partitions = {max(16, len(others))}, by = "queue", cells = {others} }}\n'
    return f"version = 1\n{cells}[queues]\n{spread}{queues}"


def unsynced(url: str, clock: Clock | None) -> Backend:
    store = SqliteStore(url.removeprefix("sqlite:///"), clock=clock)
    store.backend.session.writer._connection.execute("PRAGMA synchronous = OFF")
    return store.backend
