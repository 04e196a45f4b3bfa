"""Verbs inside the caller's own transaction, on the caller's own connection to the file of the store.

What a verb writes is committed or rolled back by the caller. A verb that fails leaves nothing, and the transaction as
it was. SQLite has one writer: until the transaction ends, every other writer waits, those of this process too. Waiters
notice the commit as they notice that of another process.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import astuple

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.store.sql_logs import SqlLogs
from forebay.store.sqlite.intake import accept
from forebay.store.sqlite.tables import SQL, SpecCache
from forebay.store.sqlite.unit_of_work import Head, UnitOfWork


def enqueue_on(connection: sqlite3.Connection, drafts: Sequence[Draft], now: Instant) -> list[int]:
    """The ids of the jobs. `now`: of this machine; the store's time is never behind what it has written."""
    with _joined(connection):
        found = connection.execute(SQL.head).fetchone()
        head = Head(*found)
        unit = UnitOfWork(connection, SpecCache(), head, max(now, head.last_at))
        receipts = accept(unit, drafts)
        unit.finish()
        if astuple(head) != found:
            connection.execute(SQL.put_head, astuple(head))
    return [receipt.id for receipt in receipts]


def commit_on(
    connection: sqlite3.Connection, log: str, group: str, partition: int, offset: int, epoch: int | None, now: Instant
) -> int:
    """As `commit` of the store does."""
    if _is_autocommit(connection):
        raise Invalid("connection", "no transaction is open on it", "begin one: the place and the effect go together")
    with _joined(connection):
        (last_at,) = connection.execute(SQL.last_at).fetchone()
        at = max(now, last_at)
        logs = SqlLogs(connection.execute, vars(SQL).__getitem__, connection.executemany)
        position = logs.commit(log, group, partition, offset, False, epoch, at)
        connection.execute(SQL.pass_time, (at,))
    return position


@contextmanager
def _joined(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside the caller's transaction; where none is open it begins here, and in autocommit mode it also ends here."""
    begins, ends = not connection.in_transaction, _is_autocommit(connection)
    factories = connection.row_factory, connection.text_factory
    connection.execute("BEGIN IMMEDIATE" if begins else "SAVEPOINT forebay")
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
        if ends or not begins:
            connection.execute("COMMIT" if ends else "RELEASE forebay")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK" if begins else "ROLLBACK TO forebay")
        if connection.in_transaction:
            connection.execute("RELEASE forebay")
        if isinstance(error, sqlite3.OperationalError) and "no such" in str(error):
            way = "connect to the file of the store; `forebay migrate` brings its schema up to date"
            raise Invalid("connection", "its database has no tables of Forebay, or old ones", way) from error
        raise
    finally:
        connection.row_factory, connection.text_factory = factories


def _is_autocommit(connection: sqlite3.Connection) -> bool:
    """Each statement is a transaction of its own, since none is open."""
    by_driver = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    return by_driver and not connection.in_transaction
