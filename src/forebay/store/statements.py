"""Statements kept in `.sql` files, by name. A name that is given twice is an error when the file is read.

A statement starts with `-- name: word` and a line that says what it is for. Words in braces stand for lists of columns.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def read_statements(package: str, names: Sequence[str], words: Mapping[str, str]) -> dict[str, str]:
    """Every statement of these files by its name."""
    found: dict[str, str] = {}
    for file in names:
        text = (files(package) / file).read_text("utf-8")
        for word, meaning in words.items():
            text = text.replace("{" + word + "}", meaning)
        parts = _NAME.split(text)[1:]
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise LookupError(f"{file}: the statement {name!r} is there twice")
            lines = [line for line in body.splitlines() if not line.startswith("--")]
            found[name] = "\n".join(lines).strip().rstrip(";")
    return found
