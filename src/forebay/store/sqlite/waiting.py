"""Waiting for work or room: a signal inside this process, a cheap check of the file for other processes.

A unit of work wakes as many waiters as it has something for, longest waiting first. Other processes are noticed by
`PRAGMA data_version`, a few microseconds every 2 to 40 ms: an eighth of the time since the last change, so that jobs
that come steadily are found at once and an idle file costs little. Only when it moved are the tables read.
"""

import sqlite3
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Final, TypeVar

from forebay.core.clock import Clock
from forebay.core.errors import QueueFull
from forebay.core.instant import Duration, Instant
from forebay.core.limits import MAX_INSTANT
from forebay.engine.waiters import QueueWaiters
from forebay.store.sqlite.database import Database, Time
from forebay.store.sqlite.unit_of_work import UnitOfWork

_MIN_POLL: Final[Duration] = 2_000
_MAX_POLL: Final[Duration] = 40_000
_POLL_FRACTION: Final = 8

T = TypeVar("T")

Topic = int | str
"""A job, by its id, or an owner."""

ReadReady = Callable[[sqlite3.Connection], Instant]
"""When there may be something, as the tables say now."""


class StoreWaiters:
    """All waiters of this process; those for work and for room by queue. `registered`: how many there are."""

    def __init__(self, database: Database, clock: Clock, time: Time) -> None:
        self._database = database
        self._clock = clock
        self._time = time
        self._changed_at = time.now()
        self._guard = Lock()
        self._closed = False
        self.registered = 0
        self._claimers: dict[str, QueueWaiters] = {}
        self._producers: dict[str, QueueWaiters] = {}
        self._watchers: dict[Topic, set[Event]] = {}

    def notify(self, unit: UnitOfWork) -> None:
        """A unit of work was committed."""
        with self._guard:
            for queue, count in unit.queues.with_work.items():
                if (claimers := self._claimers.get(queue)) is not None:
                    claimers.wake(count)
            for queue in unit.queues.with_room:
                if (producers := self._producers.get(queue)) is not None:
                    producers.wake(unit.queue(queue).room)
            for topic in unit.topics & self._watchers.keys():
                for watcher in self._watchers[topic]:
                    watcher.set()

    def close(self) -> None:
        """Wake all waiters."""
        self._closed = True
        with self._guard:
            for waiters in (*self._claimers.values(), *self._producers.values()):
                waiters.wake_all()
            for watchers in self._watchers.values():
                for watcher in watchers:
                    watcher.set()

    def until_work(self, queues: Sequence[str], end: Instant, ready: ReadReady) -> bool:
        return self._sleep(self._claimers, queues, 1, end, ready)

    def until_room(self, full: QueueFull, end: Instant, ready: ReadReady) -> bool:
        return self._sleep(self._producers, [full.queue], full.requested, end, ready, hint=True)

    def until_found(
        self,
        topics: Sequence[Topic],
        end: Instant,
        find: Callable[[sqlite3.Connection], list[T]],
        minimum: Duration = _MIN_POLL,
    ) -> list[T]:
        """What `find` returns once it is not empty. Topics: jobs that may end, owners of jobs to cancel.

        `minimum`: the shortest interval between two polls of the file.
        """
        signal = Event()
        found: list[T] = []

        def ready(connection: sqlite3.Connection) -> Instant:
            found[:] = find(connection)
            return 0 if found else MAX_INSTANT

        with self._guard:
            self.registered += 1
            for topic in topics:
                self._watchers.setdefault(topic, set()).add(signal)
        try:
            with self._database.reader() as connection:
                self._poll(connection, signal, end, ready, signal.clear, minimum)
        finally:
            with self._guard:
                self.registered -= 1
                for topic in topics:
                    self._watchers[topic].discard(signal)
                    if not self._watchers[topic]:
                        del self._watchers[topic]
        return found

    def _sleep(
        self,
        waiters: dict[str, QueueWaiters],
        queues: Sequence[str],
        need: int,
        end: Instant,
        ready: ReadReady,
        *,
        hint: bool = False,
    ) -> bool:
        """True: there may be something. Registered before the tables are read, so no notification is missed.

        `hint`: a signal is enough; else the tables are read, since a closed gate may hold the new jobs.
        """
        signal = Event()

        def register() -> bool:
            if hint and signal.is_set():
                return True
            signal.clear()
            with self._guard:
                for queue in queues:
                    waiters.setdefault(queue, QueueWaiters()).add(signal, need)
            return False

        with self._guard:
            self.registered += 1
        register()
        try:
            with self._database.reader() as connection:
                return self._poll(connection, signal, end, ready, register)
        finally:
            with self._guard:
                self.registered -= 1
                for queue in queues:
                    if (known := waiters.get(queue)) is not None:
                        known.drop(signal)
                        if not known.waiting:
                            del waiters[queue]

    def _poll(
        self,
        connection: sqlite3.Connection,
        signal: Event,
        end: Instant,
        ready: ReadReady,
        again: Callable[[], bool | None],
        minimum: Duration = _MIN_POLL,
    ) -> bool:
        """Until the tables have something, or `again`, which is called before they are read again, returns true."""
        version = self._database.retry_while_locked(lambda: _version(connection))
        wake_at = self._database.retry_while_locked(lambda: ready(connection))
        while True:
            now = self._time.now()
            if self._closed or wake_at <= now or end <= now:
                return self._closed or wake_at <= now
            interval = max(minimum, min(_MAX_POLL, (now - self._changed_at) // _POLL_FRACTION))
            self._clock.wait(signal, min(wake_at - now, end - now, interval))
            seen = self._database.retry_while_locked(lambda: _version(connection))
            if seen != version or signal.is_set():
                if again():
                    return True
                version, self._changed_at = seen, now
                wake_at = self._database.retry_while_locked(lambda: ready(connection))


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version
