"""The HTML page of a report: it needs no network, and nothing on it runs.

Its content security policy forbids both. Everything is escaped as text, except the markup from this module and from
`plots`.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

_MAX_TEXT: Final = 240
_STYLE: Final = (Path(__file__).parent / "report.css").read_text("utf-8")
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, *sections: str) -> str:
    """The page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def save(text: str, out: Path) -> None:
    """Write the file atomically."""
    draft = out.with_name(f".{out.name}.new")
    draft.write_text(text, "utf-8")
    draft.replace(out)


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2><div class='grid'>{''.join(parts)}</div></section>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th scope='col'>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    if not body:
        return '<p class="none">nothing to show</p>'
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(text: str) -> str:
    shown = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
    figure = shown[:1].isdigit() and all(sign in "0123456789.,%kM s" for sign in shown)
    return f"<td class='n'>{escape(shown)}</td>" if figure else f"<td>{escape(shown)}</td>"
