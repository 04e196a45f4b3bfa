"""Sleeping until there is work or room: a signal inside this process, a notification from the others.

News of this process wakes its own sleepers at once. Others hear of it by a notification that is sent after the commit,
on another connection, at most every 20 ms: inside the transaction it would make all producers wait for each other.
A listener hears them; it is started with the first sleeper, must hear a ping of its own process every few seconds, and
is replaced when it does not. A hint may get lost: sleepers look at the tables once a second anyway, and ten times a
second while nothing is heard, as behind a pooler that does not pass notifications on.
"""

import logging
from collections.abc import Callable, Iterable
from threading import Event
from time import monotonic
from typing import Final
from uuid import uuid4

import psycopg

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.instant import Instant, Span
from forebay.store.postgres.connect import Connection, Server
from forebay.store.sleeping import Sleeping

_log = logging.getLogger("forebay.store")

_CHANNEL: Final = "forebay"
_SEND_EVERY: Final = 0.02
_LOOK_DEAF: Final[Span] = 100_000
_PING_EVERY: Final = 5.0
_DEAF_AFTER: Final = 15.0
_LISTEN_FOR: Final = 0.2
_RETRY_FIRST: Final = 0.1
_RETRY_MOST: Final = 5.0
_NAMES_MOST: Final = 64


class Sleepers(Sleeping):
    """The sleepers of this process, and what it tells the others."""

    def __init__(self, server: Server, clock: Clock, now: Callable[[], Instant]) -> None:
        super().__init__(clock, now, _LOOK_DEAF)
        self._server = server
        self._untold: set[str] = set()
        self._told = Event()
        self._me = f"@{uuid4().hex}"

    def hear(self, news: Iterable[str], eased: Iterable[str]) -> None:
        """Something was committed: queues that may have work, and queues that may have room."""
        with self._guard:
            self._wake(news, eased)
            self._untold.update(news, eased)
        if self._untold:
            self._told.set()
            self._start("tell", self._tell)

    def close(self) -> None:
        self._closing.set()
        self._told.set()
        super().close()

    def _tell(self) -> None:
        """Send what others should hear, now and then; a failure only delays them."""
        while not self._closing.is_set():
            self._told.wait(_PING_EVERY)
            self._told.clear()
            with self._guard:
                names, self._untold = sorted(self._untold)[:_NAMES_MOST], set()
                listening = "listen" in self._threads
            try:
                if (names or listening) and not self._closing.is_set():
                    self._server.query("SELECT pg_notify(%s, %s)", (_CHANNEL, ",".join([self._me, *names])))
            except ForebayError:
                _log.debug("a notification could not be sent")
            self._closing.wait(_SEND_EVERY)

    def _listen(self) -> None:
        pause = _RETRY_FIRST
        while not self._closing.is_set():
            try:
                with self._server.connect() as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self.look_again()
                    pause = _RETRY_FIRST
                    self._hear_from(connection)
            except (ForebayError, psycopg.Error, OSError):
                self._deaf = True
                self._closing.wait(pause)
                pause = min(_RETRY_MOST, pause * 2)

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
                    self._wake(names, names)
        self._deaf = True
