"""Async handlers: fixed coroutines on one event loop in a thread of its own.

A coroutine a slot, fed from a deque: a task a job would cost three times as much. A handler is first stepped by hand:
one that never waits for anything needs no second slot, and only one that does wait wakes the next. A run is stopped by
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

from forebay.core.outcome import Interrupted, Outcome
from forebay.work.forks import Forks
from forebay.work.run import Run

_BREATHE_EVERY: Final = 0.002
"""Seconds after which handlers that never wait let the loop look after others."""


class LoopSlots:
    """`begin` and `finish` are called on the loop's thread, once a run."""

    def __init__(
        self,
        size: int,
        begin: Callable[[Run], None],
        finish: Callable[[Run, Outcome], object],
        succeed: Callable[[Run, object], Outcome],
    ) -> None:
        self._size = size
        self._begin = begin
        self._finish = finish
        self._succeed = succeed
        self._ready: deque[Run] = deque()
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
            for run in runs:
                self._finish(run, Interrupted())

    def interrupt(self, run: Run) -> None:
        """Cancel the run if it is still under way; `run.stop` says why."""
        try:
            self._loop.call_soon_threadsafe(self._cancel, run)
        except RuntimeError:
            self._finish(run, run.stopped_outcome())

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
            self._finish(run, run.stopped_outcome())

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        rested_at = monotonic()
        while not self._ending():
            try:
                if self._ready and monotonic() - rested_at > _BREATHE_EVERY:
                    self._wake_one()
                    await asyncio.sleep(0)
                    rested_at = monotonic()
                while not self._ready:
                    future = self._loop.create_future()
                    self._resting.append(future)
                    await future
                    rested_at = monotonic()
                run = self._ready.popleft()
            except asyncio.CancelledError:
                # A cancellation that came too late for its run; only the end of the loop ends a slot.
                if self._ending():
                    return
                task.uncancel()
                continue
            run.task = task
            outcome = await self._execute(run, task)
            run.task = None
            self._finish(run, outcome)
            if task.cancelling():
                await self._swallow(task)

    def _ending(self) -> bool:
        """Whether the whole loop goes down: it was closed, or a handler's own task raised SystemExit through it."""
        return self._closing or self._main_task.cancelling() > 0

    async def _swallow(self, task: "asyncio.Task[None]") -> None:
        """Cancellations that were meant for the run that is over must not hit the next one."""
        while task.cancelling() and not self._ending():
            task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    async def _execute(self, run: Run, task: "asyncio.Task[None]") -> Outcome:
        handler = run.handler
        try:
            arguments = handler.signature.unpack(run.lease.job.body)
            if handler.signature.context_name is not None:
                arguments[handler.signature.context_name] = run.context
            self._begin(run)
            work = handler.function(**arguments)
            try:
                waits_for = work.send(None)
            except StopIteration as done:
                return self._succeed(run, done.value)
            if self._ready:
                self._wake_one()
            return self._succeed(run, await _Begun(work, waits_for))
        except asyncio.CancelledError as error:
            if run.stop is None and not self._ending():
                return handler.outcome_of(error)
            return run.stopped_outcome()
        except BaseException as error:
            return handler.outcome_of(error)
        finally:
            # A handler that forked and came back in the child must not go on as a second worker.
            if Forks.count != self._forks:
                os._exit(0)


class _Begun:
    """A coroutine that was stepped once already, to be awaited for the rest."""

    def __init__(self, work: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, answer)
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value


class ExitInTask(Exception):
    """A task of a handler raised SystemExit or KeyboardInterrupt."""


async def _guarded(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitInTask(f"{type(error).__name__}: {error}") from error


def _guarded_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(_guarded(work), loop=loop, **options)
