"""Sleeping until there is work or room: a signal inside this process, a notification from the others.

News of this process wakes its own sleepers at once. Others hear of it by a notification that is sent after the commit,
on another connection, at most every 20 ms: inside the transaction it would make all producers wait for each other.
A listener hears them; it is started with the first sleeper, must hear a ping of its own process every few seconds, and
is replaced when it does not. A hint may get lost: sleepers look at the tables once a second anyway, and ten times a
second while nothing is heard, as behind a pooler that does not pass notifications on.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final
from uuid import uuid4

import psycopg

from forebay.core.clock import Clock
from forebay.core.errors import Closed, ForebayError, QueueFull
from forebay.core.instant import Instant, Span
from forebay.store.postgres.connect import Connection, Server

_log = logging.getLogger("forebay.store")

_CHANNEL: Final = "forebay"
_LOOK_EVERY: Final[Span] = 1_000_000
_SEND_EVERY: Final = 0.02
_LOOK_DEAF: Final[Span] = 100_000
_PING_EVERY: Final = 5.0
_DEAF_AFTER: Final = 15.0
_LISTEN_FOR: Final = 0.2
_RETRY_FIRST: Final = 0.1
_RETRY_MOST: Final = 5.0
_NAMES_MOST: Final = 64

Ready = Callable[[], Instant]
"""When there may be something, as the tables say now."""


class _Sleeper:
    """`news`: there may be something. Without it the signal only means to look at the tables again."""

    def __init__(self) -> None:
        self.signal = Event()
        self.news = False


class Sleepers:
    """Who sleeps in this process, by queue: claimers for work, producers for room."""

    def __init__(self, server: Server, clock: Clock, now: Callable[[], Instant]) -> None:
        self._server = server
        self._clock = clock
        self._now = now
        self._guard = Lock()
        self._claimers: dict[str, set[_Sleeper]] = {}
        self._producers: dict[str, set[_Sleeper]] = {}
        self._closing = Event()
        self._untold: set[str] = set()
        self._told = Event()
        self._me = f"@{uuid4().hex}"
        self._deaf = True
        self._threads: dict[str, Thread] = {}

    @property
    def hears(self) -> bool | None:
        """Whether notifications arrive; None while nobody here has waited for one."""
        return not self._deaf if "listen" in self._threads else None

    def hear(self, news: Iterable[str], eased: Iterable[str]) -> None:
        """Something was committed: queues that may have work, and queues that may have room."""
        with self._guard:
            for queue in news:
                _wake(self._claimers.get(queue, ()))
            for queue in eased:
                _wake(self._producers.get(queue, ()))
            self._untold.update(news, eased)
        if self._untold:
            self._told.set()
            self._start("tell", self._tell)

    def close(self) -> None:
        self._closing.set()
        self._told.set()
        self.look_again()
        for thread in list(self._threads.values()):
            thread.join(_LISTEN_FOR * 5)

    def look_again(self) -> None:
        """News may have been missed."""
        with self._guard:
            for sleepers in (*self._claimers.values(), *self._producers.values()):
                for sleeper in sleepers:
                    sleeper.signal.set()

    def until_work(self, queues: Sequence[str], end: Instant, ready: Ready) -> bool:
        return self._sleep(self._claimers, queues, end, ready)

    def until_room(self, full: QueueFull, end: Instant, ready: Ready) -> bool:
        return self._sleep(self._producers, [full.queue], end, ready)

    def _sleep(self, rooms: dict[str, set[_Sleeper]], queues: Sequence[str], end: Instant, ready: Ready) -> bool:
        """True: there may be something. Whoever sleeps is known before the tables are asked, so no news is missed."""
        self._start("listen", self._listen)
        sleeper = _Sleeper()
        with self._guard:
            for queue in queues:
                rooms.setdefault(queue, set()).add(sleeper)
        try:
            while not sleeper.news:
                if self._closing.is_set():
                    raise Closed("the store")
                sleeper.signal.clear()
                wake_at, now = ready(), self._now()
                if wake_at <= now or end <= now:
                    return wake_at <= now
                look = _LOOK_DEAF if self._deaf else _LOOK_EVERY
                self._clock.wait(sleeper.signal, min(wake_at - now, end - now, look))
            return True
        finally:
            with self._guard:
                for queue in queues:
                    rooms[queue].discard(sleeper)
                    if not rooms[queue]:
                        del rooms[queue]

    def _start(self, name: str, target: Callable[[], None]) -> None:
        if name in self._threads:
            return
        with self._guard:
            if name in self._threads or self._closing.is_set():
                return
            thread = self._threads[name] = Thread(target=target, name=f"forebay-{name}", daemon=True)
        thread.start()

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
                    for queue in names:
                        _wake(self._claimers.get(queue, ()))
                        _wake(self._producers.get(queue, ()))
        self._deaf = True


def _wake(sleepers: Iterable[_Sleeper]) -> None:
    for sleeper in sleepers:
        sleeper.news = True
        sleeper.signal.set()
