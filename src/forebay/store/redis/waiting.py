"""Sleeping until there is work or room: every change is published by its script, and one listener a process hears it.

A hint may get lost: sleepers look at the server once a second anyway, and twenty times a second while nobody listens.
"""

from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock, Thread
from typing import Final

import redis

from forebay.core.clock import Clock
from forebay.core.errors import Closed, ForebayError
from forebay.core.instant import Instant, Span
from forebay.store.redis.connect import Connection, Server

_LOOK_EVERY: Final[Span] = 1_000_000
_LOOK_DEAF: Final[Span] = 50_000
_LISTEN_FOR: Final = 0.2
_PING_EVERY: Final = 25
"""Silences after which the listener asks whether its connection lives."""

_RETRY_FIRST: Final = 0.05
_RETRY_MOST: Final = 2.0

Ready = Callable[[], Instant]
"""When there may be something, as the server says now."""


class _Sleeper:
    """`news`: there may be something. Without it the signal only means to look again."""

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
        self._deaf = True
        self._thread: Thread | None = None

    @property
    def hears(self) -> bool | None:
        """Whether news arrives; None while nobody here has waited for any."""
        return None if self._thread is None else not self._deaf

    def close(self) -> None:
        self._closing.set()
        self._look_again()
        if self._thread is not None:
            self._thread.join(_LISTEN_FOR * 10)

    def until_work(self, queues: Sequence[str], end: Instant, ready: Ready) -> bool:
        return self._sleep(self._claimers, queues, end, ready)

    def until_room(self, queue: str, end: Instant, ready: Ready) -> bool:
        return self._sleep(self._producers, [queue], end, ready)

    def _sleep(self, rooms: dict[str, set[_Sleeper]], queues: Sequence[str], end: Instant, ready: Ready) -> bool:
        """True: there may be something. Whoever sleeps is known before the server is asked, so no news is missed."""
        self._start()
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

    def _look_again(self) -> None:
        with self._guard:
            for sleepers in (*self._claimers.values(), *self._producers.values()):
                for sleeper in sleepers:
                    sleeper.signal.set()

    def _start(self) -> None:
        with self._guard:
            if self._thread is not None or self._closing.is_set():
                return
            self._thread = Thread(target=self._listen, name="forebay-listen", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        pause = _RETRY_FIRST
        while not self._closing.is_set():
            connection: Connection | None = None
            try:
                connection = self._server.connect()
                prefix = self._server.address.prefix
                connection.send_command("SUBSCRIBE", f"{prefix}work", f"{prefix}room")
                pause = _RETRY_FIRST
                self._hear_from(connection)
            except (ForebayError, redis.RedisError, OSError):
                self._deaf = True
                self._closing.wait(pause)
                pause = min(_RETRY_MOST, pause * 2)
            finally:
                if connection is not None:
                    connection.disconnect()

    def _hear_from(self, connection: Connection) -> None:
        """Until the store is closed or the connection is dead."""
        silences = 0
        while not self._closing.is_set():
            if not connection.can_read(timeout=_LISTEN_FOR):
                silences += 1
                if silences == _PING_EVERY:
                    connection.send_command("PING")
                elif silences > 2 * _PING_EVERY:
                    raise redis.ConnectionError("nothing is heard any more")
                continue
            silences = 0
            match connection.read_response():
                case [b"message", channel, names]:
                    self._hear(channel.endswith(b"work"), names.decode().split(","))
                case [b"subscribe", _, 2]:
                    self._deaf = False
                    self._look_again()
                case _:
                    pass

    def _hear(self, work: bool, queues: Iterable[str]) -> None:
        with self._guard:
            rooms = self._claimers if work else self._producers
            for queue in queues:
                for sleeper in rooms.get(queue, ()):
                    sleeper.news = True
                    sleeper.signal.set()
