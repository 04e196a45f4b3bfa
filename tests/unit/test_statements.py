"""Statements name their columns: a table may gain one, and no text depends on their order."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

import forebay

ROOT: Final = Path(forebay.__file__).parent
TEXTS: Final = sorted(path for path in ROOT.rglob("*") if path.suffix in (".sql", ".py"))
INSERT: Final = re.compile(
    r"\b(?:INSERT(?:\s+OR\s+\w+)?|REPLACE)\s+INTO\s+[\w.{}]+(?:\s+AS\s+\w+)?\s*(.{12})", re.DOTALL
)


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


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_insert_names_its_columns(path: Path) -> None:
    assert [rest for statement in statements_of(path) for rest in unnamed(statement)] == []


@pytest.mark.parametrize("text", ["INSERT INTO a.b SELECT 1 FROM c;", "INSERT OR REPLACE INTO a VALUES (?, ?)"])
def test_an_insert_without_columns_is_found(text: str) -> None:
    assert unnamed(text)
