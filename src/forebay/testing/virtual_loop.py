"""An event loop in virtual time: `asyncio.sleep(60)` moves the test's clock by a minute and takes no time.

Time jumps to the next timer only when nothing else can happen. While the loop has an open connection, or a thread works
for it, the outside world decides what happens next: then the loop waits in real time, and the clock follows.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, Final

from forebay.testing.clock import ManualClock

_MICROS: Final = 1_000_000


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


def run_virtual(clock: ManualClock, work: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
    """What the coroutine returns; `TimeoutError` if it takes longer than so many virtual seconds.

    In a test that is a coroutine itself it runs in a thread of its own, because a thread has one running loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(clock, work, timeout)
    ended: list[Callable[[], Any]] = []

    def run() -> None:
        try:
            value = _run(clock, work, timeout)
        except BaseException as error:
            ended.append(lambda error=error: _reraise(error))  # type: ignore[misc]
        else:
            ended.append(lambda: value)

    thread = Thread(target=run, name="forebay-virtual-loop")
    thread.start()
    thread.join()
    return ended[0]()


def _run(clock: ManualClock, work: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(timeout):
            return await work

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(bounded())


def _reraise(error: BaseException) -> None:
    raise error
