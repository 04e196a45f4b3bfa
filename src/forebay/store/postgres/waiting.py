"""Waiting for work or room: a signal inside this process, a notification from other processes.

News of this process wakes its own sleepers at once. Others receive a notification that is sent right after the commit,
on another connection: inside the transaction it would make all producers wait for each other. What is committed while
one is being sent goes with the next; a process that sends more than a hundred a second rests between them, since each
costs the server and every listener about as much as a small claim. Nothing is left unsent when the store is closed or
the process exits normally. The listener starts with the first sleeper, must receive a ping of its own process every few
seconds, and is replaced when it does not. A process that is killed loses its last hint: sleepers look at the tables
once a second anyway, and ten times a second while nothing is received, as behind a pooler that does not pass
notifications on.
"""

import atexit
import logging
from collections.abc import Callable, Collection, Iterable
from threading import Event
from time import monotonic
from typing import Final
from uuid import uuid4

import psycopg

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.instant import Duration, Instant
from forebay.store.postgres.connect import Connection, Server
from forebay.store.waiters import JOIN_SECONDS, Waiters

_log = logging.getLogger("forebay.store")

_CHANNEL: Final = "forebay"
_NOTIFY: Final = (
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"
)
"""A hint need not survive a crash of the server, so its commit does not wait for the disk."""

_SENDS_A_SECOND: Final = 100.0
_SENDS_AT_ONCE: Final = 20.0
"""So many more may follow each other without a rest."""

_LOOK_DEAF: Final[Duration] = 100_000
_PING_EVERY: Final = 5.0
_DEAF_AFTER: Final = 15.0
_LISTEN_FOR: Final = 0.2
_RETRY_FIRST: Final = 0.1
_MAX_RETRY: Final = 5.0
_MAX_NAMES: Final = 60
"""Of the longest names; a payload must be shorter than 8,000 bytes."""


def ending_of(job_id: int) -> str:
    """The topic of a job's end; no queue has such a name."""
    return f"~{job_id}"


def requests_to(holder_id: int) -> str:
    """The topic of what is asked of a holder."""
    return f"~@{holder_id}"


class ServerWaiters(Waiters):
    """The sleepers of this process, and what it tells the others."""

    def __init__(self, server: Server, clock: Clock, now: Callable[[], Instant]) -> None:
        super().__init__(clock, now, _LOOK_DEAF)
        self._server = server
        self._untold: set[str] = set()
        self._told = Event()
        self._leaving = Event()
        self._me = f"@{uuid4().hex}"

    def notify(self, news: Iterable[str], eased: Iterable[str], topics: Collection[str] = ()) -> None:
        """Something was committed: queues that may have work, queues that may have room, topics with news."""
        with self._guard:
            self._wake(news, eased, topics)
            self._untold.update(news, eased, topics)
        if self._untold:
            self._told.set()
            self._start("tell", self._tell)

    def close(self) -> None:
        """What was committed before is sent first."""
        atexit.unregister(self._send_rest)
        self._leaving.set()
        self._told.set()
        super().close()

    def _send_rest(self) -> None:
        """The process exits, and nobody has closed the store."""
        self._leaving.set()
        self._told.set()
        self._threads["tell"].join(JOIN_SECONDS)

    def _tell(self) -> None:
        """Send what others should know; what could not be sent is tried again until the store is closed."""
        atexit.register(self._send_rest)
        pause = _RETRY_FIRST
        allowed, counted_at = _SENDS_AT_ONCE, monotonic()
        while self._untold or not self._leaving.is_set():
            self._told.wait(_PING_EVERY)
            self._told.clear()
            with self._guard:
                names, self._untold = sorted(self._untold), set()
                listening = "listen" in self._threads
            if not names and (not listening or self._leaving.is_set()):
                continue
            parts = [names[start : start + _MAX_NAMES] for start in range(0, max(1, len(names)), _MAX_NAMES)]
            try:
                self._server.query(_NOTIFY, (_CHANNEL, [",".join([self._me, *part]) for part in parts]))
                pause = _RETRY_FIRST
                earned, counted_at = (monotonic() - counted_at) * _SENDS_A_SECOND, monotonic()
                allowed = min(_SENDS_AT_ONCE, allowed + earned) - 1
                if allowed < 1:
                    self._leaving.wait(1 / _SENDS_A_SECOND)
            except ForebayError:
                _log.debug("a notification could not be sent")
                if self._leaving.wait(pause):
                    return
                pause = min(_MAX_RETRY, pause * 2)
                with self._guard:
                    self._untold.update(names)
                self._told.set()

    def _listen(self) -> None:
        pause = _RETRY_FIRST
        while not self._closing.is_set():
            try:
                with self._server.connect() as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self.poll_again()
                    pause = _RETRY_FIRST
                    self._hear_from(connection)
            except (ForebayError, psycopg.Error, OSError):
                self._deaf = True
                self._closing.wait(pause)
                pause = min(_MAX_RETRY, pause * 2)

    def _hear_from(self, connection: Connection) -> None:
        """Until nothing was heard for longer than a ping takes."""
        self._start("tell", self._tell)
        self._told.set()
        heard_at = monotonic()
        while not self._closing.is_set() and monotonic() - heard_at < _DEAF_AFTER:
            for notice in connection.notifies(timeout=_LISTEN_FOR, stop_after=1):
                heard_at, self._deaf = monotonic(), False
                names = notice.payload.split(",")
                if self._me in names:
                    continue
                with self._guard:
                    self._wake(names, names, names)
        self._deaf = True
