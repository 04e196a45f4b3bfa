"""The tables of docs/reference/spark.md: options and columns with their types, and what their docstrings say of them.

A docstring describes them in columns, `names  meaning`; a name may be a pattern. One without a meaning is an error.
"""

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from inspect import getdoc, getmodule
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyspark.sql.types import StructType

from forebay.spark import drafts, evidence, options, schemas
from forebay.spark.options import LakeReading, Reading, Writing
from forebay.spark.tables import TABLES, VIEWS, Table, View
from tests.docs.docstrings import meanings

_STORE: Final = {"url": "postgresql://"}
_MANY: Final = (options.MAX_ID,)
_DEFAULTS: Final = {"partitions": "one for each core"}
_ABOUT: Final = (
    "`!` marks a column that is never null. Percentiles (`*_p50` …) are in seconds. Sketches (`*_sketch`) are KLL "
    "sketches of microseconds, which merge over any range: `kll_merge_agg_bigint`, `kll_sketch_get_quantile_bigint`."
)


def table() -> str:
    """Every option of the data source, every column that can be written, and every column of a lake."""
    read, lake, write = Reading.of(_STORE), LakeReading.of({"lake": "/lake"}), Writing.of(_STORE)
    parts = ["## Options\n", "Of `spark.read` and `spark.readStream`, for a store:\n"]
    parts += [_options(read, options._READING, {**vars(read), **_fields(read.query)})]
    parts += ["Of `spark.read`, for a lake:\n", _options(lake, options._LAKE_READING, {"table": lake.table})]
    parts += ["Of `df.write` and `df.writeStream`:\n", _options(write, options._WRITING, vars(write))]
    said = meanings(str(drafts.__doc__))
    rows = [f"| `{name}` | {_meaning(name, said)} |" for name in drafts._COLUMNS]
    written = "\n".join(["| column | meaning |", "|---|---|", *rows]) + "\n"
    parts += ["## Columns of jobs to write\n", written, "## Tables of a lake\n", f"{_ABOUT}\n", *_lake_tables()]
    return "\n".join(parts)


def _lake_tables() -> Iterator[str]:
    for name in ("EVENTS", "RECEIPTS", "EFFECTS"):
        yield _schema(name.lower(), getattr(schemas, name), _said_below(schemas, name))
    origin = ", ".join(f"`{name}`" for name in evidence._ORIGIN.names)
    yield f"In a lake, `receipts` and `effects` also have {origin}: the part of a file that a row was read from.\n"
    tables: list[Table | View] = [*TABLES.values(), *VIEWS.values()]
    for table in tables:
        module = getmodule(table.build)
        yield _schema(table.name, table.schema, str(module and module.__doc__))


def _options(reading: object, known: str, values: dict[str, Any]) -> str:
    said = meanings(str(getdoc(type(reading))))
    names = known.split()
    assert not (unknown := set(said) - set(names)), f"{type(reading).__name__} describes {unknown}"
    rows = [f"| `{name}` | {_default(name, values.get(name))} | {_meaning(name, said)} |" for name in names]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) + "\n"


def _default(name: str, value: object) -> str:
    if name in _DEFAULTS:
        return _DEFAULTS[name]
    if value is None or value in _MANY or name in ("url", "lake"):
        return ""
    return f"`{str(value).lower()}`"


def _fields(query: Any) -> dict[str, Any]:
    return {name: getattr(query, name) for name in query.__struct_fields__}


def _schema(name: str, schema: StructType, text: str) -> str:
    said = meanings(text)
    rows = _grouped(
        (each.name, f"{each.dataType.simpleString()}{'' if each.nullable else '!'}", _meaning(each.name, said))
        for each in schema
    )
    head = f"### `{name}`\n{_first_sentence(name, text)}"
    return "\n".join([head, "| column | type | meaning |", "|---|---|---|", *rows]) + "\n"


def _grouped(columns: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """A row for all neighbours that have the same type and meaning."""
    for (kind, meaning), group in groupby(columns, lambda column: column[1:]):
        yield f"| {', '.join(f'`{name}`' for name, _, _ in group)} | {kind} | {meaning} |"


def _first_sentence(name: str, text: str) -> str:
    _, found, rest = text.partition(f"`{name}`: ")
    sentence = " ".join(rest.partition(".\n")[0].split())
    return f"\n{sentence[0].upper()}{sentence[1:]}.\n" if found else ""


def _meaning(name: str, said: dict[str, str]) -> str:
    found = said.get(name) or next((text for pattern, text in said.items() if fnmatch(name, pattern)), None)
    assert found, f"no docstring says what {name} means"
    return found.replace("|", "\\|")


def _said_below(module: ModuleType, name: str) -> str:
    """The text below the constant in its source."""
    body = ast.parse(Path(str(module.__file__)).read_text()).body
    for node, below in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return str(getattr(getattr(below, "value", None), "value", ""))
    return ""
