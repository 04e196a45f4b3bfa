"""The connections of one process to a server: few, shared by all threads, replaced when they break.

`Lending` lends each to one caller at a time; whoever finds all of them lent waits, for a bounded time. It never lends
across a fork. `Asking` is how long a call goes on that a server refuses for now, or whose outcome is open.
"""

import os
from abc import abstractmethod
from threading import BoundedSemaphore, Event, Lock
from time import monotonic
from typing import Final, Generic, TypeVar

from forebay.core.errors import Closed, StoreFailed

CONNECTIONS_MOST: Final = 16
CERTAIN_SECONDS: Final = 15.0
"""How long a call whose outcome is open goes on asking; then it is `StoreFailed`."""

REMEDY: Final = "try again: it reconnects by itself, and a call that has a key adds nothing twice"

_WAIT_SECONDS: Final = 30.0
_ASK_FIRST: Final = 0.02
_ASK_MOST: Final = 1.0

L = TypeVar("L")


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
