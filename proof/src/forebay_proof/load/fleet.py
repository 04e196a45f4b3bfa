"""`Fleet`: `forebay worker` as users start it, in processes that may be killed, paused and started again.

    with Fleet(APP, url, folder, processes=2, concurrency=500) as fleet:
        fleet.start()
        fleet.kill_one(random.Random(7))
        code = fleet.stop()

Promise. Nothing is left running when it is closed, nor when this process ends in whatever way: all of it is started
under a watchdog (`servers.watchdog`), which also inherits workers whose supervisor was killed, so that CPU time
is accounted for over the whole life of the fleet. Logs go to the folder, effects to its `effects`.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay.core.errors import ForebayError
from forebay_proof.load.app import EFFECTS, QUEUE
from forebay_proof.processes import alive, children_of, cpu_seconds, descriptors, parent_of, rss_bytes
from forebay_proof.servers.process import ProcessHandle, ServerWatchdog

APP: Final = "forebay_proof.load.app:fb"
EFFECTS_FOLDER: Final = "effects"
_BESIDES: Final = 15.0
"""Seconds that a supervisor gets besides its drain timeout."""

_STEP: Final = 0.05


class FleetFailed(ForebayError):
    """A supervisor could not start, or ended by itself."""


class Fleet:
    """`supervisors` commands of `processes` workers each; `processes` 0: each command does the work itself.

    `lease` None: as long as a worker's is by default.
    """

    def __init__(
        self,
        app: str,
        url: str,
        directory: Path,
        *,
        processes: int = 2,
        concurrency: int = 64,
        claim_batch: int = 100,
        lease: float | None = 5.0,
        queues: Sequence[str] = (QUEUE,),
        env: Mapping[str, str] | None = None,
        drain: float = 10.0,
        supervisors: int = 1,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory.resolve()
        self.effects = self.directory / EFFECTS_FOLDER
        self.processes = processes
        self._drain = drain
        self._supervisors: list[ProcessHandle | None] = [None] * supervisors
        self._terminated: set[int] = set()
        self._watchdog: ServerWatchdog | None = None
        self._watchdog_pid = 0
        self._command = [sys.executable, "-m", "forebay", "worker", app, "--queues", ",".join(queues)]
        self._command += ["--concurrency", str(concurrency), "--claim-batch", str(claim_batch)]
        self._command += ["--drain-timeout", f"{drain:g}", *options]
        self._command += ["--visibility-timeout", f"{lease:g}"] if lease is not None else []
        self._command += ["--processes", str(processes)] if processes else []
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self._env = {**os.environ, "PYTHONPATH": path, "FOREBAY_URL": url, EFFECTS: str(self.effects), **(env or {})}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self, patience: float = 30.0) -> None:
        """Every supervisor that does not run is started; returns when each has its workers."""
        self.effects.mkdir(parents=True, exist_ok=True)
        self._watchdog = self._watchdog or ServerWatchdog()
        self._start_missing(self._watchdog)
        deadline = time.monotonic() + patience
        while not self._complete():
            self.check()
            self._start_missing(self._watchdog)
            if time.monotonic() > deadline:
                raise FleetFailed(f"no workers after {patience:g} s: {self.log()}")
            time.sleep(_STEP)

    restart = start

    def _start_missing(self, watchdog: ServerWatchdog) -> None:
        for number, child in enumerate(self._supervisors):
            if child is None or not alive(child.pid):
                log = str(self.directory / f"fleet-{number}.log")
                started = watchdog.run(self._command, log, env=self._env)
                self._supervisors[number] = started
                self._watchdog_pid = parent_of(started.pid) or self._watchdog_pid

    def _complete(self) -> bool:
        return all(len(self._below(child)) >= max(1, self.processes) for child in self._supervisors)

    def _below(self, child: ProcessHandle | None) -> list[int]:
        if child is None or not alive(child.pid):
            return []
        return [pid for pid in children_of(child.pid) if alive(pid)] if self.processes else [child.pid]

    def check(self) -> None:
        """`FleetFailed` with its log if a supervisor ended by itself with an error."""
        for child in self._supervisors:
            if child is not None and (code := child.wait(0)) is not None and code > 0:
                raise FleetFailed(f"a supervisor ended with {code}: {self.log()}")

    def log(self) -> str:
        """The end of the logs of supervisors and workers."""
        files = sorted(self.directory.glob("fleet-*.log"))
        return "\n".join(file.read_text(errors="replace")[-2_000:] for file in files)

    @property
    def supervisors(self) -> list[int]:
        return [child.pid for child in self._supervisors if child is not None and alive(child.pid)]

    def workers(self) -> list[int]:
        """The worker processes that live now under a supervisor."""
        return [pid for child in self._supervisors for pid in self._below(child)]

    def kill_one(self, rng: random.Random) -> int:
        """kill -9 of one worker; its pid, or 0 if there was none."""
        pids = self.workers()
        if not pids:
            return 0
        victim = rng.choice(pids)
        os.kill(victim, signal.SIGKILL)
        return victim

    def kill_supervisor(self, number: int = 0) -> int:
        """kill -9: its workers notice and drain by themselves. `start` makes another."""
        child = self._supervisors[number]
        if child is None:
            return 0
        child.signal(signal.SIGKILL)
        child.wait(_BESIDES)
        return child.pid

    def commands(self) -> list[ProcessHandle]:
        """The commands that run now."""
        return [child for child in self._supervisors if child is not None and alive(child.pid)]

    def pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)

    def resume(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM to every supervisor, once each: a second one would cut its drain short."""
        for child in self._supervisors:
            if child is not None and child.pid not in self._terminated and alive(child.pid):
                self._terminated.add(child.pid)
                child.signal(signal.SIGTERM)

    def stop(self) -> int:
        """Drain and end; the worst exit code, -9 for one that did not end in time."""
        self.terminate()
        deadline = time.monotonic() + self._drain + _BESIDES
        worst = 0
        for number, child in enumerate(self._supervisors):
            if child is None:
                continue
            code = child.wait(max(0.0, deadline - time.monotonic()))
            if code is None:
                child.stop(signal.SIGKILL)
            worst = code or worst if code is not None else -signal.SIGKILL
            self._supervisors[number] = None
        return worst

    def rss(self) -> int:
        return rss_bytes([*self.supervisors, *self.workers()])

    def descriptors(self) -> int:
        return descriptors([*self.supervisors, *self.workers()])

    def cpu_seconds(self) -> float:
        """Of supervisors and workers, the ended and the orphaned too."""
        return cpu_seconds([self._watchdog_pid]) if self._watchdog_pid else 0.0

    def close(self) -> None:
        """Kill everything at once: supervisors first, or they would start others."""
        for pid in [*self.supervisors, *self.workers()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        self._supervisors = [None] * len(self._supervisors)
