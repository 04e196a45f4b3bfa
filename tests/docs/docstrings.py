"""Docstrings for the site: columns of names and meanings become lists.

    timeout    seconds after which the handler is stopped
    retry_on   only these exceptions are worth another attempt

The columns are easy to read in the source. Markdown would join them into one paragraph. mkdocs.yml names the class.
"""

import re
from typing import Any, Final

import griffe

_TERM: Final = re.compile(r"(?P<names>[^\s,]+(?:, [^\s,]+)*) {2,}(?P<meaning>\S.*)|(?P<alone>\w+(?:, \w+)*)")
_COLUMNS: Final = re.compile(r"(?P<indent> *)(?P<names>[\w*]+(?:, [\w*]+)*) {2,}(?P<meaning>\S.*)")


class ColumnsAsLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """The docstring with each `name  meaning` as an item, and the lines indented below it as part of it."""
    lines: list[str] = []
    listing, source = False, text.splitlines()
    for number, line in enumerate(source):
        term, follows = _TERM.fullmatch(line), source[number + 1] if number + 1 < len(source) else ""
        if term and (term["meaning"] or follows.startswith("       ")):
            lines += [] if listing or not lines or not lines[-1] else [""]
            names = ", ".join(f"`{name.strip('`')}`" for name in (term["names"] or term["alone"]).split(", "))
            meaning = re.sub(r"; {2}(\S+): ", r"\n- `\1`: ", (term["meaning"] or "").strip())
            lines.append(f"- {names}: {meaning}".rstrip())
            listing = True
        elif listing and line.startswith("  "):
            lines.append(f"  {line.strip()}")
        else:
            lines += ["", line] if listing and line else [line]
            listing = False
    return "\n".join(lines)


def meanings(text: str) -> dict[str, str]:
    """The meaning of each name, or pattern of names, in the columns of a docstring."""
    found: dict[str, str] = {}
    names: list[str] = []
    deeper = ""
    for line in text.splitlines():
        if row := _COLUMNS.fullmatch(line):
            names, deeper = row["names"].split(", "), f"{row['indent']}      "
            found |= dict.fromkeys(names, row["meaning"])
        elif names and line.startswith(deeper):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found
