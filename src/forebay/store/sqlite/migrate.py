"""The schema: numbered files, applied in order and in one transaction when a store is opened.

What was applied is written down with its checksum. A file that changed after it was applied, a schema newer than this
program, and a database of another program are refused, and nothing is changed then. A file that an application shares
with the store has the tables of both. Processes that open a fresh file
together take turns: the second one finds everything done.
"""

import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from typing import Final

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.store.sql_files import Migration as File
from forebay.store.sql_files import read_migrations
from forebay.store.sqlite.database import Database

APPLICATION_ID: Final = 0x46424159
"""The letters FBAY in the header of the file: whose database it is."""

_TABLE: Final = (
    "CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, "
    "applied_at INTEGER NOT NULL)"
)
_APPLIED: Final = "INSERT INTO migration (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)"


_TABLES: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)


class Migration(File, frozen=True):
    """One file, statement by statement."""

    def statements(self) -> Iterator[str]:
        text = ""
        for line in self.text.splitlines(keepends=True):
            text += line
            if sqlite3.complete_statement(text):
                yield text
                text = ""


@cache
def migrations() -> tuple[Migration, ...]:
    return read_migrations("forebay.store.sqlite", Migration)


def migrate(database: Database, connection: sqlite3.Connection, now: Instant, shared: bool) -> None:
    """Bring the file up to date, or refuse it. `shared`: a file with tables of an application becomes a store."""
    with database.failing():
        # A file that is up to date is opened without waiting for its writer.
        if database.retry_while_locked(lambda: _is_current(connection)):
            return
        database.retry_while_locked(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            _migrate(database, connection, now, shared)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _is_current(connection: sqlite3.Connection) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        return False
    applied = dict(connection.execute("SELECT number, checksum FROM migration"))
    return applied == {migration.number: migration.checksum for migration in migrations()}


def _migrate(database: Database, connection: sqlite3.Connection, now: Instant, shared: bool) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if application != APPLICATION_ID:
        if application or (tables and not shared):
            remedy = "name a file of its own, or keep jobs beside your tables by `forebay migrate --shared`"
            raise Invalid("store URL", f"{database.path!r} belongs to another program", remedy)
        if taken := tables & {"migration", *_TABLES.findall("".join(each.text for each in migrations()))}:
            reason = (
                f"{database.path!r} has tables of an application with names of the store: {', '.join(sorted(taken))}"
            )
            raise Invalid("store URL", reason, "name a file of its own")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(_TABLE)
    applied = dict(connection.execute("SELECT number, checksum FROM migration ORDER BY number"))
    known = migrations()
    newest = max(applied, default=0)
    if newest > len(known):
        raise Invalid(
            "store URL",
            f"{database.path!r} has schema {newest}, this program knows {len(known)}",
            "upgrade forebay before you open it",
        )
    for migration in known:
        if migration.number not in applied:
            for text in migration.statements():
                connection.execute(text)
            row = (migration.number, migration.name, migration.checksum, now)
            connection.execute(_APPLIED, row)
        elif applied[migration.number] != migration.checksum:
            raise Invalid(
                "store URL",
                f"schema {migration.number} of {database.path!r} is not the one in {migration.name}",
                "a migration that was applied is never edited: install the version that made the file",
            )
