"""Statements name their columns and, where they have many, their parameters: no text depends on their order."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

import forebay
from forebay.store.postgres import health, queries
from forebay.store.sqlite import tables

ROOT: Final = Path(forebay.__file__).parent
TEXTS: Final = sorted(path for path in ROOT.rglob("*") if path.suffix in (".sql", ".py"))
INSERT: Final = re.compile(
    r"\b(?:INSERT(?:\s+OR\s+\w+)?|REPLACE)\s+INTO\s+[\w.{}]+(?:\s+AS\s+\w+)?\s*(.{12})", re.DOTALL
)

CALL: Final = re.compile(r"(?<!FUNCTION )(?<!TYPE )(?<!TABLE )(?<!INTO )\bforebay\.\w+\(")
MAX_UNNAMED: Final = 4
"""Parameters of a call of a function of the server, from which on they are named."""

MAX_UNNAMED_INSIDE: Final = 7
"""The same for calls between those functions: most pass on variables that are named like the parameters."""

MAX_UNNAMED_SQLITE: Final = 6
WRITE_ROWS: Final = {
    *("insert", "insert_plain", "merge", "keep", "dead_letter", "wait_again", "put_head", "put_queue"),
}
"""Statements of SQLite that write a row for each job or call: values that are bound by name cost more."""


def statements_of(path: Path) -> list[str]:
    """The SQL of a file: all of it, or the strings of a module."""
    text = path.read_text("utf-8")
    if path.suffix == ".sql":
        return [re.sub(r"--.*", "", text)]
    nodes = list(ast.walk(ast.parse(text)))
    found = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return found + [ast.unparse(node) for node in nodes if isinstance(node, ast.JoinedStr)]


def unnamed(statement: str) -> list[str]:
    """What follows each INSERT that names no columns; a row of defaults has none to name."""
    return [rest for rest in INSERT.findall(statement) if not rest.startswith(("(", "DEFAULT"))]


def arguments(text: str, start: int) -> list[str]:
    """Those of the call whose parenthesis opens before `start`."""
    found, depth, in_text = [""], 1, False
    for char in text[start:]:
        in_text ^= char == "'"
        depth += 0 if in_text else (char in "([") - (char in ")]")
        if depth == 0:
            break
        if char == "," and depth == 1 and not in_text:
            found.append("")
        else:
            found[-1] += char
    return found


def positional(statement: str, maximum: int) -> list[str]:
    """Calls of functions of the server that pass more arguments than this and do not name them all."""
    calls = [(call.group(), arguments(statement, call.end())) for call in CALL.finditer(statement)]
    return [name for name, given in calls if len(given) > maximum and not all("=>" in each for each in given)]


def parameters(statement: str) -> int:
    """How many parameters without names a statement of SQLite has."""
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    return max(len(re.findall(r"\?(?!\d)", statement)), *numbered, 0)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_insert_names_its_columns(path: Path) -> None:
    assert [rest for statement in statements_of(path) for rest in unnamed(statement)] == []


@pytest.mark.parametrize("text", ["INSERT INTO a.b SELECT 1 FROM c;", "INSERT OR REPLACE INTO a VALUES (?, ?)"])
def test_an_insert_without_columns_is_found(text: str) -> None:
    assert unnamed(text)


def test_calls_of_functions_of_the_server_name_their_parameters() -> None:
    found = []
    for path in TEXTS:
        maximum = MAX_UNNAMED_INSIDE if path.parent.name == "migrations" else MAX_UNNAMED
        found += [(path.name, call) for text in statements_of(path) for call in positional(text, maximum)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT forebay.f(1, ARRAY[2, 3], (4), 'a,)b', 5)", ["forebay.f("]),
        ("SELECT forebay.f(a => 1, b => 2, c => 3, d => 4, 5)", ["forebay.f("]),
        ("SELECT forebay.f(a => 1, b => (2, 3), c => 3, d => 4, e => 5)", []),
        ("SELECT forebay.f(1, forebay.g(2, 3, 4, 5, 6))", ["forebay.g("]),
        ("CREATE FUNCTION forebay.f(a text, b text, c text, d text, e text)", []),
    ],
)
def test_a_call_without_names_is_found(text: str, found: list[str]) -> None:
    assert positional(text, MAX_UNNAMED) == found


@pytest.mark.parametrize(
    ("store", "known"),
    [("sqlite", vars(tables.SQL)), ("postgres", vars(queries.SQL) | vars(health.SQL))],
)
def test_every_statement_that_is_named_exists_and_is_used(store: str, known: dict[str, str]) -> None:
    text = "".join(path.read_text("utf-8") for path in sorted(Path(ROOT, "store", store).glob("*.py")))
    named = set(re.findall(r"(?<!sql\.)\bSQL\.(\w+)", text))
    of_logs = set(re.findall(r'"(\w+)"', Path(ROOT, "store", "sql_logs.py").read_text("utf-8")))
    assert named <= known.keys()
    assert known.keys() - named - of_logs == set()


def test_many_parameters_are_named_on_sqlite_except_where_rows_are_written() -> None:
    many = {name for name, text in vars(tables.SQL).items() if parameters(text) > MAX_UNNAMED_SQLITE}
    assert many == WRITE_ROWS
