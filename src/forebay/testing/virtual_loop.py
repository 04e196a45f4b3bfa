"""An event loop in virtual time: `asyncio.sleep(60)` moves the test's clock by a minute and takes no time.

Time jumps to the next timer only when nothing else can happen. While the loop has an open connection, or a thread works
for it, the outside world decides what happens next: then the loop waits in real time, and the clock follows.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from forebay.testing.clock import ManualClock

_MICROS: Final = 1_000_000

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Jumps to the end of a wait in which no file can become ready."""

    loop: "VirtualLoop | None" = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        if loop is None or not timeout or timeout < 0:
            return super().select(timeout)
        # The first file is the loop's own, by which other threads wake it.
        if len(self.get_map()) > 1 or loop.threads:
            began = time.monotonic()
            found = super().select(timeout)
            loop.clock.advance(int((time.monotonic() - began) * _MICROS))
            return found
        loop.clock.advance(max(1, round(timeout * _MICROS)))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time is that of a `ManualClock`. `threads`: calls that its executor has not finished."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.threads = 0
        # Counted from here: of a number as large as an instant, a float would lose the microseconds.
        self._start = clock.now()
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = 1 / _MICROS

    def time(self) -> float:
        return (self.clock.now() - self._start) / _MICROS

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self.threads -= 1

    async def shutdown_default_executor(self, *_: Any, **__: Any) -> None:
        """Its threads end in real time: the timeout that Python 3.12 sets would be over at once in virtual time."""
        self.threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self.threads -= 1


class VirtualRunner:
    """Runs coroutines one after the other on one `VirtualLoop`, so that what is bound to the loop can be reused.

    In a test that is a coroutine itself they run in a thread of their own, because a thread has one running loop.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._runner = asyncio.Runner(loop_factory=lambda: VirtualLoop(clock))
        self.running = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns."""

        async def marked() -> T:
            self.running = True
            try:
                return await work
            finally:
                self.running = False

        return _outside_of_loops(lambda: self._runner.run(marked()))

    def close(self) -> None:
        _outside_of_loops(self._runner.close)


def _outside_of_loops(call: Callable[[], T]) -> T:
    """What the call returns, made in another thread if this one runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "forebay-virtual-loop") as thread:
        return thread.submit(call).result()
