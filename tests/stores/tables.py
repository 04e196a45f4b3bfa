"""A Postgres database with our schema that is emptied again and again, faster than a new one could be made."""

from types import TracebackType
from typing import Any, Final, Self

import psycopg

from forebay.store.postgres.store import PostgresStore

_TABLES: Final = """
    SELECT string_agg(format('DELETE FROM forebay.%I', relname), ';')
    FROM pg_class WHERE relnamespace = 'forebay'::regnamespace AND relkind = 'r' AND relname <> 'migration'
"""


class Tables:
    """`clear` waits a while for concurrent writers, then fails."""

    def __init__(self, url: str) -> None:
        self.url = url
        PostgresStore(url).close()
        self._connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(url, autocommit=True)
        self._connection.execute("SET lock_timeout = '20s'")
        self._deletes: str = self.value(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def clear(self) -> None:
        """No rows, and the first job will have the id 1."""
        self.execute(self._deletes)
        for single in ("ledger_mark", "ledger_rule"):
            self.execute(f"INSERT INTO forebay.{single} DEFAULT VALUES")
        self.execute("SELECT setval('forebay.job_id', 1, false)")

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: object) -> Any:
        return self.execute(statement, *parameters)[0][0]
