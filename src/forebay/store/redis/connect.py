"""Connections to the server: few, shared by all threads, replaced when they break; and Redis's errors in our words.

A call is one script, by its digest; a server that does not know it, after a restart or SCRIPT FLUSH, is told. A server
that refuses for a while (LOADING, BUSY, READONLY, and the like) has changed nothing and is asked again, for a bounded
time. A connection that is lost after a call was sent leaves open whether it happened: the call is made again, with the
same token, until the server has answered, for a bounded time; it then answers what it answered before.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import BoundedSemaphore, Event, Lock
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

import redis
from redis.connection import ConnectionPool

from forebay.core.errors import Closed, StoreFailed
from forebay.core.instant import Instant
from forebay.store.redis.address import Address
from forebay.store.redis.scripts import Script, script

Argument = bytes | str | int

CONNECTIONS_MOST: Final = 16
_WAIT_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 30.0
_REFUSED_SECONDS: Final = 5.0
"""How long a server that refuses, and says so, is asked again."""

_CERTAIN_SECONDS: Final = 15.0
"""How long a call whose outcome is open goes on asking; then it is `StoreFailed`."""

_ASK_FIRST: Final = 0.01
_ASK_MOST: Final = 0.5
_FOR_NOW: Final = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
)
_FOR_NOW_TOO: Final = ("BUSY", "NOREPLICAS", "UNBLOCKED")
"""Errors that have no class of their own in the driver begin so."""

_REMEDY: Final = "try again: it reconnects by itself, and a call that has a key adds nothing twice"

T = TypeVar("T")


class Connection(Protocol):
    """What is used of the driver's connections."""

    @property
    def is_connected(self) -> bool: ...

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *arguments: Argument) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...


class Server:
    """One server, as one process uses it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.name = address.name
        self._process = os.getpid()
        self._pool = ConnectionPool.from_url(
            address.url,
            protocol=2,
            socket_timeout=_ANSWER_SECONDS,
            socket_connect_timeout=_CONNECT_SECONDS,
            client_name="forebay",
            driver_info=None,
            retry=None,
        )
        self._room = BoundedSemaphore(CONNECTIONS_MOST)
        self._guard = Lock()
        self._idle: list[Connection] = []
        self._closed = False
        self._tokens = count()
        self._me = uuid4().hex

    def connect(self) -> Connection:
        """A new connection; closing it is up to the caller."""
        # Not the pool's own way: it counts those that it made, for ever, and makes no more after a hundred.
        connection = cast(Connection, self._pool.connection_class(**self._pool.connection_kwargs))
        try:
            connection.connect()
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise self.failure(error) from error
        return connection

    def call(self, name: str, at: Instant | None, *arguments: Argument, tokened: bool = False) -> Any:
        """One script, one round trip, one commit. `tokened`: to repeat it would do it twice, so it has a token."""
        one = script(name)
        token = f"{self._me}:{next(self._tokens)}" if tokened else ""
        given = (self.address.prefix, "" if at is None else at, token, *arguments)
        return self._attempt(lambda connection: _evaluate(connection, one, given))

    def command(self, *arguments: Argument) -> Any:
        """One command that may be repeated."""
        return self._attempt(lambda connection: _ask(connection, arguments))

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        if os.getpid() == self._process:
            for connection in idle:
                connection.disconnect()

    def failure(self, error: Exception) -> StoreFailed:
        text = self.address.hidden(str(error).strip()).splitlines()
        return StoreFailed(self.name, text[0] if text else type(error).__name__, _REMEDY)

    def _attempt(self, action: Callable[[Connection], T]) -> T:
        """The action on a connection that works; an idle one may have died meanwhile, so a second one is tried."""
        asking: _Asking | None = None
        fresh = False
        while True:
            try:
                with self._lent(fresh) as connection:
                    return action(connection)
            except StoreFailed:
                if asking is None or asking.over:
                    raise
            except (redis.RedisError, OSError) as error:
                asking = asking or _asking(error)
                if asking is None or asking.over:
                    raise self.failure(error) from error
            fresh = True
            asking.rest()

    @contextmanager
    def _lent(self, fresh: bool) -> Iterator[Connection]:
        self._enter()
        try:
            connection = self._take(fresh)
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._room.release()

    def _enter(self) -> None:
        if os.getpid() != self._process:
            reason = f"it was opened by process {self._process} and is used by process {os.getpid()} after a fork"
            raise StoreFailed(self.name, reason)
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            reason = f"all {CONNECTIONS_MOST} connections of this process were busy for {_WAIT_SECONDS:g} s"
            raise StoreFailed(self.name, reason, _REMEDY)

    def _take(self, fresh: bool) -> Connection:
        with self._guard:
            if self._closed:
                raise Closed("the store")
            # One dead connection means that its siblings of the same age are probably dead as well.
            stale, self._idle = (self._idle, []) if fresh else ([], self._idle)
            connection = self._idle.pop() if self._idle else None
        for each in stale:
            each.disconnect()
        return connection or self.connect()

    def _give_back(self, connection: Connection) -> None:
        if connection.is_connected:
            with self._guard:
                if not self._closed:
                    self._idle.append(connection)
                    return
        connection.disconnect()


class _Asking:
    """Until when to ask on, and how often."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds
        self._pause = 0.0

    @property
    def over(self) -> bool:
        return monotonic() >= self._end

    def rest(self) -> None:
        """Not at all before the second time: what broke is mostly an old connection."""
        Event().wait(self._pause)
        self._pause = min(_ASK_MOST, max(_ASK_FIRST, self._pause * 2))


def _asking(error: Exception) -> _Asking | None:
    """How long to ask again after this error; None: it would not help."""
    if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
        return None
    if isinstance(error, _FOR_NOW) or str(error).startswith(_FOR_NOW_TOO):
        return _Asking(_REFUSED_SECONDS)
    unknown = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    return _Asking(_CERTAIN_SECONDS) if unknown else None


def _evaluate(connection: Connection, one: Script, given: tuple[Argument, ...]) -> Any:
    try:
        return _ask(connection, ("EVALSHA", one.digest, 1, *given))
    except redis.exceptions.NoScriptError:
        _ask(connection, ("SCRIPT", "LOAD", one.text))
        return _ask(connection, ("EVALSHA", one.digest, 1, *given))


def _ask(connection: Connection, arguments: tuple[Argument, ...]) -> Any:
    connection.send_command(*arguments)
    return connection.read_response()
