"""The output of a command: aligned tables and colours for people, JSON for programs, progress bars, live screens.

Results go to stdout, notes and progress to stderr. Text from a store may hold anything, so control characters are
escaped: a payload cannot control the terminal. A live screen always restores the state of the terminal.
"""

import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TextIO
from unicodedata import combining, east_asian_width

import msgspec

from forebay.cli.exits import USAGE, CommandFailed
from forebay.work.console import clean, is_terminal, painted, shows_colours

STATE_COLOURS: Final = {
    "waiting": "blue",
    "ready": "cyan",
    "running": "yellow",
    "done": "green",
    "dead": "red",
    "cancelled": "dim",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}
_GAP: Final = "  "
_REDRAW_SECONDS: Final = 0.1
_BAR: Final = 24
_ENTER: Final = "\033[?1049h\033[?25l"
_LEAVE: Final = "\033[?25h\033[?1049l"


def width_of(text: str) -> int:
    """The number of terminal columns of a text."""
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def cut(text: str, width: int) -> str:
    """The text cut to this many columns, with an ellipsis."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


class Screen:
    """The output of one command."""

    def __init__(self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self.live = is_terminal(self._out)
        self._coloured = shows_colours(self._out)

    @property
    def columns(self) -> int | None:
        """The width of the terminal; None without one."""
        return shutil.get_terminal_size().columns if self.live else None

    def say(self, text: str = "") -> None:
        self._out.write(text + "\n")

    def write(self, text: str) -> None:
        """Write and flush, without a newline; for live screens."""
        self._out.write(text)
        self._out.flush()

    def note(self, text: str) -> None:
        """A note on stderr."""
        self._err.write(clean(text) + "\n")
        self._err.flush()

    def emit(self, value: Any) -> None:
        """One JSON document on one line."""
        self._out.write(msgspec.json.encode(value).decode() + "\n")

    def paint(self, text: str, colour: str | None) -> str:
        return painted(text, colour) if self._coloured and colour and text else text

    def facts(self, pairs: Sequence[tuple[str, object]]) -> None:
        """Names and values, one per line; those without a value are left out."""
        shown = [(name, clean(value)) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.say(f"{self.paint(name.ljust(width), 'dim')}{_GAP}{self.paint(value, STATE_COLOURS.get(value))}")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]], right: str = "") -> None:
        for line in self.table_lines(heads, rows, right):
            self.say(line)

    def table_lines(self, heads: Sequence[str], rows: Sequence[Sequence[object]], right: str = "") -> list[str]:
        """Aligned columns, those named in `right` to the right; the last one is cut at the terminal's edge."""
        cells = [["" if cell is None else clean(cell) for cell in row] for row in rows]
        widths = [max(map(width_of, column)) for column in zip(heads, *cells, strict=True)]
        if self.columns is not None:
            widths[-1] = max(8, min(widths[-1], self.columns - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)))
        to_right = [head in right.split() for head in heads]
        lines = [self._row(heads, widths, to_right, lambda _: "dim")]
        return lines + [self._row(row, widths, to_right, STATE_COLOURS.get) for row in cells]

    def _row(
        self, cells: Sequence[str], widths: list[int], to_right: list[bool], colour: Callable[[str], str | None]
    ) -> str:
        parts = []
        for cell, width, right in zip(cells, widths, to_right, strict=True):
            text = cut(cell, width)
            blank = " " * (width - width_of(text))
            painted = self.paint(text, colour(cell))
            parts.append(blank + painted if right else painted + blank)
        return _GAP.join(parts).rstrip()


class ProgressBar:
    """A progress bar on stderr if it is a terminal, else nothing. `done` counts in any unit."""

    def __init__(self, screen: Screen, label: str, total: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._label = label
        self._total = total
        self._shown_at = float("-inf")
        self._live = is_terminal(self._stream) and not screen.as_json

    def show(self, done: int, words: str = "") -> None:
        if not self._live or (monotonic() - self._shown_at < _REDRAW_SECONDS and done < self._total):
            return
        self._shown_at = monotonic()
        fraction = min(1.0, done / self._total) if self._total else 1.0
        full = int(fraction * _BAR)
        bar = "█" * full + "░" * (_BAR - full)
        self._stream.write(f"\r\033[K{self._label} {bar} {fraction:4.0%} {words}")
        self._stream.flush()

    def close(self) -> None:
        if self._live:
            self._stream.write("\r\033[K")
            self._stream.flush()


def confirm(question: str, command: str, otherwise: str) -> None:
    """Ask for confirmation; without a terminal, --yes is required."""
    if not sys.stdin.isatty():
        raise CommandFailed(f"{command} needs a confirmation and stdin is no terminal; use --yes or --dry-run", USAGE)
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed(otherwise)


def watch(screen: Screen, every: float, frame: Callable[[], list[str]]) -> None:
    """Show frames until q, ctrl-c or a closed pipe. With --json, `frame` prints itself and returns no lines."""
    if not screen.live or screen.as_json:
        while True:
            screen.write("".join(f"{line}\n" for line in frame()))
            _pause(every, keys=False)
    with _terminal(screen) as keys:
        while True:
            lines = [screen.paint(f"every {every:g} s · q quits", "dim"), *frame()]
            screen.write("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J")
            if _pause(every, keys):
                return


def _pause(seconds: float, keys: bool) -> bool:
    """Wait; True when the user wants to quit."""
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin] if keys else [], [], [], left)
        if ready:
            typed = os.read(sys.stdin.fileno(), 64)
            if not typed or set(typed) & set(b"qQ\x03\x04"):
                return True
    return False


@contextmanager
def _terminal(screen: Screen) -> Iterator[bool]:
    """Switch to the alternate screen; yields whether keys can be read."""
    keys = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if keys else None
    try:
        if keys:
            tty.setcbreak(sys.stdin)
        screen.write(_ENTER)
        yield keys
    finally:
        screen.write(_LEAVE)
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
