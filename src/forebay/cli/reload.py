"""Hot reload: a worker process that is restarted when the app's code changes.

Files are compared by time and size every half second, which needs no dependency and works on any file system. Code that
cannot be imported ends the worker until the next change. A worker that dies otherwise is restarted after a second.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeAlias

from forebay.cli.exits import UNREACHABLE, USAGE, CommandFailed

POLL_SECONDS: Final = 0.5
_SIGNAL_SECONDS: Final = 0.05
MAX_FILES: Final = 10_000
_STOP_SECONDS: Final = 8.0
_INTERRUPT_SECONDS: Final = 1.0
_RESTART_SECONDS: Final = 1.0
_NOT_OURS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

FileTimes: TypeAlias = dict[Path, tuple[int, int]]


def home_of(target: str, path: list[str]) -> Path | None:
    """The package directory or the module file of the app, found without an import."""
    top = target.partition(":")[0].partition(".")[0]
    for entry in path:
        directory = Path(entry or ".")
        if (directory / top).is_dir() and top:
            return directory / top
        if (directory / f"{top}.py").is_file():
            return directory / f"{top}.py"
    return None


def sources(home: Path) -> Iterator[Path]:
    """The Python files below a directory; for a module, those in its directory and in the packages there."""
    if home.is_dir():
        yield from _below(home)
        return
    yield from sorted(home.parent.glob("*.py"))
    for package in sorted(home.parent.glob("*/__init__.py")):
        yield from _below(package.parent)


def _below(directory: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name not in _NOT_OURS and not name.startswith("."))
        yield from (Path(place) / name for name in sorted(names) if name.endswith(".py"))


def snapshot(*homes: Path) -> FileTimes:
    found: FileTimes = {}
    for file in islice(chain.from_iterable(map(sources, homes)), MAX_FILES):
        with suppress(OSError):
            status = file.stat()
            found[file] = (status.st_mtime_ns, status.st_size)
    return found


def changes(before: FileTimes, after: FileTimes) -> list[str]:
    """The names of files that are new, removed or changed."""
    return sorted({file.name for file, _ in before.items() ^ after.items()})


class Reloader:
    """Runs the command until a signal arrives; `say` is called with a message for each event.

    `on_change` is called after a change of the code, to restart what runs beside the command. The code is that of the
    package which the target names, or what is below the directories of `watch`.
    """

    def __init__(
        self,
        target: str,
        command: list[str],
        say: Callable[[str], None],
        on_change: Callable[[], None] = lambda: None,
        watch: Sequence[Path] = (),
    ) -> None:
        home = home_of(target, [os.getcwd(), *sys.path])
        homes = list(watch) or ([] if home is None else [home])
        if not homes:
            raise CommandFailed(
                f"app: the module of {target!r} was not found; write module:name, for example app:fb, "
                "and run it in the directory of app.py",
                USAGE,
            )
        self._homes = homes
        self._command = command
        self._say = say
        self._on_change = on_change
        self._child: subprocess.Popen[bytes] | None = None
        self._signal = 0
        self._start_at = 0.0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        seen = snapshot(*self._homes)
        files = "1 file" if len(seen) == 1 else f"{len(seen)} files"
        self._say(f"watching {files} of {', '.join(home.name for home in self._homes)}; ctrl-c stops")
        while not self._signal:
            self._supervise()
            self._wait()
            now = snapshot(*self._homes)
            if (names := changes(seen, now)) and not self._signal:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                self._say(f"{', '.join(names[:3])}{more} changed; restarting")
                seen = now
                self._stop(signal.SIGTERM)
                self._start_at = 0.0
                self._on_change()
        self._stop(self._signal)
        self._say("stopped")
        return 0

    def _wait(self) -> None:
        until = monotonic() + POLL_SECONDS
        while not self._signal and monotonic() < until:
            sleep(_SIGNAL_SECONDS)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signal = number

    def _supervise(self) -> None:
        if self._child is None:
            if monotonic() >= self._start_at:
                # Bytecode is matched by whole seconds and size, so after two quick edits the first one would run again.
                environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
                self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, env=environment)
            return
        code = self._child.poll()
        if code is None:
            return
        self._child = None
        if code in (USAGE, UNREACHABLE):
            self._say("the worker cannot start; waiting for a change")
            self._start_at = float("inf")
        else:
            self._say(f"the worker exited with code {code}; restarting")
            self._start_at = monotonic() + _RESTART_SECONDS

    def _stop(self, number: int) -> None:
        """Drain the child. It gets ctrl-c too, as a member of our process group; SIGTERM follows only if it stays."""
        child, self._child = self._child, None
        if child is None:
            return
        if number == signal.SIGINT:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_INTERRUPT_SECONDS)
        try:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._say("the worker does not stop; killing it")
            child.kill()
            child.wait()
