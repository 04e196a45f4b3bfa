"""A connection pool: few connections a process, shared by all threads, replaced when they break.

`ConnectionPool` gives each connection to one caller at a time; a caller that finds all of them busy waits for a bounded
time. Connections are not used across a fork. `RetryDeadline` bounds the retries of a call that a server refuses for
now, or whose outcome is unknown.

Every statement or command has a deadline on the client side: TCP detects a machine that is gone, not a server or a
pooler that accepts bytes and never answers. A connection that misses its deadline is closed.
"""

import os
from abc import abstractmethod
from math import nan
from threading import BoundedSemaphore, Event, Lock
from time import monotonic
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from forebay.core.errors import Closed, Invalid, StoreFailed

MAX_CONNECTIONS: Final = 16
CERTAIN_SECONDS: Final = 15.0
"""How long a call with an unknown outcome is retried; then it raises `StoreFailed`."""

CALL_SECONDS: Final = 10.0
"""The default deadline of one call; `?call_timeout=` in the URL sets another. It is a third of a worker's lease, so
that a heartbeat on a connection that hangs is repeated in time."""

_MIN_CALL: Final = 0.5
_MAX_CALL: Final = 3_600.0
_OPTION: Final = "call_timeout"

REMEDY: Final = "try again: it reconnects by itself, and a call that has a key adds nothing twice"

_WAIT_SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.02
_MAX_PAUSE: Final = 1.0

L = TypeVar("L")


def masked(url: str) -> str:
    """The URL of a server for display: without its password and its options."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if user else ''}{hosts}{parts.path}"


def split_call_timeout(url: str) -> tuple[str, float]:
    """The URL without the option `call_timeout`, and its seconds."""
    place, mark, query = url.partition("?")
    options = query.split("&") if mark else []
    given = [option.partition("=")[2] for option in options if option.partition("=")[0] == _OPTION]
    others = "&".join(option for option in options if option.partition("=")[0] != _OPTION)
    plain = f"{place}?{others}" if others else place
    if not given:
        return plain, CALL_SECONDS
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = nan
    if not _MIN_CALL <= seconds <= _MAX_CALL:
        reason = f"{given[-1]!r} is not a number of seconds from {_MIN_CALL:g} to {_MAX_CALL:g}"
        raise Invalid(_OPTION, reason, f"write ?{_OPTION}={CALL_SECONDS:g}, or leave it out")
    return plain, seconds


class ConnectionPool(Generic[L]):
    """A store implements `_open`, `_close_connection` and `_is_usable` for its kind of connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = os.getpid()
        self._room = BoundedSemaphore(MAX_CONNECTIONS)
        self._guard = Lock()
        self._idle: list[L] = []
        self._closed = False

    @abstractmethod
    def _open(self) -> L:
        """A new connection; raises `StoreFailed`."""

    @abstractmethod
    def _close_connection(self, connection: L) -> None: ...

    @abstractmethod
    def _is_usable(self, connection: L) -> bool:
        """Whether the connection may return to the pool."""

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        if os.getpid() == self._process:
            for connection in idle:
                self._close_connection(connection)

    def _take(self, fresh: bool) -> L:
        """A connection; the caller passes it to `_give_back` in any case. `fresh`: the previous one was dead."""
        if os.getpid() != self._process:
            reason = f"it was opened by process {self._process} and is used by process {os.getpid()} after a fork"
            raise StoreFailed(self.name, reason)
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            reason = f"all {MAX_CONNECTIONS} connections of this process were busy for {_WAIT_SECONDS:g} s"
            raise StoreFailed(self.name, reason, REMEDY)
        try:
            return self._idle_one(fresh) or self._open()
        except BaseException:
            self._room.release()
            raise

    def _give_back(self, connection: L) -> None:
        try:
            if self._is_usable(connection):
                with self._guard:
                    if not self._closed:
                        self._idle.append(connection)
                        return
            self._close_connection(connection)
        finally:
            self._room.release()

    def _idle_one(self, fresh: bool) -> L | None:
        with self._guard:
            if self._closed:
                raise Closed("the store")
            # One dead connection means that its siblings of the same age are probably dead as well.
            stale, self._idle = (self._idle, []) if fresh else ([], self._idle)
            connection = self._idle.pop() if self._idle else None
        for each in stale:
            self._close_connection(each)
        return connection


class RetryDeadline:
    """When to stop retrying, with a pause that doubles from one attempt to the next."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = monotonic() + (CERTAIN_SECONDS if seconds is None else seconds)
        self._pause = 0.0

    @property
    def expired(self) -> bool:
        return monotonic() >= self._end

    def pause(self) -> None:
        """Wait before the next attempt; not before the first retry, since most failures are stale connections."""
        Event().wait(self._pause)
        self._pause = min(_MAX_PAUSE, max(_FIRST_PAUSE, self._pause * 2))
