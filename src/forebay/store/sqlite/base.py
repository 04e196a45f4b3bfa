"""What all verbs share: the file, the writer, the clock, who sleeps. A verb is one read or one turn of the writer."""

import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from forebay.core.clock import Clock
from forebay.core.instant import Instant
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Capabilities
from forebay.store.sqlite.database import Database
from forebay.store.sqlite.migrate import migrate
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.tally import Knowledge
from forebay.store.sqlite.turn import Turn
from forebay.store.sqlite.waiting import Sleepers
from forebay.store.sqlite.writer import Time, Writer

_SPECS = statement("specs")

T = TypeVar("T")


class Base:
    """An open store."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._database = Database(path)
        self._time = Time(clock)
        connection = self._database.connect()
        try:
            migrate(self._database, connection, clock.now())
        except BaseException:
            connection.close()
            raise
        self._known = Knowledge()
        """What readers know of specs; the writer has its own."""
        self._sleepers = Sleepers(self._database, clock, self._time)
        self._writer = Writer(self._database, connection, self._time, self._sleepers.hear)
        with self._database.reading() as (_, last_at):
            self._time.after(last_at)

    def now(self) -> Instant:
        return self._time.now()

    def close(self) -> None:
        """No verb works afterwards; sleepers wake up and find it closed."""
        self._database.close()
        self._sleepers.close()
        self._writer.close()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the whole store claims."""

    def specs(self) -> list[QueueSpec]:
        with self._read() as (reader, _):
            return [QueueSpec.from_json(text) for (text,) in reader.execute(_SPECS)]

    def _write(self, work: Callable[[Turn], T]) -> T:
        return self._writer.run(work)

    @contextmanager
    def _read(self) -> Iterator[tuple[sqlite3.Connection, Instant]]:
        """One durable state, and now."""
        with self._database.reading() as (reader, last_at):
            yield reader, self._time.after(last_at)
