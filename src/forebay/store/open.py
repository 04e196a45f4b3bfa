"""`open_store(url)` and `open_ledger(url)`: the only place that names concrete stores."""

import os
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import unquote, urlsplit

from forebay.core.clock import Clock
from forebay.core.errors import Invalid, Unsupported
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.store.backend import Backend
from forebay.store.protocol import Store

if TYPE_CHECKING:
    from forebay.store.cells.cell_map import CellAddress, CellMap


class CellLedger(NamedTuple):
    """A cell of a `cells:` URL, and the URL of its own store."""

    number: int
    name: str
    url: str


class LedgerReader(Protocol):
    """How a ledger is read."""

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]: ...

    def ledger_extent(self) -> tuple[int, int]: ...

    def ledger_rule(self) -> LedgerRule: ...

    def close(self) -> None: ...


def open_store(url: str, *, clock: Clock | None = None, shared: bool = False) -> Store:
    """The store behind a URL.

    memory://                 in this process;  memory:///directory: with a journal
    sqlite:///jobs.db         a file below the working directory;  sqlite:////var/jobs.db: an absolute path

    postgresql://user@host/db  a Postgres database, with the extra forebay[postgres]

    redis://host:6379/0        a Redis or Valkey server, with the extra forebay[redis]; also rediss:// and unix://
    redis+cluster://host:7000,host:7001/  a Redis Cluster, in which a store is one slot; also rediss+cluster://

    cells:cells.toml           several of these as one; the file names them (docs/guides/cells.md)

    A clock may be injected where the store keeps time itself. `shared`: a SQLite file that has tables of an application
    becomes a store too; without it such a file is refused.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return _open_memory(url, parts.netloc, unquote(parts.path), clock)
        case "sqlite":
            if parts.query or parts.fragment:
                raise Invalid("store URL", f"{url!r} has options", "a path is all it takes; write ? as %3F, # as %23")
            return _open_sqlite(url, parts.netloc, unquote(parts.path), clock, shared)
        case "postgresql" | "postgres":
            return _open_postgres(url, clock)
        case "redis" | "rediss" | "unix" | "redis+cluster" | "rediss+cluster":
            return _open_redis(url, clock)
        case "cells":
            return _open_cells(url, parts.netloc, unquote(parts.path), clock)
        case _:
            raise Invalid(
                "store URL",
                f"no store has the scheme {parts.scheme!r}",
                "use sqlite:///jobs.db, postgresql://host/db, redis://host, memory:// or cells:cells.toml",
            )


def open_ledger(url: str) -> LedgerReader:
    """The reader of the ledger of the store behind a URL.

    A journal is read beside the process that owns it: no lock is taken, nothing is written, and nothing is shown that
    is not durable. A database is simply opened. Nothing is ever created.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "memory" and not parts.netloc:
        if path in ("", "/"):
            raise Invalid(
                "store URL", f"{url!r} keeps no ledger", "use memory:///directory, sqlite:/// or postgresql://"
            )
        from forebay.store.memory.ledger import JournalLedgerReader

        return JournalLedgerReader(path)
    if parts.scheme == "sqlite" and not parts.netloc and not os.path.exists(path.removeprefix("/")):
        raise Invalid("store URL", f"there is no store in {path.removeprefix('/')!r}", "name the file of a store")
    if parts.scheme == "cells":
        raise Unsupported("cells", "one ledger for several cells", "give the URL of one cell; each has its own ledger")
    return open_store(url)


def cell_ledgers(url: str) -> list[CellLedger]:
    """The cells of a `cells:` URL in the order of their numbers; none for another URL. Nothing is opened."""
    parts = urlsplit(url)
    if parts.scheme != "cells":
        return []
    cells, addresses = _read_cells(url, parts.netloc, unquote(parts.path))
    return sorted(CellLedger(cells.cells[name], name, address.url) for name, address in addresses.items())


def open_cell_ledger(cell: CellLedger) -> LedgerReader:
    """The ledger of a cell, with the ids that all cells use."""
    return _CellLedgerReader(open_ledger(cell.url), cell.number)


class _CellLedgerReader:
    def __init__(self, ledger: LedgerReader, number: int) -> None:
        from forebay.store.cells.ids import CellIds

        self._ledger = ledger
        self._ids = CellIds(number)

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        return [self._ids.entry(entry) for entry in self._ledger.ledger(after, limit)]

    def ledger_extent(self) -> tuple[int, int]:
        return self._ledger.ledger_extent()

    def ledger_rule(self) -> LedgerRule:
        return self._ledger.ledger_rule()

    def close(self) -> None:
        self._ledger.close()


def cell_number(job_id: int) -> int:
    """The number of the cell that an id belongs to."""
    from forebay.store.cells.ids import cell_of

    return cell_of(job_id)


def _open_memory(url: str, host: str, path: str, clock: Clock | None) -> Store:
    if host:
        raise Invalid("store URL", f"{url!r} names a host", "write three slashes: memory:///directory")
    if path in ("", "/"):
        from forebay.store.memory.store import MemoryStore

        return MemoryStore(clock=clock)
    from forebay.store.memory.journaled import open_journaled

    return open_journaled(path, clock=clock)


def _open_sqlite(url: str, host: str, path: str, clock: Clock | None, shared: bool) -> Store:
    if host:
        raise Invalid("store URL", f"{url!r} names a host", "write three slashes: sqlite:///jobs.db")
    if path in ("", "/", "/:memory:"):
        raise Invalid("store URL", f"{url!r} names no file", "write sqlite:///jobs.db, or memory:// to keep nothing")
    from forebay.store.sqlite.store import SqliteStore

    return SqliteStore(path.removeprefix("/"), clock=clock, shared=shared)


def _open_postgres(url: str, clock: Clock | None) -> Store:
    try:
        from forebay.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise Invalid("store URL", "psycopg is not installed", "pip install 'forebay[postgres]'") from error
    return PostgresStore(url, clock=clock)


def _open_redis(url: str, clock: Clock | None) -> Store:
    try:
        from forebay.store.redis.store import RedisStore
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise Invalid("store URL", "redis is not installed", "pip install 'forebay[redis]'") from error
    return RedisStore(url, clock=clock)


def _open_cells(url: str, host: str, path: str, clock: Clock | None) -> Store:
    from forebay.store.cells.store import open_cells
    from forebay.store.shell import Shell

    def open_cell(url: str) -> Backend:
        store = open_store(url, clock=clock)
        assert isinstance(store, Shell)
        return cast(Backend, store.backend)

    return open_cells(*_read_cells(url, host, path), open_cell)


def _read_cells(url: str, host: str, path: str) -> "tuple[CellMap, dict[str, CellAddress]]":
    if host or not path:
        raise Invalid("store URL", f"{url!r} names no file", "write cells:cells.toml, or cells:/etc/forebay/cells.toml")
    from forebay.store.cells.cell_map import read_cells

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeError) as error:
        raise Invalid("store URL", f"{path}: {error}", "name the file of the cells") from None
    return read_cells(text, path)
