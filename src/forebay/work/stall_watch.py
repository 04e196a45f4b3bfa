"""Detects from outside that a process is stalled: one job holds the GIL, and no other thread of the process runs.

The heartbeat of the process stops then. The thread that would advance it waits for the GIL and wakes up about a
thousand times a second, which the kernel counts; that distinguishes a stalled process from one that was stopped or got
no CPU time. The job that holds the GIL is the one whose thread does not wake up like this. If there is not exactly one
such thread, the holder is unknown.

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
from forebay.work.start_marks import ProcessHeartbeat, Stall, read_heartbeat, read_running, record_stall, stacks_path

_MIN_BOUND: Final = 0.5
_SAMPLE: Final = 0.3
POLL_INTERVAL: Final = 0.1
_MIN_WAKEUPS: Final = 5
_WAITING_SHARE: Final = 0.3
"""A thread with at least this share of the heartbeat thread's wakeups waits for the GIL too."""

_DUMP_TIMEOUT: Final = 1.0
_STACK_BYTES: Final = 16_384


def stall_bound(lease_seconds: float) -> float:
    """Seconds for which the GIL may be held: half a lease, since leases are renewed every third of one."""
    return max(_MIN_BOUND, lease_seconds / 2)


class StallWatch:
    """Checks one process by the heartbeat in its start marks."""

    def __init__(self, path: Path, bound: float) -> None:
        self._path = path
        self._bound = bound
        self._beats = 0
        self._since = monotonic()
        self._sample: tuple[float, dict[int, int]] | None = None

    def check(self) -> tuple[ProcessHeartbeat, Stall] | None:
        """The stall, once the GIL has been held for longer than the bound. Call this often."""
        now, heartbeat = monotonic(), read_heartbeat(self._path)
        if heartbeat is None or not heartbeat.beats or heartbeat.beats != self._beats:
            self._beats, self._since, self._sample = 0 if heartbeat is None else heartbeat.beats, now, None
            return None
        if now - self._since < self._bound - _SAMPLE:
            return None
        if self._sample is None:
            self._sample = (now, _switches(heartbeat.pid))
        elif now - self._since >= self._bound and now - self._sample[0] >= _SAMPLE:
            before, self._sample = self._sample[1], None
            after = _switches(heartbeat.pid)
            woken = {thread: count - before.get(thread, count) for thread, count in after.items()}
            if woken.get(heartbeat.thread, 0) >= _MIN_WAKEUPS:
                return heartbeat, Stall(now - self._since, _holder(heartbeat, woken, read_running(self._path)))
        return None


def _holder(heartbeat: ProcessHeartbeat, woken: dict[int, int], running: dict[int, Fence]) -> Fence | None:
    waits = woken[heartbeat.thread] * _WAITING_SHARE
    found = [fence for thread, fence in running.items() if woken.get(thread, 0) < waits]
    return found[0] if len(found) == 1 else None


def _switches(pid: int) -> dict[int, int]:
    """Voluntary context switches by thread; empty where the kernel does not report them."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError):
                status = Path(entry.path, "status").read_text()
                found[int(entry.name)] = int(status.partition("voluntary_ctxt_switches:")[2].split()[0])
    return found


def abort_stalled(path: Path, heartbeat: ProcessHeartbeat, stall: Stall) -> None:
    """Record the cause and abort the process, so that it dumps its stacks. It may need a `kill` if that hangs."""
    record_stall(path, stall)
    with suppress(ProcessLookupError):
        os.kill(heartbeat.pid, signal.SIGABRT)


def describe_stall(stall: Stall) -> str:
    """The error of the job that held the GIL."""
    return f"it held the GIL for {stall.seconds:.1f} s"


def read_stacks(path: Path) -> str:
    """The stacks that a process dumped when a signal ended it, cut to a bounded length."""
    try:
        return path.read_text(errors="replace")[:_STACK_BYTES].rstrip()
    except OSError:
        return ""


class Watchdog:
    """Aborts a stalled process, after `report(seconds)`."""

    def __init__(self, path: Path, bound: float, report: Callable[[float], None]) -> None:
        self._path = path
        self._watch = StallWatch(path, bound)
        self._report = report
        self._kill_at = inf

    def step(self) -> bool:
        """Call this often, from a thread that does not block. False: the process has ended."""
        heartbeat = read_heartbeat(self._path)
        if heartbeat is None or not heartbeat.alive:
            return False
        if monotonic() > self._kill_at:
            with suppress(ProcessLookupError):
                os.kill(heartbeat.pid, signal.SIGKILL)
        elif self._kill_at == inf and (found := self._watch.check()) is not None:
            self._kill_at = monotonic() + _DUMP_TIMEOUT
            heartbeat, stall = found
            self._report(stall.seconds)
            abort_stalled(self._path, heartbeat, stall)
        return True


def _main(path: Path, bound: float) -> None:
    owner = unquote(path.name)

    def report(seconds: float) -> None:
        sys.stderr.write(f"forebay: the GIL of worker {owner} is held for {seconds:.1f} s; aborting it\n")

    watchdog = Watchdog(path, bound, report)
    while watchdog.step():
        sleep(POLL_INTERVAL)
    if stacks := read_stacks(stacks_path(path.parent, owner)):
        sys.stderr.write(f"forebay: last stacks of worker {owner}:\n{stacks}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _main(Path(sys.argv[1]), float(sys.argv[2]))
