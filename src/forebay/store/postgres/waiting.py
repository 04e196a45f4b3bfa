"""Waiting for work or room: signals inside this process, notifications between processes.

A change wakes the waiters of its own process at once. Other processes get a notification right after the commit, on
another connection: inside the transaction it would serialise all producers. Commits during a send share the next one; a
process that sends more than a hundred a second pauses between them, since each costs the server and every listener
about as much as a small claim. Nothing is left unsent when the store is closed or the process exits normally. The
listener starts with the first waiter; if it does not receive the pings of its own process, which come every few
seconds, it is replaced. A process that is killed loses its last notification: waiters poll once a second anyway, and
ten times a second while nothing is received, as behind a pooler that does not forward notifications.
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
"""A notification need not survive a crash of the server, so its commit does not wait for the disk."""

_SENDS_A_SECOND: Final = 100.0
_SENDS_AT_ONCE: Final = 20.0
"""The burst that may be sent without a pause."""

_POLL_DEAF: Final[Duration] = 100_000
_PING_EVERY: Final = 5.0
_DEAF_SECONDS: Final = 15.0
_LISTEN_SECONDS: Final = 0.2
_RETRY_FIRST: Final = 0.1
_MAX_RETRY: Final = 5.0
_MAX_NAMES: Final = 60
"""Names in one notification: a payload is shorter than 8,000 bytes, and a name has up to 128."""


def ending_of(job_id: int) -> str:
    """The topic of a job's end; no queue can have this name."""
    return f"~{job_id}"


def requests_to(holder_id: int) -> str:
    """The topic of cancel requests to a holder."""
    return f"~@{holder_id}"


class ServerWaiters(Waiters):
    """The waiters of this process, and its notifications to others."""

    def __init__(self, server: Server, clock: Clock, now: Callable[[], Instant]) -> None:
        super().__init__(clock, now, _POLL_DEAF)
        self._server = server
        self._unsent: set[str] = set()
        self._wake_sender = Event()
        self._leaving = Event()
        self._own_name = f"@{uuid4().hex}"

    def notify(self, has_work: Iterable[str], has_room: Iterable[str], topics: Collection[str] = ()) -> None:
        """After a commit: queues that may have work, queues that may have room, topics that changed."""
        with self._guard:
            self._wake(has_work, has_room, topics)
            self._unsent.update(has_work, has_room, topics)
        if self._unsent:
            self._wake_sender.set()
            self._start("notify", self._send)

    def close(self) -> None:
        """Send what is unsent, then close."""
        atexit.unregister(self._send_rest)
        self._leaving.set()
        self._wake_sender.set()
        super().close()

    def _send_rest(self) -> None:
        """The process exits without closing the store."""
        self._leaving.set()
        self._wake_sender.set()
        self._threads["notify"].join(JOIN_SECONDS)

    def _send(self) -> None:
        """Send notifications and pings, with retries, until the store is closed."""
        atexit.register(self._send_rest)
        pause = _RETRY_FIRST
        allowed, counted_at = _SENDS_AT_ONCE, monotonic()
        while self._unsent or not self._leaving.is_set():
            self._wake_sender.wait(_PING_EVERY)
            self._wake_sender.clear()
            with self._guard:
                names, self._unsent = sorted(self._unsent), set()
                listening = "listen" in self._threads
            if not names and (not listening or self._leaving.is_set()):
                continue
            parts = [names[start : start + _MAX_NAMES] for start in range(0, max(1, len(names)), _MAX_NAMES)]
            try:
                self._server.query(_NOTIFY, (_CHANNEL, [",".join([self._own_name, *part]) for part in parts]))
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
                    self._unsent.update(names)
                self._wake_sender.set()

    def _listen(self) -> None:
        pause = _RETRY_FIRST
        while not self._closing.is_set():
            try:
                with self._server.connect() as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self.poll_again()
                    pause = _RETRY_FIRST
                    self._receive(connection)
            except (ForebayError, psycopg.Error, OSError):
                self._deaf = True
                self._closing.wait(pause)
                pause = min(_MAX_RETRY, pause * 2)

    def _receive(self, connection: Connection) -> None:
        """Until nothing was received for several times as long as pings are apart."""
        self._start("notify", self._send)
        self._wake_sender.set()
        received_at = monotonic()
        while not self._closing.is_set() and monotonic() - received_at < _DEAF_SECONDS:
            for notice in connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1):
                received_at, self._deaf = monotonic(), False
                names = notice.payload.split(",")
                if self._own_name in names:
                    continue
                with self._guard:
                    self._wake(names, names, names)
        self._deaf = True
