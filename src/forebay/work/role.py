"""Roles: the repeated duties of a worker, and the threads that run them.

A role has one method, `step`: it does a bounded amount of work and returns the seconds to rest before the next call.
`RoleThread` calls it in a thread; the simulator calls it in an order drawn from a seed. A step that fails, for example
because the store is unreachable, is retried with exponential backoff up to one second. All roles of a process share one
`ThrottledLogger`, so an outage produces at most one log line a second.
"""

import logging
import random
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final, Protocol

from forebay.core.humanize import many

_log = logging.getLogger("forebay.work")

_FIRST_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 1.0
_LOG_INTERVAL: Final = 1.0

STALLED_SECONDS: Final = 15.0
"""A worker is unhealthy after this long without a completed claim round. An idle round takes at most a second."""


class WorkerRole(Protocol):
    """A duty that a worker repeats."""

    @property
    def name(self) -> str: ...

    def step(self) -> float:
        """Do a bounded piece of work; return the seconds to rest, 0 for none."""


class ThrottledLogger:
    """Logs lasting failures, at most one line a second across all callers; the next line counts what was left out."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._logged_at = float("-inf")
        self._suppressed = 0

    def log_failure(self, role: str, error: Exception) -> None:
        now = monotonic()
        with self._guard:
            if now - self._logged_at < _LOG_INTERVAL:
                self._suppressed += 1
                return
            self._logged_at, suppressed, self._suppressed = now, self._suppressed, 0
        more = f" (not logged: {many(suppressed, 'more such failure')})" if suppressed else ""
        fields = {"event": "retrying", "role": role, "error": type(error).__name__, "suppressed": suppressed}
        _log.warning("%s: %s: %s; retrying%s", role, type(error).__name__, error, more, extra=fields)


class RoleThread:
    """Runs a role in its own thread.

    progressed_at  when the last successful step ended
    failures       failed steps since then
    failed         failed steps in all
    """

    def __init__(self, role: WorkerRole, log: ThrottledLogger | None = None) -> None:
        self.role = role
        self._throttled = log or ThrottledLogger()
        self.progressed_at = monotonic()
        self.failures = 0
        self.failed = 0
        self._stopping = Event()
        self._woken = Event()
        self._thread = Thread(target=self._run, name=f"forebay-{role.name}", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """End after the current step; True if the thread ended within the timeout."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """End the current rest early."""
        self._woken.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                rest = self.role.step()
                pause, self.failures, self.progressed_at = _FIRST_PAUSE, 0, monotonic()
            except Exception as error:
                if self._stopping.is_set():
                    return
                self.failures += 1
                self.failed += 1
                self._throttled.log_failure(self.role.name, error)
                rest = pause * random.uniform(0.5, 1.5)
                pause = min(_MAX_PAUSE, pause * 2)
            if rest > 0:
                self._woken.wait(rest)
            self._woken.clear()
