"""`SqliteStore`: every verb of the contract on one SQLite file, for the threads and processes of one machine.

Durable before every answer. Two machines must never share the file: SQLite's locks do not work over a network.
"""

from forebay.core.clock import Clock
from forebay.store.shell import Shell
from forebay.store.sqlite.backend import SqliteBackend


class SqliteStore(Shell[SqliteBackend]):
    """The embedded store."""

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(SqliteBackend(path, clock=clock))
