"""Plain handlers: a thread pool that grows on demand up to its size.

A thread cannot be stopped from outside. A run that exceeds its timeout is settled nevertheless, its thread is written
off, and a new thread replaces it. When too many threads are written off (`wedged`), the worker process exits.
"""

import logging
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread

from forebay.core.outcome import Interrupted, Outcome
from forebay.work.process_guards import ForkCounter
from forebay.work.run import Run

_log = logging.getLogger("forebay.work")


class ThreadSlots:
    """`execute` runs a job in the calling thread; `finish` is called in that thread, once for each run."""

    def __init__(
        self, name: str, size: int, execute: Callable[[Run], Outcome], finish: Callable[[Run, Outcome], object]
    ) -> None:
        self._name = name
        self._size = size
        self._execute = execute
        self._finish = finish
        self._work: SimpleQueue[Run | None] = SimpleQueue()
        self._lock = Lock()
        self._threads = 0
        self._busy = 0
        self._forks = ForkCounter.count
        self.wedged = 0

    def submit(self, runs: Sequence[Run]) -> None:
        """Run these jobs; release them if no thread can be started."""
        with self._lock:
            self._busy += len(runs)
            while self._threads - self.wedged < min(self._size, self._busy) and self._add_thread():
                pass
            no_threads = self._threads == self.wedged
            if no_threads:
                self._busy -= len(runs)
        for run in runs:
            if no_threads:
                self._finish(run, Interrupted())
            else:
                self._work.put(run)

    def abandon(self, run: Run) -> None:
        """A run was settled before its thread returned; the thread stays busy until the handler returns."""
        with self._lock:
            if run.back:
                return
            self._busy -= 1
            if run.begun:
                self.wedged += 1
                run.written_off = True

    def close(self) -> None:
        with self._lock:
            for _ in range(self._threads):
                self._work.put(None)

    def _add_thread(self) -> bool:
        try:
            Thread(target=self._host, name=f"forebay-{self._name}-{self._threads + 1}", daemon=True).start()
        except RuntimeError as error:
            _log.warning("cannot start another thread: %s", error)
            return False
        self._threads += 1
        return True

    def _host(self) -> None:
        while (run := self._work.get()) is not None:
            with self._lock:
                if run.over:
                    continue
                run.begun = True
            try:
                outcome = self._execute(run)
            except BaseException as error:
                outcome = run.handler.outcome_of(error, run.lease.job.body)
            # A forked child that returned from the handler must not continue as a second worker.
            if ForkCounter.count != self._forks:
                os._exit(0)
            with self._lock:
                run.back = True
                returned_late = run.written_off
                if returned_late:
                    self.wedged -= 1
                    self._threads -= 1
                else:
                    self._busy -= 1
            self._finish(run, outcome)
            if returned_late:
                return
