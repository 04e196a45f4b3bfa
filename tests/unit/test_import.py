"""`import forebay` is light: no event loop, no database, no web, no journal, and few packages of other people."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import forebay

SRC = Path(__file__).parents[2] / "src"
HEAVY = {
    "asyncio",
    "concurrent",
    "ctypes",
    "curses",
    "email",
    "google_crc32c",
    "http",
    "hypothesis",
    "multiprocessing",
    "numpy",
    "pandas",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pydantic",
    "pyspark",
    "pytest",
    "redis",
    "socket",
    "sqlalchemy",
    "sqlite3",
    "ssl",
    "tkinter",
    "unittest",
    "xml",
}
LIGHT = {"msgspec", "typing_extensions"}  # msgspec takes the latter along where it is installed
PROGRAM = """
import sys
before = set(sys.modules)
{body}
loaded = set(sys.modules) - before
import json
from importlib.metadata import packages_distributions
owners = packages_distributions()
others = {{dist for name in loaded for dist in owners.get(name.partition(".")[0], []) if dist != "forebay"}}
print(json.dumps([sorted(loaded), sorted(others)]))
"""


def loaded_by(body: str) -> tuple[set[str], set[str]]:
    """The modules that a fresh interpreter loads, and the distributions of other people among them."""
    program = PROGRAM.format(body=body)
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    modules, distributions = cast(list[list[str]], json.loads(answer.stdout))
    return set(modules), set(distributions)


def roots(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_the_import_is_light() -> None:
    modules, distributions = loaded_by("from forebay import JobQueue")
    assert "forebay.queue" in modules
    assert roots(modules) & HEAVY == set()
    assert distributions <= LIGHT
    assert not any(module.startswith(("forebay.store.memory", "forebay.testing")) for module in modules)


def test_the_package_alone_loads_nothing_so_that_a_command_heeds_signals_early() -> None:
    modules, _ = loaded_by("import forebay")
    assert {module for module in modules if module.startswith("forebay")} == {"forebay"}
    assert "msgspec" not in modules


def test_a_queue_in_memory_needs_no_more() -> None:
    modules, distributions = loaded_by("import forebay; forebay.JobQueue().enqueue('x')")
    assert "forebay.store.memory.store" in modules
    assert roots(modules) & HEAVY == set()
    assert distributions <= LIGHT
    assert "forebay.store.memory.journal" not in modules


def test_only_a_journal_loads_what_a_journal_needs(tmp_path: Path) -> None:
    modules, distributions = loaded_by(f"import forebay; forebay.open_store('memory://{tmp_path}').close()")
    assert "google_crc32c" in modules
    assert len(distributions) <= 4
    assert not any(module.startswith("forebay.testing") for module in modules)


def test_the_check_sees_a_heavy_import() -> None:
    modules, distributions = loaded_by("import asyncio, hypothesis")
    assert {"asyncio", "hypothesis"} <= roots(modules) & HEAVY
    assert "hypothesis" in distributions


def test_public_names_exist_are_sorted_and_are_all_there_is() -> None:
    assert forebay.__all__ == sorted(forebay.__all__)
    assert len(set(forebay.__all__)) == len(forebay.__all__)
    assert all(hasattr(forebay, name) for name in forebay.__all__)
    tree = ast.parse((SRC / "forebay" / "__init__.py").read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "typing" and node.col_offset <= len("    ")
        for alias in node.names
    }
    assert imported - {"batches", "breaker", "client", "context", "errors", "public"} == set(forebay.__all__)
