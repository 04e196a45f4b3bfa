"""What every role is: one bounded `step`, and a thread that repeats it.

`step` does a bounded amount of work and says how long it may rest, in seconds; a simulator calls it by seed, `Beat`
calls it in a thread. A store that is out of reach is not the end: the step is tried again, later and later up to a
second, and the log gets at most one line a second, from all roles of a process together.
"""

import logging
import random
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final, Protocol

from forebay.core.words import many

_log = logging.getLogger("forebay.work")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_LOG_EVERY: Final = 1.0


STALLED_SECONDS: Final = 15.0
"""A worker whose claimer has completed no round for longer is not healthy; a round takes a second at most where there
is nothing to do."""


class Role(Protocol):
    """Something a worker does over and over."""

    @property
    def name(self) -> str: ...

    def step(self) -> float:
        """Do a bounded piece of work; return the seconds to rest, 0 for none."""


class Voice:
    """What a process says of troubles that last: a line a second, whoever of its roles meets them."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._spoken_at = float("-inf")
        self._suppressed = 0

    def warn(self, what: str, error: Exception) -> None:
        now = monotonic()
        with self._guard:
            if now - self._spoken_at < _LOG_EVERY:
                self._suppressed += 1
                return
            self._spoken_at, suppressed, self._suppressed = now, self._suppressed, 0
        more = f" (not written: {many(suppressed, 'more such failure')})" if suppressed else ""
        fields = {"event": "retrying", "role": what, "error": type(error).__name__, "suppressed": suppressed}
        _log.warning("%s: %s: %s; trying again%s", what, type(error).__name__, error, more, extra=fields)


class Beat:
    """A role in a thread of its own. `nudge` ends a rest early; `beaten_at` is the last step that went well.

    `failures` counts the steps that failed since then, `failed` all that ever did.
    """

    def __init__(self, role: Role, voice: Voice | None = None) -> None:
        self.role = role
        self._voice = voice or Voice()
        self.beaten_at = monotonic()
        self.failures = 0
        self.failed = 0
        self._stopping = Event()
        self._nudged = Event()
        self._thread = Thread(target=self._run, name=f"forebay-{role.name}", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Finish the step under way and end; True when it has."""
        self._stopping.set()
        self._nudged.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def nudge(self) -> None:
        self._nudged.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                rest = self.role.step()
                pause, self.failures, self.beaten_at = _FIRST_PAUSE, 0, monotonic()
            except Exception as error:
                if self._stopping.is_set():
                    return
                self.failures += 1
                self.failed += 1
                self._voice.warn(self.role.name, error)
                rest = pause * random.uniform(0.5, 1.5)
                pause = min(_LONGEST_PAUSE, pause * 2)
            if rest > 0:
                self._nudged.wait(rest)
            self._nudged.clear()
