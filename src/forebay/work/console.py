"""Terminal output: colours where the terminal supports them, and escaped control characters."""

import os
from typing import Final, TextIO
from unicodedata import category

COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def clean(text: object) -> str:
    """The text on one line, with control characters escaped."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(char if category(char)[0] != "C" else ascii(char)[1:-1] for char in line)


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def shows_colours(stream: TextIO) -> bool:
    """Whether the stream is a terminal and NO_COLOR is not set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def painted(text: str, colour: str) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m"
