"""Connections to the server: few, shared by all threads, replaced when they break; and Redis's errors in our words.

A call is one script, by its digest; a server that does not know it, after a restart or SCRIPT FLUSH, is told. A server
that refuses for a while (LOADING, BUSY, READONLY, and the like) has changed nothing and is asked again, for a bounded
time. A connection that is lost after a call was sent leaves open whether it happened: the call is made again, with the
same token, until the server has answered, for a bounded time; it then answers what it answered before. So does one that
is not answered in time: its connection is dropped, since a late answer would be taken for that of the next call.
"""

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

import redis

from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant
from forebay.store.connection_pool import REMEDY, ConnectionPool, RetryDeadline
from forebay.store.redis.address import Address
from forebay.store.redis.scripts import Script, script

_log = logging.getLogger("forebay.store")

Argument = bytes | str | int

_CONNECT_SECONDS: Final = 10.0
_REFUSED_SECONDS: Final = 5.0
"""How long a server that refuses, and says so, is asked again."""

_FOR_NOW: Final = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
)
_FOR_NOW_TOO: Final = ("BUSY", "NOREPLICAS", "UNBLOCKED")
"""Errors that have no class of their own in the driver begin so."""

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


class Server(ConnectionPool[Connection]):
    """One server, as one process uses it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address.name)
        self.address = address
        self._pool = redis.ConnectionPool.from_url(
            address.url,
            protocol=2,
            socket_timeout=address.patience,
            socket_connect_timeout=min(_CONNECT_SECONDS, address.patience),
            client_name="forebay",
            driver_info=None,
            retry=None,
        )
        self.opened = 0
        """Connections that were ever made: another number means that the server may be another one by now."""
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
        self.opened += 1
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

    def failure(self, error: Exception) -> StoreFailed:
        text = self.address.hidden(str(error).strip()).splitlines()
        return StoreFailed(self.name, text[0] if text else type(error).__name__, REMEDY)

    def _attempt(self, action: Callable[[Connection], T]) -> T:
        """The action on a connection that works; an idle one may have died meanwhile, so a second one is tried."""
        deadline: RetryDeadline | None = None
        fresh = False
        while True:
            connection: Connection | None = None
            try:
                connection = self._take(fresh)
                return action(connection)
            except StoreFailed:
                if deadline is None or deadline.expired:
                    raise
            except (redis.RedisError, OSError) as error:
                if isinstance(error, redis.TimeoutError):
                    told = "%s: no answer within %g s; the connection is dropped"
                    _log.warning(told, self.name, self.address.patience)
                deadline = deadline or _asking(error)
                if deadline is None or deadline.expired:
                    raise self.failure(error) from error
            finally:
                if connection is not None:
                    self._give_back(connection)
            fresh = True
            deadline.pause()

    def _open(self) -> Connection:
        return self.connect()

    def _close_connection(self, connection: Connection) -> None:
        connection.disconnect()

    def _is_usable(self, connection: Connection) -> bool:
        return connection.is_connected


def _asking(error: Exception) -> RetryDeadline | None:
    """How long to ask again after this error; None: it would not help."""
    if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
        return None
    if isinstance(error, _FOR_NOW) or str(error).startswith(_FOR_NOW_TOO):
        return RetryDeadline(_REFUSED_SECONDS)
    unknown = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    return RetryDeadline() if unknown else None


def _evaluate(connection: Connection, one: Script, given: tuple[Argument, ...]) -> Any:
    try:
        return _ask(connection, ("EVALSHA", one.digest, 1, *given))
    except redis.exceptions.NoScriptError:
        _ask(connection, ("SCRIPT", "LOAD", one.text))
        return _ask(connection, ("EVALSHA", one.digest, 1, *given))


def _ask(connection: Connection, arguments: tuple[Argument, ...]) -> Any:
    connection.send_command(*arguments)
    return connection.read_response()
