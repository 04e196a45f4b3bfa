"""Group commit: calls of several threads that arrive during a commit share the next one.

The first thread leads: it takes all calls that wait, commits them at once and only then lets their threads return. The
thread that has waited longest leads the next commit. An interrupted thread blocks no other.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

from forebay.core.errors import StoreFailed


class PendingCall:
    """One thread's call. `wakeup` is released when the call is done, or when its thread has to lead."""

    __slots__ = ("done", "error", "leads", "wakeup")

    def __init__(self) -> None:
        self.wakeup = Lock()
        self.wakeup.acquire()
        self.error: BaseException | None = None
        self.done = False
        self.leads = False


C = TypeVar("C", bound=PendingCall)


class GroupCommit(Generic[C]):
    """Calls that wait for a commit. Only the leader calls `commit`, which takes its calls by `group`."""

    def __init__(self, name: str, commit: Callable[[], None]) -> None:
        self._name = name
        self._commit = commit
        self._guard = Lock()
        self._waiting: deque[C] = deque()
        self._led = False

    @property
    def waiting(self) -> int:
        """How many calls wait for the next commit."""
        return len(self._waiting)

    @property
    def led(self) -> bool:
        """Whether a commit is under way."""
        return self._led

    def make(self, call: C) -> None:
        """Return when the call is committed; raise its error."""
        with self._guard:
            self._waiting.append(call)
            call.leads = not self._led
            self._led = True
        if not call.leads:
            self._follow(call)
        if call.leads:
            try:
                while not call.done:
                    self._commit()
            finally:
                self._pass_on()
        if call.error is not None:
            raise call.error

    @contextmanager
    def group(self, fits: Callable[[C], bool]) -> Iterator[list[C]]:
        """The first call and the calls after it while they fit; at the end of the block all of them are done.

        If the leader is interrupted inside the block, calls without an error of their own fail with `StoreFailed`.
        """
        calls: list[C] = []
        interrupted = True
        try:
            with self._guard:
                while self._waiting and (fits(self._waiting[0]) or not calls):
                    calls.append(self._waiting.popleft())
            yield calls
            interrupted = False
        finally:
            for call in calls:
                if interrupted and call.error is None:
                    call.error = StoreFailed(self._name, "the thread that led the commit was interrupted")
                call.done = True
                if not call.leads:
                    call.wakeup.release()

    def _follow(self, call: C) -> None:
        """Wait until the call is done or its thread has to lead."""
        try:
            call.wakeup.acquire()
        except BaseException:
            with self._guard:
                if call in self._waiting:
                    self._waiting.remove(call)
            if call.leads:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._guard:
            self._led = bool(self._waiting)
            if self._led:
                self._waiting[0].leads = True
                self._waiting[0].wakeup.release()
