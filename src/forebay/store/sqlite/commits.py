"""The place of a group moves on in the caller's own transaction, on the caller's own connection to the store's file.

The statements are those of the store, executed on that connection and nothing else: no commit, no setting. Where the
driver would begin by itself before a write, this begins, with the lock: what was looked at still holds when it is
written. What the driver says of locks and disks stays its own error. The commit is as durable as the connection's
`synchronous` makes it.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.store.sql_logs import SqlLogs
from forebay.store.sqlite.tables import statement

_LAST_AT: Final = statement("last_at")
_PASS: Final = statement("pass_time")


def commit_on(
    connection: sqlite3.Connection, log: str, group: str, partition: int, offset: int, epoch: int | None, now: Instant
) -> int:
    """As `commit` of the store does. `now`: of this machine; the store's time is never behind what it has written."""

    def execute(text: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        cursor = connection.cursor()
        # Rows as they are, whatever the caller's connection makes of its own.
        cursor.row_factory = None
        return cursor.execute(text, parameters)

    _begin(connection)
    try:
        (last_at,) = execute(_LAST_AT, ()).fetchone()
        at = max(now, last_at)
        position = SqlLogs(execute, statement).commit(log, group, partition, offset, False, epoch, at)
        execute(_PASS, (at,))
        return position
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):
            raise
        way = "connect to the file of the store; `forebay migrate` brings its schema up to date"
        raise Invalid("connection", "its database has no tables of Forebay, or old ones", way) from error


def _begin(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise Invalid("connection", "no transaction is open on it", "begin one: the place and the effect go together")
    connection.execute("BEGIN IMMEDIATE")
