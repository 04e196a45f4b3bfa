"""Runs a page as its reader would: files are written, commands are typed, and what the page shows has to come.

A fence with a title is a file (```python title="app.py"), a fence `console` is a terminal: a line after `$ ` is a
command, the lines below it are its output. Every line that is shown has to come, in that order; more may come, and `…`
stands for anything. A terminal with a title ("second terminal") runs beside the first one until the page ends; a later
block with that title shows more of its output. A command that only reads is repeated until it shows what the page
shows, since workers need a moment.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.waiting import eventually

_FENCE: Final = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_READS: Final = re.compile(
    r"^((python manage.py )?forebay (ls|show|stats|explain|doctor|queues|dlq (ls|show)|cron ls)|curl|cat)\b"
)
_SERVES: Final = re.compile(r"^forebay (dev|serve)\b(?!.*--no-server)")
_PATIENCE: Final = 40.0


class Block(NamedTuple):
    language: str
    title: str
    text: str


class Command(NamedTuple):
    line: str
    shown: list[str]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _FENCE.findall(page.read_text())]


def has_terminal(page: Path) -> bool:
    return any(block.language == "console" for block in blocks(page))


def commands(text: str) -> list[Command]:
    """A command that ends with a backslash goes on in the next line."""
    found: list[Command] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:].split("  #")[0].rstrip(), []))
        elif line.strip():
            assert found, f"output before the first command: {line}"
            found[-1].shown.append(line)
    return found


def page_commands(page: Path) -> list[Command]:
    """Every command of the page's terminals, for a test that types them itself."""
    return [command for block in blocks(page) if block.language == "console" for command in commands(block.text)]


def missing(shown: list[str], came: str) -> str | None:
    """The first line that is shown and did not come, after those before it."""
    lines = iter(came.splitlines())
    for wanted in shown:
        words = " ".join(wanted.split())
        pattern = re.compile(".*".join(map(re.escape, words.split("…"))))
        if not any(pattern.fullmatch(" ".join(line.split())) for line in lines):
            return wanted
    return None


class Terminals:
    """A directory with its terminals. `replaced`: words of the page that stand for something of the test's own."""

    def __init__(self, directory: Path, replaced: dict[str, str], port: str, programs: Sequence[Path]) -> None:
        self._directory = directory
        self._port = port
        self._replaced = replaced
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], *map(str, programs)])
        home = {name: str(directory) for name in ("HOME", "FOREBAY_RUN_DIR", "PYTHONPATH")}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        self._environment = {**inherited, **home, "PATH": path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        self._beside: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def run(self, block: Block) -> None:
        if block.language == "console" and block.title in self._beside:
            self._shows(block.title, self._own(block.text).splitlines())
        elif block.language == "console":
            for command in commands(self._own(block.text)):
                self._start(block.title, command) if block.title else self._type(command)
        elif block.title:
            file = self._directory / block.title
            file.parent.mkdir(exist_ok=True)
            file.write_text(self._own(block.text))

    def link(self, title: str) -> str:
        """The link to its dashboard that a server in a terminal printed last."""
        *_, printed = re.finditer(r"^dashboard +(http\S+)$", self._beside[title][1].read_text(), re.MULTILINE)
        return printed[1]

    def close(self) -> None:
        for process, _ in self._beside.values():
            os.killpg(process.pid, signal.SIGTERM)
        for process, output in self._beside.values():
            assert process.wait(_PATIENCE) == 0, output.read_text()

    def _own(self, text: str) -> str:
        for word, value in self._replaced.items():
            text = text.replace(word, value)
        return text

    def _type(self, command: Command) -> None:
        if command.line.startswith("export "):
            name, _, value = command.line.removeprefix("export ").partition("=")
            self._environment[name] = value
            return
        came = ""

        def shows() -> bool:
            nonlocal came
            done = subprocess.run(
                ["bash", "-c", command.line],
                cwd=self._directory,
                env=self._environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE,
                check=False,
            )
            came = done.stdout
            return missing(command.shown, came) is None and (bool(command.shown) or done.returncode == 0)

        if _READS.match(command.line):
            eventually(
                shows, command.line, _PATIENCE, details=lambda: f"{missing(command.shown, came)!r} not in:\n{came}"
            )
        else:
            assert shows(), f"$ {command.line}\n{missing(command.shown, came)!r} not in:\n{came}"

    def _start(self, title: str, command: Command) -> None:
        line = f"{command.line} --port {self._port}" if _SERVES.match(command.line) else command.line
        output = self._directory / f"terminal-{len(self._beside)}.txt"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self._directory,
                env=self._environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._beside[title] = process, output
        self._shows(title, command.shown)

    def _shows(self, title: str, shown: list[str]) -> None:
        output = self._beside[title][1]
        eventually(
            lambda: missing(shown, output.read_text()) is None,
            title,
            _PATIENCE,
            details=lambda: f"{missing(shown, output.read_text())!r} not in:\n{output.read_text()}",
        )


@contextmanager
def terminals(
    directory: Path, replaced: dict[str, str], port: str = "0", programs: Sequence[Path] = ()
) -> Iterator[Terminals]:
    """`port`: where a server of the page listens. `programs`: directories of commands that the machine may lack."""
    opened = Terminals(directory, replaced, port, programs)
    try:
        yield opened
    finally:
        opened.close()
