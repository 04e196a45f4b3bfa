"""What keeps a cell from holding up the others: a deadline for its calls, and a breaker.

A call with a deadline runs in a thread of its cell, and its caller goes on when the time is up; where a late answer has
to be undone, `late` does it. A missed deadline or a failed store opens the breaker: further calls are refused at once.
Meanwhile a thread of the cell probes the store, and closes the breaker when it answers. Callers never probe.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from forebay.core.errors import Closed, StoreFailed

T = TypeVar("T")
_log: Final = logging.getLogger("forebay.cells")
MAX_CALLS: Final = 256
"""Calls of one cell that may be under way in its threads."""

_IDLE_SECONDS: Final = 30.0
_CHECK_SECONDS: Final = 3.0
_FIRST_PROBE: Final = 0.1
_MAX_PROBE: Final = 2.0
_RENEWED_WITHIN: Final = 3.0
_JOIN_SECONDS: Final = 2.0
_REMEDY: Final = "the other cells go on; it is used again as soon as it answers"


class CellDown(StoreFailed):
    """A cell is unreachable or too slow; what lives in the others is not affected."""

    def __init__(self, cell: str, reason: str) -> None:
        super().__init__(f"cell {cell}", reason, _REMEDY)
        self.cell = cell


class Calls(Protocol):
    """Where calls with a deadline run."""

    def submit(self, call: Callable[[], T]) -> Future[T]: ...


class CallThreads:
    """Daemon threads for calls that may hang. A thread is started when all are busy, and ends when it was idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._busy == MAX_CALLS:
                raise StoreFailed(f"cell {self._name}", f"{MAX_CALLS} calls are under way", _REMEDY)
            self._busy += 1
            starts = self._busy > self._threads
            self._threads += starts
        future: Future[T] = Future()
        self._tasks.put((future, call))
        if starts:
            Thread(target=self._run, name=f"forebay-cell-{self._name}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            try:
                future, call = self._tasks.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._busy < self._threads:
                        self._threads -= 1
                        return
                continue
            try:
                answer = call()
            except BaseException as error:
                self._done()
                future.set_exception(error)
            else:
                self._done()
                future.set_result(answer)

    def _done(self) -> None:
        with self._lock:
            self._busy -= 1


class Guard:
    """Breaker and deadline of one cell. `probe` reads the store, and raises where it is not to be used."""

    def __init__(
        self,
        name: str,
        deadline: float | None,
        probe: Callable[[], object],
        *,
        threads: Calls | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name: Final = name
        self._deadline = deadline
        self._probe = probe
        self._clock = clock
        self._down: str | None = None
        self._back_at = -_RENEWED_WITHIN
        self._seconds_to_probe = _CHECK_SECONDS
        self._wake = Event()
        self._closing = False
        self.threads: Final[Calls] = CallThreads(name) if threads is None else threads
        self._watch = Thread(target=self._keep_watch, name=f"forebay-cell-{name}-watch", daemon=True)

    @property
    def down(self) -> str | None:
        """Why the breaker is open; None: it is closed."""
        return self._down

    @property
    def recovering(self) -> bool:
        """Whether it was down until a moment ago, so that workers have not renewed their leases yet."""
        return self._clock() < self._back_at + _RENEWED_WITHIN

    def start(self) -> None:
        """Probe from now on."""
        self._watch.start()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._watch.ident is not None:
            self._watch.join(_JOIN_SECONDS)

    def call(self, call: Callable[[], T]) -> T:
        """In this thread, for as long as the store takes."""
        if self._down is not None and not self._closing:
            raise CellDown(self.name, self._down)
        return self._perform(call)

    def _perform(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except StoreFailed as error:
            self._open(error.reason)
            raise CellDown(self.name, error.reason) from error

    def within(self, call: Callable[[], T], late: Callable[[T], object] | None = None) -> T:
        """In a thread of the cell, up to its deadline; `late` gets an answer that comes after it."""
        if self._deadline is None:
            return self.call(call)
        if self._down is not None and not self._closing:
            raise CellDown(self.name, self._down)
        future = self.threads.submit(lambda: self._perform(call))
        try:
            return future.result(self._deadline)
        except TimeoutError:
            if future.done():
                return future.result()
        self._open(f"it did not answer within {self._deadline:g} s")
        if late is not None:
            future.add_done_callback(lambda done: None if done.exception() else late(done.result()))
        raise CellDown(self.name, self._down or "it answers again")

    def probe(self) -> None:
        """Read the store once, within the deadline."""
        self.within(self._probe)

    def _open(self, reason: str) -> None:
        if self._down is None and not self._closing:
            self._down = reason
            self._wake.set()
            _log.warning("cell %s is left out: %s", self.name, reason)

    def _keep_watch(self) -> None:
        seconds = _CHECK_SECONDS
        while not self._closing:
            self._wake.wait(seconds)
            self._wake.clear()
            try:
                seconds = self.check()
            except Closed:
                return  # closed meanwhile

    def check(self) -> float:
        """Probe the store, and open or close the breaker; the seconds until the next probe."""
        try:
            self._probe()
        except Closed:
            raise
        except Exception as error:
            self._open(str(error))
            before = self._seconds_to_probe
            self._seconds_to_probe = min(_MAX_PROBE, before * 2) if before < _CHECK_SECONDS else _FIRST_PROBE
            return self._seconds_to_probe
        if self._down is not None:
            self._down, self._back_at = None, self._clock()
            _log.warning("cell %s is back", self.name)
        self._seconds_to_probe = _CHECK_SECONDS
        return self._seconds_to_probe
