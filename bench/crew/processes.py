"""Client processes that end with the benchmark."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay_proof.processes import cpu_seconds, parent_of
from forebay_proof.servers.process import Child, Keep, environment, tail
from forebay_proof.tally import FOLDER, Tallies

ROOT: Final = Path(__file__).parents[2]
_DRAIN_SECONDS: Final = 30.0
_LOOK_EVERY: Final = 0.5


class Clients:
    """Processes of one measurement in a directory of their own, and the tallies of each group of them."""

    def __init__(self) -> None:
        self._keep = Keep()
        self._children: list[Child] = []
        self._keepers: set[int] = set()
        self._groups: dict[str, Tallies] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._keep.close()

    @property
    def directory(self) -> Path:
        return self._keep.directory

    def tallies(self, group: str) -> Tallies:
        if group not in self._groups:
            self._groups[group] = Tallies(self.directory / group)
        return self._groups[group]

    def start(self, group: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Child:
        self.tallies(group)
        given = {
            **environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "proof" / "src")]),
            FOLDER: str(self.directory / group),
            "TMPDIR": str(self.directory),
            **(env or {}),
        }
        child = self._keep.run(command, f"{group}-{len(self._children)}.log", env=given)
        self._children.append(child)
        self._keepers |= {parent_of(child.pid)} - {0}
        return child

    def run(self, group: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start it and wait for its end, which must be a good one."""
        child = self.start(group, command, env)
        while (code := child.wait(60)) is None:
            pass
        if code != 0:
            raise RuntimeError(f"{' '.join(map(str, command[:4]))} ended with {code}:\n{tail(child.log)}")

    def cpu(self) -> float:
        """Of all that were ever started here: the keeper, their parent, has the account of those that ended."""
        return cpu_seconds(self._keepers)

    def check(self) -> None:
        """All of them are alive, or have ended well."""
        for child in self._children:
            if child.wait(0) not in (None, 0):
                raise RuntimeError(f"a client ended early:\n{tail(child.log)}")

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str, step: float = 0.005) -> None:
        """Return when it is so; fail when the time is up, or when a client has failed before."""
        deadline = time.monotonic() + seconds
        looked_at = time.monotonic()
        while not ready():
            now = time.monotonic()
            if now > deadline:
                logs = "\n".join(tail(child.log) for child in self._children)
                raise TimeoutError(f"{what}: not within {seconds:g} s\n{logs}")
            if now > looked_at + _LOOK_EVERY:
                looked_at = now
                self.check()
            time.sleep(step)

    def stop(self) -> None:
        """Ask all to end, and make sure of it."""
        for child in self._children:
            child.signal(signal.SIGTERM)
        for child in self._children:
            if child.wait(_DRAIN_SECONDS) is None:
                child.stop(signal.SIGKILL)
