"""Waiting for work or room: each script publishes its changes, and one listener a process receives them.

A notification may get lost: waiters poll once a second anyway, and twenty times a second while the listener is
disconnected.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import redis

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.instant import Duration, Instant
from forebay.core.lease import Fence
from forebay.store.clock import SystemClock
from forebay.store.redis.connect import DriverConnection, Server
from forebay.store.redis.records import packed, sid, sids
from forebay.store.redis.session import Session
from forebay.store.waiters import Ready, Waiters

_CHANNELS: Final = ("work", "room", "ended", "cancel_requested")
_POLL_DEAF: Final[Duration] = 50_000
_LISTEN_FOR: Final = 0.2
_PING_EVERY: Final = 25
"""Timeouts after which the listener pings the server."""

_RETRY_FIRST: Final = 0.05
_MAX_RETRY: Final = 2.0


def _ending_of(sid: str) -> str:
    """The topic of a job's end."""
    return f"#{sid}"


def _requests_to(owner: str) -> str:
    """The topic of cancel requests to an owner."""
    return f"@{owner}"


def _topics_of(channel: str, text: str) -> tuple[list[str], list[str], list[str]]:
    """Queues that may have work, queues that may have room, and topics."""
    match channel:
        case "work":
            return text.split(","), [], []
        case "room":
            return [], text.split(","), []
        case "ended":
            return [], [], [_ending_of(sid) for sid in text.split(",")]
        case _:
            return [], [], [_requests_to(text)]


class _ServerWaiters(Waiters):
    """The waiters of this process, and the thread that listens for them."""

    def __init__(self, server: Server, clock: Clock, now: Callable[[], Instant]) -> None:
        super().__init__(clock, now, _POLL_DEAF)
        self._server = server

    def _listen(self) -> None:
        pause = _RETRY_FIRST
        while not self._closing.is_set():
            connection: DriverConnection | None = None
            try:
                connection = self._server.connect()
                prefix = self._server.address.prefix
                connection.send_command("SSUBSCRIBE", *(f"{prefix}{channel}" for channel in _CHANNELS))
                pause = _RETRY_FIRST
                self._receive(connection)
            except (ForebayError, redis.RedisError, OSError) as error:
                self._server.after(error, None)
                self._deaf = True
                self._closing.wait(pause)
                pause = min(_MAX_RETRY, pause * 2)
            finally:
                if connection is not None:
                    connection.disconnect()

    def _receive(self, connection: DriverConnection) -> None:
        """Until the store is closed or the connection is dead."""
        silences = 0
        while not self._closing.is_set():
            if not connection.can_read(timeout=_LISTEN_FOR):
                silences += 1
                if silences == _PING_EVERY:
                    connection.send_command("PING")
                elif silences > 2 * _PING_EVERY:
                    raise redis.ConnectionError("the connection is silent")
                continue
            silences = 0
            match connection.read_response():
                case [b"smessage", channel, text]:
                    with self._guard:
                        self._wake(*_topics_of(channel.decode().rpartition(":")[2], text.decode()))
                case [b"ssubscribe", _, number] if number == len(_CHANNELS):
                    self._deaf = False
                    self.poll_again()
                case [b"sunsubscribe", *_]:
                    raise redis.ConnectionError("the slot has moved to another node")
                case _:
                    pass


class Waiting:
    """Verbs that wait."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiters = _ServerWaiters(session.server, session.clock or SystemClock(), session.now)

    @property
    def listening(self) -> bool | None:
        """Whether notifications arrive; None before the first wait of this process."""
        return self._waiters.listening

    def close(self) -> None:
        """Wake all waiters; they find the store closed."""
        self._waiters.close()

    def wait(self, queues: Sequence[str], duration: Duration) -> bool:
        first: list[int] = []

        def ready() -> Instant:
            work_at, grown = self._session.call("next_work", packed(queues))
            first.append(grown)
            return 0 if grown > first[0] else int(work_at)

        return self._waiters.until_work(queues, self._session.now() + duration, ready)

    def wait_for_room(self, queue: str, until: Instant, ready: Ready) -> None:
        self._waiters.until_room(queue, until, ready)

    def wait_ended(self, ids: Sequence[int], duration: Duration) -> list[int]:
        names = sids(ids)

        def ended() -> list[int]:
            found = {each.decode() for each in self._session.call("ended", packed(names))} if names else set()
            return [job_id for job_id in ids if not sids([job_id]) or sid(job_id) in found]

        return self._waiters.until_found([_ending_of(name) for name in names], self._session.now() + duration, ended)

    def wait_cancel_requests(self, owner: str, duration: Duration, known: Collection[Fence]) -> list[Fence]:
        def requested() -> list[Fence]:
            found = self._session.call("cancel_requests", owner)
            fences = [(int(job_id), int(delivery)) for job_id, delivery in zip(found[::2], found[1::2], strict=True)]
            return [fence for fence in fences if fence not in known]

        return self._waiters.until_found([_requests_to(owner)], self._session.now() + duration, requested)
