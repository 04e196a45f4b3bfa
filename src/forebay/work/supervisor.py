"""The supervisor: keeps a number of worker processes running, restarts those that exit, and drains them together.

The jobs of a dead worker do not wait for their leases to expire. Its start marks name the jobs whose handler had begun:
those are charged an attempt; the others are released uncharged. A second pass a moment later reclaims what a claim that
was still in progress at the server has leased to the dead worker since.

A worker that exits shortly after its start is restarted with backoff. Workers notice the end of their supervisor by the
end of their standard input, and drain.
"""

import logging
import os
import signal
import subprocess
import sys
from functools import partial
from threading import Thread
from time import monotonic, sleep
from typing import Final

import msgspec

from forebay.work.app import App
from forebay.work.exit_status import CANNOT_START, describe_exit
from forebay.work.job_log import JobLog
from forebay.work.options import Options
from forebay.work.recovery import reclaim_jobs
from forebay.work.stall_watch import POLL_INTERVAL, Watchdog, read_stacks, stall_bound
from forebay.work.start_marks import ProcessMarks, marks_directory, marks_of, marks_path, remove_marks, stacks_path
from forebay.work.worker import RoutingCache, new_owner

_log = logging.getLogger("forebay.work")

_POLL_INTERVAL: Final = 0.05
_FIRST_BACKOFF: Final = 0.1
_MAX_BACKOFF: Final = 5.0
_EARLY_EXIT: Final = 2.0
"""A worker that exits within this many seconds of its start is restarted with backoff."""

_KILL_AFTER: Final = 5.0
"""Seconds after the timeouts of drain and shutdown before a worker that still runs is killed."""

_SECOND_PASS_AFTER: Final = 1.0


def _seconds_to_end(options: Options) -> float:
    return (options.drain_timeout + options.shutdown_timeout).total_seconds()


_DRAINED: Final = (0, -signal.SIGTERM)
"""Exit codes after a drain. A worker that had not installed its handler yet dies of the SIGTERM, and held nothing."""


class WorkerSlot:
    """One of the supervised positions: its current process, if any, and when the next one may start."""

    def __init__(self) -> None:
        self.owner = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.backoff = _FIRST_BACKOFF
        self.watchdog: Watchdog | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def close_pipe(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


class Supervisor:
    """Runs `processes` workers of one app."""

    def __init__(self, target: str, app: App, options: Options, processes: int) -> None:
        self._target = target
        self._app = app
        self._directory = marks_directory(app.url)
        self._options = options
        self._slots = [WorkerSlot() for _ in range(processes)]
        self._signals = 0
        self._job_log = JobLog()
        self._second_pass: list[tuple[float, str]] = []
        """When to reclaim again, and from which dead owner; oldest first."""

    def run(self) -> int:
        """Supervise until a signal arrives; returns 0 when every worker drained."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        Thread(target=self._run_watchdogs, name="forebay-watchdog", daemon=True).start()
        while not self._signals:
            for slot in self._slots:
                self._check(slot)
            self._run_second_pass()
            sleep(_POLL_INTERVAL)
        return self._drain()

    def _on_signal(self, number: int, frame: object) -> None:
        # Only counted: a lock taken here may be held by the code that the signal interrupted.
        self._signals += 1

    def _check(self, slot: WorkerSlot) -> None:
        """Start the slot's process when it is due; handle its exit."""
        if slot.process is None:
            if monotonic() >= slot.start_at:
                self._start(slot)
            return
        code = slot.process.poll()
        if code is not None:
            self._on_exit(slot, code)

    def _run_watchdogs(self) -> None:
        """Runs in its own thread: the main thread may block on a store that is unreachable, or locked by a stalled
        worker."""
        while True:
            for slot in self._slots:
                if slot.watchdog is not None:
                    slot.watchdog.step()
            sleep(POLL_INTERVAL)

    def _start(self, slot: WorkerSlot) -> None:
        slot.owner = new_owner()
        options = msgspec.json.encode(self._options).decode()
        command = [sys.executable, "-m", "forebay.work.worker", self._target, options, slot.owner]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        slot.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        slot.started_at = monotonic()
        if self._directory is not None:
            bound = stall_bound(self._options.lease_for.total_seconds())
            report = partial(_log.error, "worker %s: its GIL is held for %.1f s; aborting it", slot.owner)
            slot.watchdog = Watchdog(marks_path(self._directory, slot.owner), bound, report)

    def _on_exit(self, slot: WorkerSlot, code: int) -> None:
        """Reclaim the jobs of the exited worker, and plan the next start."""
        slot.close_pipe()
        slot.process = None
        early = code == CANNOT_START or monotonic() - slot.started_at < _EARLY_EXIT
        slot.backoff = min(_MAX_BACKOFF, slot.backoff * 2) if early else _FIRST_BACKOFF
        slot.start_at = monotonic() + (slot.backoff if early else 0.0)
        restart = f"in {slot.backoff:.1f} s" if early else "now"
        _log.warning("worker %s %s; restarting %s", slot.owner, describe_exit(code), restart)
        if self._directory is not None and (stacks := read_stacks(stacks_path(self._directory, slot.owner))):
            _log.error("last stacks of worker %s:\n%s", slot.owner, stacks)
        if self._reclaim(slot.owner, marks_of(self._directory, slot.owner), code):
            self._second_pass.append((monotonic() + _SECOND_PASS_AFTER, slot.owner))

    def _run_second_pass(self) -> None:
        while self._second_pass and self._second_pass[0][0] <= monotonic():
            _, owner = self._second_pass.pop(0)
            # Whatever was leased to the owner after its death has certainly not begun.
            if self._reclaim(owner, ProcessMarks({}, alive=False), None):
                self._remove_marks(owner)

    def _remove_marks(self, owner: str) -> None:
        if self._directory is not None:
            remove_marks(self._directory, owner)

    def _reclaim(self, owner: str, marks: ProcessMarks | None, code: int | None) -> bool:
        """Settle the jobs of a dead worker; False if the store failed, and the jobs wait for their leases instead."""
        try:
            self._app.store.withdraw(owner)
            reclaim_jobs(self._app.store, owner, marks, code, RoutingCache(self._app.store), self._job_log)
        except Exception as error:
            _log.warning("the jobs of %s wait for their leases to expire: %s", owner, error)
            return False
        return True

    def _drain(self) -> int:
        """Forward every signal, kill the workers that outlast the drain timeout, and reclaim what those held."""
        for slot in self._slots:
            if slot.process is not None and (code := slot.process.poll()) is not None:
                self._on_exit(slot, code)  # It died before the signal, so the result of the drain is not about it.
        draining = [slot for slot in self._slots if slot.process is not None]
        forwarded = 0
        deadline = monotonic() + _seconds_to_end(self._options) + _KILL_AFTER
        while running := [slot.process for slot in draining if slot.process is not None and slot.running]:
            while forwarded < self._signals:
                forwarded += 1
                for process in running:
                    process.send_signal(signal.SIGTERM)
            if monotonic() > deadline:
                for process in running:
                    process.kill()
            sleep(_POLL_INTERVAL)
        codes = [slot.process.wait() for slot in draining if slot.process is not None]
        for slot, code in zip(draining, codes, strict=True):
            slot.close_pipe()
            if code not in _DRAINED:
                _log.warning("worker %s %s while it drained", slot.owner, describe_exit(code))
            if code and self._reclaim(slot.owner, marks_of(self._directory, slot.owner), code):
                self._remove_marks(slot.owner)
        return 0 if all(code in _DRAINED for code in codes) else 1
