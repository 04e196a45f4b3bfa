"""Searches by an index of the user on an entry of meta or a field of payloads (docs/guides/search.md).

An index is used if it is written exactly as that page has it. It only narrows a search to ids: whether a job matches is
decided elsewhere, by the same rule for every store. JSON's numbers with fractions, null, and positions in lists are
not looked up by an index, because SQLite may read them otherwise than JSON writes them.
"""

import re
import sqlite3
from collections.abc import Iterator
from heapq import merge
from typing import Final, NamedTuple

from forebay.core.content import plain_values
from forebay.store.protocol import Query

_INDEXES: Final = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'job' AND sql IS NOT NULL"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Lookup(NamedTuple):
    """An index, what it indexes, and the values to find in it."""

    name: str
    expression: str
    values: list[str | int]

    def ids(self, reader: sqlite3.Connection, after: int, limit: int) -> list[int]:
        """The next jobs with such a value."""
        name = self.name.replace('"', '""')
        text = f'SELECT id FROM job INDEXED BY "{name}" WHERE {self.expression} = ? AND id > ? ORDER BY id LIMIT ?'
        found = [[job_id for (job_id,) in reader.execute(text, (value, after, limit))] for value in self.values]
        return list(merge(*found))[:limit]


def lookup_for(reader: sqlite3.Connection, query: Query) -> Lookup | None:
    """By the first condition that has an index."""
    wanted = list(_expressions(query))
    indexes = [(name, " ".join(sql.split())) for name, sql in reader.execute(_INDEXES)] if wanted else []
    for expression, values in wanted:
        for name, sql in indexes:
            if sql.endswith(f"({expression})"):
                return Lookup(name, expression, values)
    return None


def _expressions(query: Query) -> Iterator[tuple[str, list[str | int]]]:
    for path, text in query.payload:
        values = plain_values(text)
        if values is not None and all(_NAME.fullmatch(step) for step in path.split(".")):
            yield f"json_extract(CAST(body AS TEXT), '$.{path}')", values
    for name, text in query.meta:
        if _NAME.fullmatch(name):
            yield f"json_extract(meta, '$.{name}')", [text]
