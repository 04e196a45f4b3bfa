"""Async handlers: fixed coroutines on one event loop in a thread of its own.

A coroutine a slot, fed from a deque: a task a job would cost three times as much. A handler is first stepped by hand:
those that never wait for anything are done one after the other in one slot, and finished together; only one that does
wait wakes the next slot. `flush`, called from elsewhere now and then, sees to it that no handler that blocks the loop
keeps back what others have done before it. A run is stopped by
cancelling its slot's task; the slot notices that it was meant for the run and goes on. SystemExit in a task that a
handler made would end the loop and everyone on it: there it becomes an ordinary error of that handler.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from forebay.core.lease import Fence
from forebay.core.outcome import Interrupted, Outcome
from forebay.work.forks import Forks
from forebay.work.run import Run
from forebay.work.start_marks import NEWEST, NOTHING

_BREATHE_EVERY: Final = 0.002
"""Seconds after which handlers that never wait let the loop look after others."""


class LoopSlots:
    """`begin` is called on the loop's thread, once a run, and may refuse it; `finish` there or in `flush`.

    `on_loop` is told whose handler runs just now: that which began last, or the one that goes on, or none.
    """

    def __init__(
        self,
        size: int,
        begin: Callable[[Run], bool],
        finish: Callable[[Sequence[tuple[Run, Outcome]]], object],
        succeed: Callable[[Run, object], Outcome],
        on_loop: Callable[[Fence], None] | None = None,
    ) -> None:
        self._size = size
        self._begin = begin
        self._finish = finish
        self._succeed = succeed
        self._on_loop = on_loop or _nobody_asks
        self._ready: deque[Run] = deque()
        self._done: deque[tuple[Run, Outcome]] = deque()
        self._resting: list[asyncio.Future[None]] = []
        self._started = Event()
        self._closing = False
        self._asked_at: float | None = None
        self._forks = Forks.count
        self._thread = Thread(target=self._host, name="forebay-loop", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def feed(self, runs: Sequence[Run]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake, runs)
        except RuntimeError:
            # The loop is dead, and the worker will notice; what was to run on it is handed back.
            self._finish([(run, Interrupted()) for run in runs])

    def interrupt(self, run: Run) -> None:
        """Cancel the run if it is still under way; `run.stop` says why."""
        try:
            self._loop.call_soon_threadsafe(self._cancel, run)
        except RuntimeError:
            self._finish([(run, run.stopped_outcome())])

    def flush(self) -> None:
        """Finish what is done."""
        done = []
        with suppress(IndexError):
            while True:
                done.append(self._done.popleft())
        if done:
            self._finish(done)

    def ping(self) -> None:
        """Ask the loop for a sign of life, unless it still owes one."""
        if self._asked_at is None:
            self._asked_at = monotonic()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._pong)

    def silent_for(self) -> float:
        """Seconds for which the loop has owed an answer: a handler blocks it."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else monotonic() - asked_at

    def lag(self, patience: float) -> float:
        """Seconds until the loop runs something new; `patience` if it does not within that time."""
        asked_at, answered = monotonic(), Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return patience
        return monotonic() - asked_at if answered.wait(patience) else patience

    def close(self) -> None:
        self._closing = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(5)

    def _host(self) -> None:
        with suppress(SystemExit, KeyboardInterrupt):
            asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        main_task = asyncio.current_task()
        assert main_task is not None
        self._main_task = main_task
        self._end = asyncio.Event()
        slots = [asyncio.create_task(self._slot()) for _ in range(self._size)]
        self._loop.set_task_factory(_guarded_task)  # type: ignore[arg-type]
        self._started.set()
        await self._end.wait()
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)

    def _wake(self, runs: Sequence[Run]) -> None:
        self._ready.extend(runs)
        self._wake_one()

    def _wake_one(self) -> None:
        """Somebody for what is ready."""
        while self._resting:
            future = self._resting.pop()
            if not future.done():
                future.set_result(None)
                return

    def _pong(self) -> None:
        self._asked_at = None

    def _cancel(self, run: Run) -> None:
        if isinstance(run.task, asyncio.Task):
            run.task.cancel()
        elif run in self._ready:
            self._ready.remove(run)
            self._finish([(run, run.stopped_outcome())])

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._ending():
            try:
                while not self._ready:
                    future = self._loop.create_future()
                    self._resting.append(future)
                    await future
                begun = self._work_off(task)
                if begun is None and self._ready:
                    self._wake_one()
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                # A cancellation that came too late for its run; only the end of the loop ends a slot.
                if self._ending():
                    return
                task.uncancel()
                continue
            if begun is not None:
                if self._ready:
                    self._wake_one()
                await self._go_on(*begun, task)
            if task.cancelling():
                await self._swallow(task)

    def _work_off(self, task: "asyncio.Task[None]") -> "tuple[Run, _Begun] | None":
        """What is ready, until one waits for something, which is then to be gone on with; or for a moment."""
        until = monotonic() + _BREATHE_EVERY
        ready = self._ready
        self._on_loop(NEWEST)
        try:
            while ready:
                run = ready.popleft()
                begun = self._first_step(run)
                if begun is not None:
                    return run, begun
                if monotonic() >= until or task.cancelling():
                    break
        finally:
            self._on_loop(NOTHING)
            self.flush()
        return None

    def _first_step(self, run: Run) -> "_Begun | None":
        """Begin a run; None if that was all of it."""
        handler = run.handler
        try:
            arguments = handler.signature.unpack(run.lease.job.body)
            if handler.signature.context_name is not None:
                arguments[handler.signature.context_name] = run.context
            if self._begin(run):
                work = handler.function(**arguments)
                try:
                    return _Begun(run.fence, work, work.send(None), self._on_loop)
                except StopIteration as done:
                    outcome = self._succeed(run, done.value)
            else:
                outcome = run.stopped_outcome()
        except BaseException as error:
            outcome = self._outcome_of(run, error)
        finally:
            self._stay_one()
        self._done.append((run, outcome))
        return None

    async def _go_on(self, run: Run, begun: "_Begun", task: "asyncio.Task[None]") -> None:
        """The rest of a run that has begun to wait."""
        run.task = task
        try:
            outcome = self._succeed(run, await begun)
        except BaseException as error:
            outcome = self._outcome_of(run, error)
        finally:
            self._stay_one()
        run.task = None
        self._finish([(run, outcome)])

    def _outcome_of(self, run: Run, error: BaseException) -> Outcome:
        if isinstance(error, asyncio.CancelledError) and (run.stop is not None or self._ending()):
            return run.stopped_outcome()
        return run.handler.outcome_of(error, run.lease.job.body)

    def _stay_one(self) -> None:
        """A handler that forked and came back in the child must not go on as a second worker."""
        if Forks.count != self._forks:
            os._exit(0)

    def _ending(self) -> bool:
        """Whether the whole loop goes down: it was closed, or a handler's own task raised SystemExit through it."""
        return self._closing or self._main_task.cancelling() > 0

    async def _swallow(self, task: "asyncio.Task[None]") -> None:
        """Cancellations that were meant for the run that is over must not hit the next one."""
        while task.cancelling() and not self._ending():
            task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


class _Begun:
    """A coroutine that was stepped once already, to be awaited for the rest."""

    def __init__(
        self, fence: Fence, work: Coroutine[Any, Any, Any], waits_for: Any, on_loop: Callable[[Fence], None]
    ) -> None:
        self._fence = fence
        self._work = work
        self._waits_for = waits_for
        self._on_loop = on_loop

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, answer)
            self._on_loop(self._fence)
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            finally:
                self._on_loop(NOTHING)


def _nobody_asks(fence: Fence) -> None:
    """Where there are no start marks."""


class ExitInTask(Exception):
    """A task of a handler raised SystemExit or KeyboardInterrupt."""


async def _guarded(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitInTask(f"{type(error).__name__}: {error}") from error


def _guarded_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(_guarded(work), loop=loop, **options)
