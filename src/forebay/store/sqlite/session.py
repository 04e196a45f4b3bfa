"""An open store: one file, the one connection of this process that writes, readers, the clock and the waiters.

A verb is one read, or one unit of work of the writer. Group commit: calls of many threads share one transaction, and so
one sync. The leader gives each call a unit of work inside one transaction, commits, and only then lets anyone answer. A
call that raises is rolled back to its own savepoint and harms nobody else; when the commit fails, everything in it
fails. While the leader waits for the disk, the next group gathers.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final, TypeVar

from msgspec.structs import astuple, replace

from forebay.core.clock import Clock
from forebay.core.errors import Closed
from forebay.core.instant import Instant
from forebay.store.group_commit import Call, GroupCommit
from forebay.store.sqlite.database import Database, Time
from forebay.store.sqlite.migrate import migrate
from forebay.store.sqlite.tables import SpecCache, statement
from forebay.store.sqlite.unit_of_work import Head, UnitOfWork
from forebay.store.sqlite.waiting import Waiters

_MAX_GROUP: Final = 128
_HEAD: Final = statement("head")
_PUT_HEAD: Final = statement("put_head")

T = TypeVar("T")


class Session:
    """What all parts of the backend share. `specs`: what readers know of them; the writer has its own."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.database = Database(path)
        self._time = Time(clock)
        connection = self.database.connect()
        try:
            migrate(self.database, connection, clock.now())
        except BaseException:
            connection.close()
            raise
        self.specs = SpecCache()
        self.waiters = Waiters(self.database, clock, self._time)
        self.writer = Writer(self.database, connection, self._time, self.waiters)
        self.write = self.writer.run
        with self.database.reading() as (_, last_at):
            self._time.after(last_at)

    def now(self) -> Instant:
        return self._time.now()

    def close(self) -> None:
        """No verb works afterwards; waiters wake up and find it closed."""
        self.database.close()
        self.waiters.close()
        self.writer.close()

    @contextmanager
    def read(self) -> Iterator[tuple[sqlite3.Connection, Instant]]:
        """One durable state, and now."""
        with self.database.reading() as (reader, last_at):
            yield reader, self._time.after(last_at)


class _Call(Call):
    """The work of a verb, and its answer once it is durable."""

    __slots__ = ("answer", "unit", "work")

    def __init__(self, work: Callable[[UnitOfWork], Any]) -> None:
        super().__init__()
        self.work = work
        self.unit: UnitOfWork | None = None
        self.answer: Any = None


def _next(numbers: Iterator[int], _: _Call) -> bool:
    """Whether a group may have one more."""
    return next(numbers) <= _MAX_GROUP


class Writer:
    """The one connection of this process that writes; waiters are notified of every unit that was committed."""

    def __init__(self, database: Database, connection: sqlite3.Connection, time: Time, waiters: Waiters) -> None:
        self._database = database
        self._connection = connection
        self._time = time
        self._waiters = waiters
        self.specs = SpecCache()
        self.callers: GroupCommit[_Call] = GroupCommit(database.name, self._commit)
        self._busy = Lock()
        self._closed = False

    def run(self, work: Callable[[UnitOfWork], T]) -> T:
        """The answer of the work, once it is durable."""
        self._database.check_process()
        call = _Call(work)
        self.callers.make(call)
        answer: T = call.answer
        return answer

    def close(self) -> None:
        """After the group that is under way; whoever comes later finds the store closed."""
        if not self._database.ours:
            return
        with self._busy:
            self._closed = True
            self._connection.close()

    def _commit(self) -> None:
        with self._busy, self.callers.group(partial(_next, count(1))) as calls:
            try:
                if self._closed:
                    raise Closed("the store")
                self._transact(calls)
            except Exception as error:
                self._undo()
                failed = self._database.failure(error)
                for call in calls:
                    call.error = call.error or failed
            except BaseException:
                self._undo()
                raise
        if self._waiters.registered:
            for call in calls:
                if call.unit is not None and call.error is None:
                    self._waiters.notify(call.unit)

    def _transact(self, group: Sequence[_Call]) -> None:
        connection = self._connection
        self._database.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        found = connection.execute(_HEAD).fetchone()
        head = Head(*found)
        alone = len(group) == 1
        for call in group:
            before = head if alone else replace(head)
            try:
                self._work(call, head, alone)
            except Exception as error:
                if alone or not connection.in_transaction:
                    raise
                connection.execute("ROLLBACK TO unit")
                connection.execute("RELEASE unit")
                call.error = self._database.failure(error)
                head = before
        written = astuple(head)
        if written != found:
            connection.execute(_PUT_HEAD, written)
        connection.execute("COMMIT")

    def _work(self, call: _Call, head: Head, alone: bool) -> None:
        if not alone:
            self._connection.execute("SAVEPOINT unit")
        unit = UnitOfWork(self._connection, self.specs, head, self._time.after(head.last_at))
        call.answer = call.work(unit)
        unit.finish()
        call.unit = unit
        if not alone:
            self._connection.execute("RELEASE unit")

    def _undo(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return
