"""Group commit: calls of many threads share one transaction, and so one sync.

The leader gives each call a turn inside one transaction, commits, and only then lets anyone answer. A call that raises
is rolled back to its own savepoint and harms nobody else; when the commit fails, everything in it fails. While the
leader waits for the disk, the next group gathers.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from forebay.core.clock import Clock
from forebay.core.errors import Closed
from forebay.core.instant import Instant
from forebay.store.sqlite.database import Database
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.tally import Knowledge
from forebay.store.sqlite.turn import Head, Turn
from forebay.store.together import Call, Together

_GROUP_MOST: Final = 128
_HEAD: Final = statement("head")
_PUT_HEAD: Final = statement("put_head")

T = TypeVar("T")


class Time:
    """The store's clock: the injected one, never behind the last instant that any process has written.

    A process whose clock is behind goes on from that instant, instead of standing still until its clock has caught up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = Lock()
        self._shift = 0

    def now(self) -> Instant:
        return self._clock.now() + self._shift

    def after(self, last_at: Instant) -> Instant:
        """Now, which is not before `last_at`."""
        now = self._clock.now() + self._shift
        if now >= last_at:
            return now
        with self._guard:
            self._shift = max(self._shift, last_at - self._clock.now())
        return max(last_at, self.now())


class _Call(Call):
    """The work of a verb, and its answer once it is durable."""

    __slots__ = ("answer", "turn", "work")

    def __init__(self, work: Callable[[Turn], Any]) -> None:
        super().__init__()
        self.work = work
        self.turn: Turn | None = None
        self.answer: Any = None


def _next(numbers: Iterator[int], _: _Call) -> bool:
    """Whether a group may have one more."""
    return next(numbers) <= _GROUP_MOST


class Writer:
    """The one connection of this process that writes. `publish` hears of every turn that was committed."""

    def __init__(
        self, database: Database, connection: sqlite3.Connection, time: Time, publish: Callable[[Turn], None]
    ) -> None:
        self._database = database
        self._connection = connection
        self._time = time
        self._publish = publish
        self.knowledge = Knowledge()
        self.callers: Together[_Call] = Together(database.name, self._commit)
        self._busy = Lock()
        self._closed = False

    def run(self, work: Callable[[Turn], T]) -> T:
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
        for call in calls:
            if call.turn is not None and call.error is None:
                self._publish(call.turn)

    def _transact(self, group: Sequence[_Call]) -> None:
        connection = self._connection
        self._database.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        found = Head(*connection.execute(_HEAD).fetchone())
        head = replace(found)
        for call in group:
            before = replace(head)
            try:
                self._take_turn(call, head, alone=len(group) == 1)
            except Exception as error:
                if len(group) == 1 or not connection.in_transaction:
                    raise
                connection.execute("ROLLBACK TO turn")
                connection.execute("RELEASE turn")
                call.error = self._database.failure(error)
                head = before
        if head != found:
            connection.execute(_PUT_HEAD, msgspec.structs.astuple(head))
        connection.execute("COMMIT")

    def _take_turn(self, call: _Call, head: Head, alone: bool) -> None:
        if not alone:
            self._connection.execute("SAVEPOINT turn")
        turn = Turn(self._connection, self.knowledge, head, self._time.after(head.last_at))
        call.answer = call.work(turn)
        turn.finish()
        call.turn = turn
        if not alone:
            self._connection.execute("RELEASE turn")

    def _undo(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return
