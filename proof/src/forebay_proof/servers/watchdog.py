"""The watchdog: a small process between a test and its servers, so that neither outlives the other by accident.

Run by path as `python -I -S watchdog.py PARENT`; `process.py` is its only caller. It makes a temporary directory,
starts servers as its own children on request, and waits on the pipe on its standard input, whose other end only the
parent holds. When that closes (exit, crash, kill -9), when the parent is no longer its parent, or on a signal, it
ends every child, whatever those left behind, removes the directory and exits.

A pipe instead of PR_SET_PDEATHSIG: that follows the thread that forked and not the process, is lost when a child
changes its user, exists on Linux only, and removes no directory. The parent's pid is checked, too, because a fork
of the parent holds a copy of the pipe.

Requests and replies are lines of JSON, one reply to each request. On Linux the watchdog is a subreaper: a backend whose
postmaster was killed becomes its child and can be seen. What can go wrong: a watchdog that is itself killed with -9
keeps no one.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_LOOK_EVERY: Final = 1.0
_GRACE: Final = 10.0
_STEP: Final = 0.01
_READ_BYTES: Final = 65_536
_SET_CHILD_SUBREAPER: Final = 36
_MEMORY_LINE: Final = 6
"""Of postmaster.pid: key and id of the shared memory segment, which a killed postmaster leaves behind."""


class WatchdogProcess:
    def __init__(self, parent: int, directory: Path) -> None:
        self._parent = parent
        self._directory = directory
        self._children: dict[int, tuple[subprocess.Popen[bytes], int]] = {}

    def serve(self) -> None:
        for line in self._requests():
            try:
                reply = self._answer(json.loads(line))
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            os.write(1, json.dumps(reply).encode() + b"\n")

    def _requests(self) -> Iterator[bytes]:
        """Every line from the parent, until the life line is cut."""
        waiting = b""
        while os.getppid() == self._parent:
            if not select.select([0], [], [], _LOOK_EVERY)[0]:
                continue
            if not (data := os.read(0, _READ_BYTES)):
                return
            *lines, waiting = (waiting + data).split(b"\n")
            yield from lines

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"run": argv, "log": log, "env": env, "user": user, "end": end}:
                return {"pid": self._run(argv, Path(log), env, user, end)}
            case {"wait": pid, "seconds": seconds}:
                return {"code": self._wait(self._children[pid][0], min(seconds, _LOOK_EVERY))}
            case {"signal": pid, "number": number}:
                self._children[pid][0].send_signal(number)
                return {}
            case {"sweep": seconds}:
                self._sweep(seconds)
                return {}
            case _:
                return {"error": f"no such request: {request}"}

    def _run(self, argv: list[str], log: Path, env: dict[str, str], user: list[int] | None, end: int) -> int:
        uid, gid = user or (None, None)
        with log.open("ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                env=env,
                user=uid,
                group=gid,
                extra_groups=None if user is None else [],
                start_new_session=True,
            )
        self._children[child.pid] = (child, end)
        return child.pid

    @staticmethod
    def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> int | None:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _orphans(self) -> list[int]:
        """Processes that a dead child left to us; zombies among them are reaped."""
        listed = Path(f"/proc/self/task/{os.getpid()}/children")
        if not listed.exists():
            return []
        found = {int(pid) for pid in listed.read_text().split()} - set(self._children)
        return [pid for pid in found if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _sweep(self, seconds: float) -> None:
        """Let orphans end by themselves, and kill those that do not. Bounded by twice that time."""
        deadline = time.monotonic() + seconds
        while (orphans := self._orphans()) and time.monotonic() < deadline + seconds:
            if time.monotonic() > deadline:
                for pid in orphans:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_STEP)

    def end(self) -> None:
        for child, number in reversed(self._children.values()):
            child.send_signal(number)
            if self._wait(child, _GRACE) is None:
                child.kill()
                child.wait()
        self._sweep(1.0)
        self._release_memory()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _release_memory(self) -> None:
        for lock in self._directory.glob("*/postmaster.pid"):
            for line in lock.read_text().splitlines()[_MEMORY_LINE : _MEMORY_LINE + 1]:
                command = ["ipcrm", "-m", *line.split()[1:]]
                with contextlib.suppress(OSError):
                    subprocess.run(command, stderr=subprocess.DEVNULL, timeout=_GRACE, check=False)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    directory = Path(tempfile.mkdtemp(prefix="forebay-")).resolve()
    watchdog = WatchdogProcess(int(sys.argv[1]), directory)
    try:
        os.write(1, json.dumps({"directory": str(directory)}).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):
            watchdog.serve()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        watchdog.end()


if __name__ == "__main__":
    main()
