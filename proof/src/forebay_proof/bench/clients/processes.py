"""The client processes of a measurement, which end with it: peers and claimers by command, our fleets and loads."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay_proof.histogram import LatencyHistogram
from forebay_proof.load.fleet import Fleet
from forebay_proof.load.generator import Load
from forebay_proof.processes import cpu_seconds, parent_of
from forebay_proof.servers.process import ProcessHandle, ServerWatchdog, environment, tail
from forebay_proof.tally import FOLDER, Tallies

ROOT: Final = Path(__file__).parents[5]
_DRAIN_SECONDS: Final = 30.0
_CHECK_EVERY: Final = 0.5


class Clients:
    """Processes of one measurement in a directory of their own, and the tallies of each group of them."""

    def __init__(self) -> None:
        self._watchdog = ServerWatchdog()
        self._stack = ExitStack()
        self._stack.callback(self._watchdog.close)
        self._fleets: list[Fleet] = []
        self._loads: list[Load] = []
        self._directories = count()
        self._children: list[ProcessHandle] = []
        self._watchdog_pids: set[int] = set()
        self._groups: dict[str, Tallies] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def directory(self) -> Path:
        return self._watchdog.directory

    def new_directory(self, name: str) -> Path:
        made = self.directory / f"{name}-{next(self._directories)}"
        made.mkdir()
        return made

    def tallies(self, group: str) -> Tallies:
        if group not in self._groups:
            self._groups[group] = Tallies(self.directory / group)
        return self._groups[group]

    def start(self, group: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> ProcessHandle:
        self.tallies(group)
        given = {
            **environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "proof" / "src")]),
            FOLDER: str(self.directory / group),
            "TMPDIR": str(self.directory),
            **(env or {}),
        }
        child = self._watchdog.run(command, f"{group}-{len(self._children)}.log", env=given)
        self._children.append(child)
        self._watchdog_pids |= {parent_of(child.pid)} - {0}
        return child

    def run(self, group: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start it and wait for its end, which must be a good one."""
        child = self.start(group, command, env)
        while (code := child.wait(60)) is None:
            pass
        if code != 0:
            raise RuntimeError(f"{' '.join(map(str, command[:4]))} ended with {code}:\n{tail(child.log)}")

    def start_fleet(self, fleet: Fleet) -> None:
        self._fleets.append(self._stack.enter_context(fleet))
        fleet.directory.mkdir(exist_ok=True)
        fleet.start()

    def start_load(self, load: Load) -> None:
        self._loads.append(self._stack.enter_context(load))
        load.start()

    def enqueue_latency(self) -> LatencyHistogram:
        """Of all loads, at most a quarter of a second old."""
        return reduce(LatencyHistogram.plus, (load.report().latency for load in self._loads), LatencyHistogram())

    def cpu(self) -> float:
        """Of all processes that were ever started here: the watchdog, their parent, counts those that ended, too."""
        fleets = sum(fleet.cpu_seconds() for fleet in self._fleets)
        return cpu_seconds(self._watchdog_pids) + fleets + sum(load.cpu_seconds() for load in self._loads)

    def check(self) -> None:
        """All of them are alive, or have ended well."""
        for fleet in self._fleets:
            fleet.check()
        for load in self._loads:
            load.running()
        for child in self._children:
            if child.wait(0) not in (None, 0):
                raise RuntimeError(f"a client ended early:\n{tail(child.log)}")

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str, step: float = 0.005) -> None:
        """Return when `ready`; fail when the time is up, or when a client has failed before."""
        deadline = time.monotonic() + seconds
        checked_at = time.monotonic()
        while not ready():
            now = time.monotonic()
            if now > deadline:
                logs = "\n".join(tail(child.log) for child in self._children)
                raise TimeoutError(f"{what}: not within {seconds:g} s\n{logs}")
            if now > checked_at + _CHECK_EVERY:
                checked_at = now
                self.check()
            time.sleep(step)

    def stop(self) -> None:
        """Terminate all of them, and kill those that do not end."""
        for load in self._loads:
            load.stop()
        for fleet in self._fleets:
            fleet.terminate()
        for child in self._children:
            child.signal(signal.SIGTERM)
        for child in self._children:
            if child.wait(_DRAIN_SECONDS) is None:
                child.stop(signal.SIGKILL)
        for fleet in self._fleets:
            fleet.stop()
