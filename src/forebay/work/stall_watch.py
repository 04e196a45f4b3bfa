"""Notices from outside that the interpreter of a process is held: one job computes in C and lets no thread run.

The heartbeat of the process stands still then, and the thread that would advance it waits for the interpreter: it wakes
up for that about a thousand times a second, which the kernel counts. So a process that was stopped, or got no time, is
told from one that is held. The one that holds is the thread with a job that does not wait like this; where that is not
exactly one, nobody knows.

`python -m forebay.work.stall_watch` watches a worker that has no supervisor.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from urllib.parse import unquote

from forebay.core.lease import Fence
from forebay.work.start_marks import Pulse, Stall, note_stall, read_pulse, read_running, stacks_path

_LEAST: Final = 0.5
_SAMPLE: Final = 0.3
LOOK_EVERY: Final = 0.1
_AWAKE_LEAST: Final = 5
_ALIKE: Final = 0.3
_DUMPED_WITHIN: Final = 1.0
_STACK_BYTES: Final = 16_384


def stall_bound(lease_seconds: float) -> float:
    """How long an interpreter may be held: a lease is renewed three times as often as it ends."""
    return max(_LEAST, lease_seconds / 2)


class StallWatch:
    """Watches the process that writes this file of start marks."""

    def __init__(self, path: Path, bound: float) -> None:
        self._path = path
        self._bound = bound
        self._beats = 0
        self._since = monotonic()
        self._sample: tuple[float, dict[int, int]] | None = None

    def look(self) -> tuple[Pulse, Stall] | None:
        """To be called often. Whether the interpreter is held for longer than the bound."""
        now, pulse = monotonic(), read_pulse(self._path)
        if pulse is None or not pulse.beats or pulse.beats != self._beats:
            self._beats, self._since, self._sample = 0 if pulse is None else pulse.beats, now, None
            return None
        if now - self._since < self._bound - _SAMPLE:
            return None
        if self._sample is None:
            self._sample = (now, _switches(pulse.pid))
        elif now - self._since >= self._bound and now - self._sample[0] >= _SAMPLE:
            before, self._sample = self._sample[1], None
            after = _switches(pulse.pid)
            woken = {thread: count - before.get(thread, count) for thread, count in after.items()}
            if woken.get(pulse.thread, 0) >= _AWAKE_LEAST:
                return pulse, Stall(now - self._since, _holder(pulse, woken, read_running(self._path)))
        return None


def _holder(pulse: Pulse, woken: dict[int, int], running: dict[int, Fence]) -> Fence | None:
    waits = woken[pulse.thread] * _ALIKE
    found = [fence for thread, fence in running.items() if woken.get(thread, 0) < waits]
    return found[0] if len(found) == 1 else None


def _switches(pid: int) -> dict[int, int]:
    """How often each thread of a process has gone to sleep by itself; nothing where the kernel does not say."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError):
                status = Path(entry.path, "status").read_text()
                found[int(entry.name)] = int(status.partition("voluntary_ctxt_switches:")[2].split()[0])
    return found


def end_stalled(path: Path, pulse: Pulse, stall: Stall) -> None:
    """Note why, and end the process so that it dumps its stacks; `kill` it if that takes long."""
    note_stall(path, stall)
    with suppress(ProcessLookupError):
        os.kill(pulse.pid, signal.SIGABRT)


def describe_stall(stall: Stall) -> str:
    """What is said of the job that held the interpreter."""
    return f"it held the interpreter for {stall.seconds:.1f} s"


def stacks_of(path: Path) -> str:
    """What a process wrote of its stacks when a signal ended it, and no more than a log should bear."""
    try:
        return path.read_text(errors="replace")[:_STACK_BYTES].rstrip()
    except OSError:
        return ""


class Watchdog:
    """Ends a process whose interpreter is held; `report` is told for how many seconds it was."""

    def __init__(self, path: Path, bound: float, report: Callable[[float], None]) -> None:
        self._path = path
        self._watch = StallWatch(path, bound)
        self._report = report
        self._kill_at = inf

    def step(self) -> bool:
        """To be called often, from a thread that waits for nothing else. False: the process is gone."""
        pulse = read_pulse(self._path)
        if pulse is None or not pulse.alive:
            return False
        if monotonic() > self._kill_at:
            with suppress(ProcessLookupError):
                os.kill(pulse.pid, signal.SIGKILL)
        elif self._kill_at == inf and (found := self._watch.look()) is not None:
            self._kill_at = monotonic() + _DUMPED_WITHIN
            self._report(found[1].seconds)
            end_stalled(self._path, *found)
        return True


def _main(path: Path, bound: float) -> None:
    owner = unquote(path.name)

    def report(seconds: float) -> None:
        sys.stderr.write(f"forebay: the interpreter of worker {owner} is held for {seconds:.1f} s; it ends\n")

    watchdog = Watchdog(path, bound, report)
    while watchdog.step():
        sleep(LOOK_EVERY)
    if stacks := stacks_of(stacks_path(path.parent, owner)):
        sys.stderr.write(f"forebay: the last stacks of worker {owner}:\n{stacks}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _main(Path(sys.argv[1]), float(sys.argv[2]))
