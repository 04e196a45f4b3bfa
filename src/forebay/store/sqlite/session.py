"""An open store: one file, the one connection of this process that writes, readers, the clock and the waiters.

A verb is one read, or one unit of work of the writer.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from forebay.core.clock import Clock
from forebay.core.instant import Instant
from forebay.store.sqlite.database import Database, Time
from forebay.store.sqlite.migrate import migrate
from forebay.store.sqlite.tables import SpecCache
from forebay.store.sqlite.unit_of_work import UnitOfWork, Writer
from forebay.store.sqlite.waiting import StoreWaiters


class Session:
    """What all parts of the backend share. `specs`: the readers' cache of them; the writer has its own."""

    def __init__(self, path: str, clock: Clock, shared: bool) -> None:
        self.database = Database(path)
        self._time = Time(clock)
        connection = self.database.connect()
        try:
            migrate(self.database, connection, clock.now(), shared)
        except BaseException:
            connection.close()
            raise
        self.specs = SpecCache()
        self.waiters = StoreWaiters(self.database, clock, self._time)
        self.writer = Writer(self.database, connection, self._time, self.waiters)
        self.write = self.writer.run
        with self.database.reading() as (_, last_at):
            self._time.after(last_at)

    def now(self) -> Instant:
        return self._time.now()

    def close(self) -> None:
        """No verb works afterwards; waiters wake up and find it closed, and nothing uses the file."""
        self.database.close()
        self.waiters.close()
        self.database.wait_until_unused()
        self.writer.close()

    @contextmanager
    def read(self) -> Iterator[tuple[sqlite3.Connection, Instant]]:
        """One durable state, and now."""
        with self.database.reading() as (reader, last_at):
            yield reader, self._time.after(last_at)


class BackendPart(Protocol):
    """A group of verbs."""

    session: Session


S = TypeVar("S", bound=BackendPart)
P = ParamSpec("P")
T = TypeVar("T")


def verb(work: Callable[Concatenate[S, UnitOfWork, P], T]) -> Callable[Concatenate[S, P], T]:
    """The work in a unit of its own; the answer once it is durable."""

    @wraps(work)
    def call(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        return self.session.write(lambda unit: work(self, unit, *args, **options))

    return call
