"""The supervisor: M worker processes, restarted when they die, drained together.

When a child dies, its jobs do not wait for their leases: what had begun (its start marks say so) is charged and goes
back at once, what was only held is released; a second look finds what a claim still under way at a server has taken
after its death. Restarts come after a pause that grows while a child keeps dying young. Children
notice when their supervisor is gone and drain by themselves.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from threading import Thread
from time import monotonic, sleep
from typing import Final

import msgspec

from forebay.work.exit_status import CANNOT_START, describe_exit
from forebay.work.job_log import JobLog
from forebay.work.options import Options
from forebay.work.recovery import take_back
from forebay.work.stall_watch import LOOK_EVERY, Watchdog, stacks_of, stall_bound
from forebay.work.start_marks import ProcessMarks, marks_directory, marks_of, marks_path, remove_marks, stacks_path
from forebay.work.worker import App, Routings, new_owner

_log = logging.getLogger("forebay.work")

_LOOK_EVERY: Final = 0.05
_PAUSE_FIRST: Final = 0.1
_PAUSE_MOST: Final = 5.0
_YOUNG: Final = 2.0
_KILL_AFTER: Final = 5.0
_LOOK_AGAIN: Final = 1.0


class Place:
    """One of M places: the process in it, and when the next one may start."""

    def __init__(self) -> None:
        self.owner = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.pause = _PAUSE_FIRST
        self.watchdog: Watchdog | None = None


class Supervisor:
    """Keeps M workers of one app alive."""

    def __init__(
        self,
        target: str,
        app: App,
        options: Options,
        processes: int,
        on_death: Callable[[int], None] | None = None,
    ) -> None:
        self._target = target
        self._app = app
        self._directory = marks_directory(app.url)
        self._options = options
        self._processes = processes
        self._on_death = on_death
        self._signals = 0
        self._job_log = JobLog()
        self._departed: list[tuple[float, str]] = []
        self.deaths = 0

    def run(self) -> int:
        """Supervise until a signal comes; 0 when every child drained."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.places = [Place() for _ in range(self._processes)]
        Thread(target=self._watch, name="forebay-watchdog", daemon=True).start()
        while not self._signals:
            for place in self.places:
                self._tend(place)
            self._look_again()
            sleep(_LOOK_EVERY)
        return self._drain()

    def pids(self) -> list[int]:
        return [place.process.pid for place in self.places if place.process is not None]

    def _on_signal(self, number: int, frame: object) -> None:
        # Only counted: a handler must not wait for a lock, which the code that it interrupts may hold.
        self._signals += 1

    def _tend(self, place: Place) -> None:
        if place.process is None:
            if monotonic() >= place.start_at:
                self._start(place)
            return
        code = place.process.poll()
        if code is not None:
            self._bury(place, code)

    def _watch(self) -> None:
        """In a thread of its own: the store may be away for long, or be locked by the very process that is held."""
        while True:
            for place in self.places:
                if place.watchdog is not None:
                    place.watchdog.step()
            sleep(LOOK_EVERY)

    def _start(self, place: Place) -> None:
        place.owner = new_owner()
        options = msgspec.json.encode(self._options).decode()
        command = [sys.executable, "-m", "forebay.work.worker", self._target, options, place.owner]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        place.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        place.started_at = monotonic()
        if self._directory is not None:
            bound = stall_bound(self._options.lease_for.total_seconds())
            report = partial(_log.error, "worker %s: its interpreter is held for %.1f s; it ends", place.owner)
            place.watchdog = Watchdog(marks_path(self._directory, place.owner), bound, report)

    def _bury(self, place: Place, code: int) -> None:
        """A child died: give back what it held, and plan the next one."""
        assert place.process is not None
        self.deaths += 1
        self._close_pipe(place)
        young = code == CANNOT_START or monotonic() - place.started_at < _YOUNG
        place.pause = min(_PAUSE_MOST, place.pause * 2) if young else _PAUSE_FIRST
        place.start_at = monotonic() + (place.pause if young else 0.0)
        again = f"in {place.pause:.1f} s" if young else "at once"
        _log.warning("worker %s %s; another one starts %s", place.owner, describe_exit(code), again)
        if self._directory is not None and (stacks := stacks_of(stacks_path(self._directory, place.owner))):
            _log.error("the last stacks of worker %s:\n%s", place.owner, stacks)
        place.process = None
        if self._take_back(place.owner, marks_of(self._directory, place.owner), code):
            self._departed.append((monotonic() + _LOOK_AGAIN, place.owner))
        if self._on_death is not None:
            self._on_death(code)

    def _look_again(self) -> None:
        while self._departed and self._departed[0][0] <= monotonic():
            owner = self._departed.pop(0)[1]
            if self._take_back(owner, ProcessMarks({}, alive=False), None):
                self._remove_marks(owner)

    def _remove_marks(self, owner: str) -> None:
        if self._directory is not None:
            remove_marks(self._directory, owner)

    def _take_back(self, owner: str, marks: ProcessMarks | None, code: int | None) -> bool:
        try:
            self._app.store.withdraw(owner)
            take_back(self._app.store, owner, marks, code, Routings(self._app.store), self._job_log)
        except Exception as error:
            # Its leases run out by themselves; this would only have been quicker.
            _log.warning("the jobs of %s wait for their leases: %s", owner, error)
            return False
        return True

    def _drain(self) -> int:
        """Pass every signal on; kill what does not end in time; give back what it held."""
        running = [place for place in self.places if place.process is not None]
        told = 0
        deadline = monotonic() + self._options.drain_timeout.total_seconds() + _KILL_AFTER
        while any(place.process is not None and place.process.poll() is None for place in running):
            while told < self._signals:
                told += 1
                for place in running:
                    if place.process is not None and place.process.poll() is None:
                        place.process.send_signal(signal.SIGTERM)
            if monotonic() > deadline:
                for place in running:
                    if place.process is not None and place.process.poll() is None:
                        place.process.kill()
            sleep(_LOOK_EVERY)
        codes = [place.process.wait() for place in running if place.process is not None]
        for place, code in zip(running, codes, strict=True):
            self._close_pipe(place)
            if code and self._take_back(place.owner, marks_of(self._directory, place.owner), code):
                self._remove_marks(place.owner)
        # A child that had not yet begun dies of the SIGTERM itself, and held nothing.
        return 0 if all(code in (0, -signal.SIGTERM) for code in codes) else 1

    def _close_pipe(self, place: Place) -> None:
        if place.process is not None and place.process.stdin is not None:
            place.process.stdin.close()
