"""Ordinary words: no personas and no private names of bounds, in the product, its proof and the names of its tests.

Jobs, leases and stores are things: a job becomes ready, a store returns, a row is in a cell. Bounds are `MAX_…` and
`MIN_…`, as everywhere.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("src", "proof/src", "examples")
KINDS = (".py", ".sql", ".lua", ".html")
ACCOUNTS = "nobody is a Unix user"

PERSONA = re.compile("told|tells|tell|hears|heard|hear|somebody|nobody|whoever|whom|himself|him|lately|glad")
"""Words of persons, in lower case, also as a part of a name in snake case; `file.tell()` is Python's."""

BOUND = re.compile(r"(?<!\bat)(?<!_at)_(?:most|least|MOST|LEAST)\b|\b(?:MOST|LEAST)_(?=[A-Z])")
"""`LatestWins(at_most=…)` is an ordinary name."""

ALLOWED = {
    "proof/src/forebay_proof/servers/account.py": ACCOUNTS,
    "tests/process/test_servers.py": ACCOUNTS,
}
"""A file, and what its `nobody` means."""


def offences(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Line and word of each. In tests strings are data, so only names and docstrings count."""
    found = list(_found(text))
    with_who = path.endswith(".py") and re.search(r"\bwho\b", text) is not None
    if not (with_who or found):
        return
    names = list(_names(ast.parse(text))) if path.endswith(".py") else []
    if path.startswith("tests/"):
        lines = [*names, *_docstrings(ast.parse(text))]
        found = [(number, word) for number, line in lines for _, word in _found(line)]
    yield from found
    yield from ((number, name) for number, name in names if name == "who")


def _found(text: str) -> Iterator[tuple[int, str]]:
    lower = text.lower()
    for word in PERSONA.finditer(lower):
        around = lower[word.start() - 1 : word.start()] + lower[word.end() : word.end() + 1]
        if not any("a" <= letter <= "z" for letter in around) and not lower.startswith("tell()", word.start()):
            yield text.count("\n", 0, word.start()) + 1, word[0]
    for word in BOUND.finditer(text):
        yield text.count("\n", 0, word.start()) + 1, word[0]


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case _:
                pass


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case _:
                pass


def files() -> Iterator[tuple[str, str]]:
    for top in (*TOPS, "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in KINDS and path != Path(__file__):
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def test_things_are_not_persons_and_bounds_are_minimum_and_maximum() -> None:
    found = [
        f"{path}:{line}: {word}"
        for path, text in files()
        for line, word in offences(path, text)
        if word != "nobody" or path not in ALLOWED
    ]
    assert not found, "say it with an ordinary word:\n" + "\n".join(found)


@pytest.mark.parametrize("path", ["src/a.py", "tests/a.py"])
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def _told() -> None: ...", "told"),
        ('"""The store tells its waiters."""', "tells"),
        ("for who in []: ...", "who"),
        ("def f(who: int) -> None: ...", "who"),
        ("BATCH_MOST = 1", "_MOST"),
        ("LEAST_LEASE = 1", "LEAST_"),
        ("jobs_least = 1", "_least"),
    ],
)
def test_the_checker_bites(path: str, text: str, word: str) -> None:
    assert [found for _, found in offences(path, text)] == [word]


def test_comments_and_messages_of_the_product_are_read_too() -> None:
    assert [word for _, word in offences("src/a.py", "x = 1  # nobody holds it")] == ["nobody"]
    assert [word for _, word in offences("src/a.sql", "-- what a worker was told")] == ["told"]
    assert [word for _, word in offences("src/a.html", "<p>Somebody paused it</p>")] == ["somebody"]


@pytest.mark.parametrize(
    "text", ["file.tell()", "x.most_common(3)", "# actors who see all tenants", "at_most = 1", "# at least once"]
)
def test_the_checker_lets_ordinary_words_pass(text: str) -> None:
    assert list(offences("src/a.py", text)) == []
