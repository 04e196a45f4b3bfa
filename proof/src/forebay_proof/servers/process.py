"""Child processes that end with this one: `ServerWatchdog` runs `watchdog.py`, `ProcessHandle` is one server under it.

Promise. What is started here is gone, and the directory with it, after `close()`, after the end of this process, and
after its kill -9 (`watchdog.py` explains how). A child that dies at its start is reported with the end of its log.
Calls may come from several threads; they take turns. `ServerUnavailable` means that this machine cannot run the server,
and names the remedy; `ServerFailed` means that it could and something went wrong.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, Signals
from threading import Lock
from typing import Any, Final

from forebay_proof.servers import watchdog

LOOPBACK: Final = "127.0.0.1"
PATIENCE: Final = 30.0
"""Seconds after which a server that does not start, stop or answer counts as failed."""

_PORTS: Final = range(20_000, 32_000)
"""Below the ports that kernels hand to outgoing connections, so that a restart finds its port still free."""

_PORT_TRIES: Final = 100
_TAIL_LINES: Final = 15


class ServerUnavailable(RuntimeError):
    """This machine has no such server, or no way to run it; the text says what was tried and what helps."""


class ServerFailed(RuntimeError):
    """A server did not start, stop or answer; the text ends with its log."""


def free_port() -> int:
    """A port on loopback that is free now. Another process may take it first: its server then fails to start."""
    for port in random.sample(_PORTS, _PORT_TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise ServerUnavailable(f"no free port among {_PORT_TRIES} tried in {_PORTS.start}–{_PORTS.stop}")


def environment(libraries: Sequence[Path] = ()) -> dict[str, str]:
    """A small one: settings of the caller's shell, such as PGDATA, must not reach a server."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
    if libraries:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    return env


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]) if log.exists() else "(no log)"


class ServerWatchdog:
    """A temporary directory and the processes that work in it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.directory = Path(self._read()["directory"])

    def run(
        self,
        argv: Sequence[str | Path],
        log: str,
        *,
        env: Mapping[str, str] | None = None,
        user: tuple[int, int] | None = None,
        end: Signals = SIGKILL,
    ) -> "ProcessHandle":
        """Start a process in the directory, as another user if one is given; at the close it gets the signal `end`."""
        path = self.directory / log
        request = {
            "run": [str(word) for word in argv],
            "log": str(path),
            "env": dict(environment() if env is None else env),
            "user": user,
            "end": int(end),
        }
        return ProcessHandle(self, int(self.request(request)["pid"]), path)

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError) as error:
                raise ServerFailed("the watchdog is gone, and the servers with it") from error
            return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed("the watchdog is gone, and the servers with it")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ServerFailed(reply["error"])
        return reply

    def close(self) -> None:
        """Close the pipe and wait until the watchdog has cleaned up. A second call does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.close()
            self._process.wait(PATIENCE)
            self._process.stdout.close()


class ProcessHandle:
    def __init__(self, watchdog: ServerWatchdog, pid: int, log: Path) -> None:
        self._watchdog = watchdog
        self.pid = pid
        self.log = log

    def wait(self, seconds: float) -> int | None:
        """The exit code (minus the signal's number), or None if it still runs after this time."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            code: int | None = self._watchdog.request({"wait": self.pid, "seconds": left})["code"]
            if code is not None or not left:
                return code

    def alive(self) -> bool:
        return self.wait(0) is None

    def signal(self, number: Signals) -> None:
        """Nothing happens if it has ended: its pid is never that of another process."""
        self._watchdog.request({"signal": self.pid, "number": int(number)})

    def stop(self, number: Signals) -> None:
        """Send this signal and wait for the end of the process and of those it left behind."""
        self.signal(number)
        if self.wait(PATIENCE) is None:
            raise ServerFailed(
                f"process {self.pid} did not end in {PATIENCE:.0f} s on {number.name}:\n{tail(self.log)}"
            )
        self._watchdog.request({"sweep": 5.0})
