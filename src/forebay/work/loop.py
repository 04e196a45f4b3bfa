"""Async handlers: a fixed number of coroutines on one event loop, in its own thread.

One long-lived task for each slot takes runs from a deque; a task for each job would cost three times as much. The first
step of a handler is made directly: handlers that never await run one after the other in one slot and are finished as a
batch, and only one that awaits wakes the next slot. Handlers that awaited are finished together, too: those that end
within `_GATHER` of the first. `flush`, called periodically from another thread, finishes completed runs while a handler
blocks the loop.

A run is stopped by cancelling the task of its slot; the slot recognises that the cancellation was meant for the run and
continues. SystemExit in a task that a handler created would end the loop, so there it becomes an ordinary error of that
handler.
"""

import asyncio
import logging
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
from forebay.work.handler import call_with_blob
from forebay.work.process_guards import ForkCounter
from forebay.work.run import Run
from forebay.work.start_marks import NEWEST, NOTHING

_log = logging.getLogger("forebay.work")

BLOCKED_SECONDS: Final = 1.0
"""A handler that runs for longer before its first await is reported."""

_YIELD_INTERVAL: Final = 0.002
"""Seconds after which a slot yields to the loop even if its handlers never await."""

_GATHER: Final = 0.001
"""Seconds for which the first run that ended waits for others: finishing a run alone can cost more than running it."""


class LoopSlots:
    """The slots of one event loop.

    begin    called on the loop's thread once for each run; False refuses it
    finish   called on the loop's thread or by `flush`
    on_loop  called with the fence of the handler that runs from now on: `NEWEST`, one that resumes, or `NOTHING`
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
        self._on_loop = on_loop or _ignore
        self._ready: deque[Run] = deque()
        self._done: deque[tuple[Run, Outcome]] = deque()
        self._flush_scheduled = False
        self._idle: list[asyncio.Future[None]] = []
        self._blocking: set[str] = set()
        self._started = Event()
        self._closing = False
        self._pinged_at: float | None = None
        self._forks = ForkCounter.count
        self._thread = Thread(target=self._host, name="forebay-loop", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def submit(self, runs: Sequence[Run]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake, runs)
        except RuntimeError:
            # The loop is dead, which makes the worker unhealthy; the runs are released.
            self._finish([(run, Interrupted()) for run in runs])

    def interrupt(self, run: Run) -> None:
        """Cancel the run if it has not ended; `run.stop` says why."""
        try:
            self._loop.call_soon_threadsafe(self._cancel, run)
        except RuntimeError:
            self._finish([(run, run.stopped_outcome())])

    def flush(self) -> None:
        """Finish the completed runs."""
        done = []
        with suppress(IndexError):
            while True:
                done.append(self._done.popleft())
        if done:
            self._finish(done)

    def ping(self) -> None:
        """Send a probe to the loop, unless one is unanswered."""
        if self._pinged_at is None:
            self._pinged_at = monotonic()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._pong)

    def silent_for(self) -> float:
        """Seconds since an unanswered probe: a handler blocks the loop."""
        pinged_at = self._pinged_at
        return 0.0 if pinged_at is None else monotonic() - pinged_at

    def lag(self, timeout: float) -> float:
        """Seconds until the loop runs a new callback, at most `timeout`."""
        sent_at, answered = monotonic(), Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return timeout
        return monotonic() - sent_at if answered.wait(timeout) else timeout

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns on this loop; for other threads."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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
        self.flush()

    def _wake(self, runs: Sequence[Run]) -> None:
        self._ready.extend(runs)
        self._wake_one()

    def _wake_one(self) -> None:
        """Wake an idle slot."""
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                return

    def _pong(self) -> None:
        self._pinged_at = None

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
                    self._idle.append(future)
                    await future
                begun = self._run_ready(task)
                if begun is None and self._ready:
                    self._wake_one()
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                # The cancellation came too late for its run. Only the end of the loop ends a slot.
                if self._ending():
                    return
                task.uncancel()
                continue
            if begun is not None:
                if self._ready:
                    self._wake_one()
                await self._resume(*begun, task)
            if task.cancelling():
                await self._swallow(task)

    def _run_ready(self, task: "asyncio.Task[None]") -> "tuple[Run, _Begun] | None":
        """Run ready handlers until one awaits, which is returned for the caller to resume, or the slot must yield."""
        until = monotonic() + _YIELD_INTERVAL
        ready = self._ready
        self._on_loop(NEWEST)
        try:
            while ready:
                run = ready.popleft()
                begun = self._first_step(run)
                now = monotonic()
                if now >= until + BLOCKED_SECONDS:
                    self._report_blocking(run, now - until)
                if begun is not None:
                    return run, begun
                if now >= until or task.cancelling():
                    break
        finally:
            self._on_loop(NOTHING)
            self.flush()
        return None

    def _report_blocking(self, run: Run, seconds: float) -> None:
        """Once for each kind: it goes on like that."""
        kind = run.handler.kind
        if kind not in self._blocking:
            self._blocking.add(kind)
            reason = "no other async handler ran meanwhile; declare it with def, or await what blocks"
            _log.warning("job %d (%s) ran for %.1f s without an await: %s", run.lease.job.id, kind, seconds, reason)

    def _first_step(self, run: Run) -> "_Begun | None":
        """Begin a run; None if it completed without awaiting."""
        handler = run.handler
        try:
            job = run.lease.job
            blobs = handler.awaits_blobs(job)
            arguments = {} if blobs else handler.signature.arguments(job, run.context)
            if self._begin(run):
                work = call_with_blob(handler, job, run.context) if blobs else handler.function(**arguments)
                try:
                    return _Begun(run.fence, work, work.send(None), self._on_loop)
                except StopIteration as done:
                    outcome = self._succeed(run, done.value)
            else:
                outcome = run.stopped_outcome()
        except BaseException as error:
            outcome = self._outcome_of(run, error)
        finally:
            self._exit_forked_child()
        self._done.append((run, outcome))
        return None

    async def _resume(self, run: Run, begun: "_Begun", task: "asyncio.Task[None]") -> None:
        """Complete a run that has begun to await."""
        run.task = task
        try:
            outcome = self._succeed(run, await begun)
        except BaseException as error:
            outcome = self._outcome_of(run, error)
        finally:
            self._exit_forked_child()
        run.task = None
        self._done.append((run, outcome))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_later(_GATHER, self._flush_gathered)

    def _flush_gathered(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _outcome_of(self, run: Run, error: BaseException) -> Outcome:
        if isinstance(error, asyncio.CancelledError) and (run.stop is not None or self._ending()):
            return run.stopped_outcome()
        return run.handler.outcome_of(error, run.lease.job.body)

    def _exit_forked_child(self) -> None:
        """A forked child that returned from the handler must not continue as a second worker."""
        if ForkCounter.count != self._forks:
            os._exit(0)

    def _ending(self) -> bool:
        """Whether the loop ends: it was closed, or a handler's task raised SystemExit through it."""
        return self._closing or self._main_task.cancelling() > 0

    async def _swallow(self, task: "asyncio.Task[None]") -> None:
        """Consume cancellations that were meant for the run that has ended."""
        while task.cancelling() and not self._ending():
            task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


class _Begun:
    """A coroutine after its first step; await it for the rest."""

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


def _ignore(fence: Fence) -> None:
    """The `on_loop` of a worker without start marks."""


class ExitInTask(Exception):
    """A task that a handler created raised SystemExit or KeyboardInterrupt."""


async def _guarded(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitInTask(f"{type(error).__name__}: {error}") from error


def _guarded_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(_guarded(work), loop=loop, **options)
