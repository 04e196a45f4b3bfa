"""The connections of one process to a server: few, shared by all threads, replaced when they break.

`Lending` lends each to one caller at a time; whoever finds all of them lent waits, for a bounded time. It never lends
across a fork. `Asking` is how long a call goes on that a server refuses for now, or whose outcome is open.

Every statement or command has a deadline on this side: TCP notices a machine that is gone, not a server or a pooler
that accepts bytes and never answers. A connection that misses it is dropped, as if it had been cut.
"""

import os
from abc import abstractmethod
from math import nan
from threading import BoundedSemaphore, Event, Lock
from time import monotonic
from typing import Final, Generic, TypeVar

from forebay.core.errors import Closed, Invalid, StoreFailed

CONNECTIONS_MOST: Final = 16
CERTAIN_SECONDS: Final = 15.0
"""How long a call whose outcome is open goes on asking; then it is `StoreFailed`."""

CALL_SECONDS: Final = 10.0
"""How long a server may take to answer, unless the URL says otherwise: a third of a worker's lease, so that a heartbeat
whose connection hangs is made again in time."""

_MIN_CALL: Final = 0.5
_MAX_CALL: Final = 3_600.0
_OPTION: Final = "call_timeout"

REMEDY: Final = "try again: it reconnects by itself, and a call that has a key adds nothing twice"

_WAIT_SECONDS: Final = 30.0
_ASK_FIRST: Final = 0.02
_ASK_MOST: Final = 1.0

L = TypeVar("L")


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


class Lending(Generic[L]):
    """What a store says of a connection: how one is opened and ended, and whether it may be lent again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = os.getpid()
        self._room = BoundedSemaphore(CONNECTIONS_MOST)
        self._guard = Lock()
        self._idle: list[L] = []
        self._closed = False

    @abstractmethod
    def _open(self) -> L:
        """A new one; `StoreFailed` where there is none to be had."""

    @abstractmethod
    def _end(self, line: L) -> None:
        """It is not used any more."""

    @abstractmethod
    def _works(self, line: L) -> bool:
        """Whether another caller may have it."""

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        if os.getpid() == self._process:
            for line in idle:
                self._end(line)

    def _take(self, fresh: bool) -> L:
        """For `_give_back`, whatever happens. `fresh`: the one before turned out to be dead."""
        if os.getpid() != self._process:
            reason = f"it was opened by process {self._process} and is used by process {os.getpid()} after a fork"
            raise StoreFailed(self.name, reason)
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            reason = f"all {CONNECTIONS_MOST} connections of this process were busy for {_WAIT_SECONDS:g} s"
            raise StoreFailed(self.name, reason, REMEDY)
        try:
            return self._idle_one(fresh) or self._open()
        except BaseException:
            self._room.release()
            raise

    def _give_back(self, line: L) -> None:
        try:
            if self._works(line):
                with self._guard:
                    if not self._closed:
                        self._idle.append(line)
                        return
            self._end(line)
        finally:
            self._room.release()

    def _idle_one(self, fresh: bool) -> L | None:
        with self._guard:
            if self._closed:
                raise Closed("the store")
            # One dead connection means that its siblings of the same age are probably dead as well.
            stale, self._idle = (self._idle, []) if fresh else ([], self._idle)
            line = self._idle.pop() if self._idle else None
        for each in stale:
            self._end(each)
        return line


class Asking:
    """Until when to ask on, and how often."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = monotonic() + (CERTAIN_SECONDS if seconds is None else seconds)
        self._pause = 0.0

    @property
    def over(self) -> bool:
        return monotonic() >= self._end

    def rest(self) -> None:
        """Not at all before the second time: what broke is mostly an old connection."""
        Event().wait(self._pause)
        self._pause = min(_ASK_MOST, max(_ASK_FIRST, self._pause * 2))
