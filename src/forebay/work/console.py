"""What a terminal may be sent: colours where they are wanted, and no control characters of other people's making."""

import os
from typing import Final, TextIO
from unicodedata import category

COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def clean(text: object) -> str:
    """One line of what may be shown: control characters are written out."""
    return "".join(sign if category(sign)[0] != "C" else ascii(sign)[1:-1] for sign in str(text))


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def shows_colours(stream: TextIO) -> bool:
    """Only a terminal, and not where NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def painted(text: str, colour: str) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m"
