"""A screen that redraws itself until q, ctrl-c or a closed pipe; without a terminal, frames follow each other.

The terminal's state is always restored.
"""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from forebay.cli.screen import Screen

_ENTER = "\033[?1049h\033[?25l"
_LEAVE = "\033[?25h\033[?1049l"


def watch(screen: Screen, every: float, frame: Callable[[], list[str]]) -> None:
    """Show frame after frame. With --json, `frame` prints itself and returns no lines."""
    if not screen.live or screen.as_json:
        while True:
            _plain(screen, frame())
            _pause(every, keys=False)
    with _terminal(screen) as keys:
        while True:
            lines = [screen.paint(f"every {every:g} s · q quits", "dim"), *frame()]
            screen.write("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J")
            if _pause(every, keys):
                return


def _plain(screen: Screen, lines: list[str]) -> None:
    screen.write("".join(f"{line}\n" for line in lines))


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
