"""Sleeping until there is work or room: every change is published by its script, and one listener a process hears it.

A hint may get lost: sleepers look at the server once a second anyway, and twenty times a second while nobody listens.
"""

from collections.abc import Callable
from typing import Final

import redis

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.instant import Instant, Span
from forebay.store.redis.connect import Connection, Server
from forebay.store.sleeping import Sleeping

_CHANNELS: Final = ("work", "room", "ended", "asked")
_LOOK_DEAF: Final[Span] = 50_000
_LISTEN_FOR: Final = 0.2
_PING_EVERY: Final = 25
"""Silences after which the listener asks whether its connection lives."""

_RETRY_FIRST: Final = 0.05
_RETRY_MOST: Final = 2.0


def ending_of(sid: str) -> str:
    """The topic of a job's end."""
    return f"#{sid}"


def requests_to(owner: str) -> str:
    """The topic of what is asked of an owner."""
    return f"@{owner}"


def _told(channel: str, said: str) -> tuple[list[str], list[str], list[str]]:
    """Queues that may have work, queues that may have room, and topics."""
    match channel:
        case "work":
            return said.split(","), [], []
        case "room":
            return [], said.split(","), []
        case "ended":
            return [], [], [ending_of(sid) for sid in said.split(",")]
        case _:
            return [], [], [requests_to(said)]


class Sleepers(Sleeping):
    """The sleepers of this process."""

    def __init__(self, server: Server, clock: Clock, now: Callable[[], Instant]) -> None:
        super().__init__(clock, now, _LOOK_DEAF)
        self._server = server

    def _listen(self) -> None:
        pause = _RETRY_FIRST
        while not self._closing.is_set():
            connection: Connection | None = None
            try:
                connection = self._server.connect()
                prefix = self._server.address.prefix
                connection.send_command("SUBSCRIBE", *(f"{prefix}{channel}" for channel in _CHANNELS))
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
                case [b"message", channel, told]:
                    with self._guard:
                        self._wake(*_told(channel.decode().rpartition(":")[2], told.decode()))
                case [b"subscribe", _, number] if number == len(_CHANNELS):
                    self._deaf = False
                    self.look_again()
                case _:
                    pass
