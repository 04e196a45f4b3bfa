"""Enqueue inside the caller's own transaction: committed means it will run, rolled back means it was never there.

The place of a group in a log moves on in the same way: what an entry caused and that it was handled, both or neither.

The caller brings a connection of its own driver to the database of a `postgresql://` store, or to the file of a
`sqlite:///` store (`store.sqlite.caller_transaction`). On Postgres one statement is executed on it, in that driver's
style, and nothing else: no commit, no setting, no connection of ours. A driver is recognised by the class of the
connection, so none of them is a dependency.

Translated are `KeyConflict`, `WrongQueueKind` and a database without the schema. Any other failure is the
driver's own error. After any of them the transaction is aborted, as after any error in Postgres.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError, Invalid, KeyConflict, Unsupported, WrongQueueKind
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft
from forebay.core.names import check_name
from forebay.core.payload import digest
from forebay.core.policy import check_between
from forebay.store.checks import check_batch, check_bytes, check_epoch
from forebay.store.clock import SystemClock
from forebay.store.log import committed

if TYPE_CHECKING:
    import sqlite3

POSTGRES: Final = ("postgresql", "postgres")

_PUT: Final = "SELECT forebay.enqueue_draft(d.value) FROM json_array_elements(CAST(CAST({} AS text) AS json)) AS d"
_PUT_AND_NOTIFY: Final = (
    f"{_PUT}, (SELECT count(pg_notify('forebay', q)) "
    "FROM unnest(string_to_array(CAST({} AS text), ',')) AS q) AS notified"
)
"""A notification a queue: all names of a batch may be too long for one."""

_COMMIT: Final = (
    "SELECT coalesce(CAST(c.known AS text), '') || '/' || coalesce(c.flaw, '') FROM forebay.commit_offset("
    "in_log => CAST({} AS text), in_reader => CAST({} AS text), in_number => CAST(CAST({} AS text) AS bigint), "
    "in_entry => CAST(CAST({} AS text) AS bigint), in_epoch => CAST(nullif(CAST({} AS text), '') AS bigint)) AS c"
)

_KNOWN: Final = (
    "enqueue_in takes a Connection or Cursor of sqlite3 or psycopg, a Connection or Session of SQLAlchemy, or a "
    "connection of Django; aenqueue_in an AsyncConnection or AsyncCursor of psycopg, a Connection of asyncpg, or an "
    "AsyncConnection or AsyncSession of SQLAlchemy"
)
_CONFLICT: Final = re.compile(r"forebay: key E?'(.*)' of queue (\S+) belongs to job (\d+)")
_LOG: Final = re.compile(r"forebay: (\S+) is a log")
_MISSING: Final = ("3F000", "42883", "42P01")
_MAX_BIGINT: Final = 2**63 - 1

Statement = Callable[[str], tuple[str, tuple[str, ...]]]
"""The statement and its parameters, for a driver that marks them with `%s` or with `$1`."""


class _Put(Struct, omit_defaults=True):
    """A draft as `forebay.enqueue_draft` takes it. Instants and durations are microseconds."""

    kind: str
    body: msgspec.Raw
    queue: str
    priority: int = 0
    run_at: Instant | None = None
    delay: Duration = 0
    deadline: Instant | None = None
    expires_at: Instant | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None
    max_attempts: int | None = None
    meta: dict[str, str] | None = None
    digest: str | None = None
    cost: int = 1


def check_connection(url: str, connection: object) -> None:
    """Only databases have transactions that others can share, and only those to the store itself."""
    scheme = url.partition(":")[0]
    if scheme not in (*POSTGRES, "sqlite"):
        raise Unsupported(
            f"a {scheme}: store",
            "enqueueing in your transaction",
            "use a postgresql:// or sqlite:/// store, or enqueue after the commit, with a key if that may happen twice",
        )
    file = _sqlite_connection(connection)
    if scheme == "sqlite" and file is None:
        remedy = "give a connection of sqlite3, SQLAlchemy or Django to it, and call enqueue_in(…)"
        raise Invalid("connection", f"{_class_of(connection)} does not lead to the file of the {url} store", remedy)
    if file is not None:
        cursor = file.cursor()
        cursor.row_factory = None
        (name,) = cursor.execute("SELECT CAST(file AS blob) FROM pragma_database_list WHERE name = 'main'").fetchone()
        if not is_file_of(url, os.fsdecode(name)):
            raise Invalid("connection", f"it leads to the SQLite file {os.fsdecode(name)!r}", "connect to the store")


def call_after_commit(connection: object, enqueue: Callable[[], object]) -> int:
    """Enqueue after the commit into a store that no connection leads to; 0, since the job has no id until then."""
    hook = next((_AFTER_COMMIT[name] for name in _names(connection) if name in _AFTER_COMMIT), None)
    if hook is None:
        raise Unsupported(
            "a JobTester",
            f"an enqueue in a transaction of {_class_of(connection)}, which does not report its commit",
            "use enqueue_with(session, …) with SQLAlchemy, or test this with a worker on a real store",
        )
    hook(connection, enqueue)
    return 0


def is_file_of(url: str, path: str) -> bool:
    """Whether this is the file of a `sqlite:` store."""
    parts = urlsplit(url)
    named = unquote(parts.path).removeprefix("/")
    return parts.scheme == "sqlite" and bool(path) and os.path.realpath(named) == os.path.realpath(path)


def database_of(url: str) -> tuple[list[tuple[str, str]], str] | None:
    """Servers and name of a Postgres database, also in a URL of SQLAlchemy; None for another store."""
    parts = urlsplit(url)
    if parts.scheme.partition("+")[0] not in POSTGRES:
        return None
    given = parse_qs(parts.query)
    hosts = ",".join(given.get("host", [unquote(parts.netloc.rpartition("@")[2])])).split(",")
    ports = ",".join(given.get("port", [""])).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [_server(*server) for server in zip(hosts, ports, strict=False)], unquote(parts.path.lstrip("/"))


def _server(host: str, port: str) -> tuple[str, str]:
    if host.startswith("/"):
        return host, port or "5432"
    parts = urlsplit(f"//{host}")
    return (parts.hostname or "").replace("127.0.0.1", "localhost"), port or str(parts.port or 5432)


def enqueue_in(connection: object, drafts: Sequence[Draft], *, notify: bool = True) -> list[int]:
    """The ids of the jobs, in order; with a key that is known, the first job's.

    On SQLite capacities are enforced: `QueueFull` at once, whatever the queue does for others.
    """
    if (file := _sqlite_connection(connection)) is not None:
        return _enqueue_on_sqlite(file, drafts)
    execute = _found(connection, _SYNC, _ASYNC, "it is asynchronous", "await aenqueue_in(…)")
    statement = _statement(drafts, notify)
    with _translating_errors(drafts):
        return list(execute(connection, statement)) if drafts else []


async def aenqueue_in(connection: object, drafts: Sequence[Draft], *, notify: bool = True) -> list[int]:
    """The same for drivers that are awaited."""
    execute = _found(connection, _ASYNC, _SYNC | _SQLITE, "it is not asynchronous", "call enqueue_in(…)")
    statement = _statement(drafts, notify)
    with _translating_errors(drafts):
        return list(await execute(connection, statement)) if drafts else []


def commit_in(
    connection: object, log: str, group: str, partition: int, offset: int, *, epoch: int | None = None
) -> int:
    """As `commit` of the store does, in this transaction; until it ends the partition keeps its owner."""
    if (file := _sqlite_connection(connection)) is not None:
        return _commit_on_sqlite(file, log, group, partition, offset, epoch)
    execute = _found(connection, _SYNC, _ASYNC, "it is asynchronous", "await acommit_in(…)")
    statement = _commit(log, group, partition, offset, epoch)
    with _translating_errors([]):
        (answer,) = execute(connection, statement)
    return _committed(answer, log, group, partition, offset, epoch)


async def acommit_in(
    connection: object, log: str, group: str, partition: int, offset: int, *, epoch: int | None = None
) -> int:
    """The same for drivers that are awaited."""
    execute = _found(connection, _ASYNC, _SYNC | _SQLITE, "it is not asynchronous", "call commit_in(…)")
    statement = _commit(log, group, partition, offset, epoch)
    with _translating_errors([]):
        (answer,) = await execute(connection, statement)
    return _committed(answer, log, group, partition, offset, epoch)


def _enqueue_on_sqlite(connection: "sqlite3.Connection", drafts: Sequence[Draft]) -> list[int]:
    from forebay.store.sqlite.caller_transaction import enqueue_on

    check_batch("enqueue_in", len(drafts))
    check_bytes("enqueue_in", [draft.body for draft in drafts])
    return enqueue_on(connection, drafts, SystemClock().now()) if drafts else []


def _commit_on_sqlite(
    connection: "sqlite3.Connection", log: str, group: str, partition: int, offset: int, epoch: int | None
) -> int:
    from forebay.store.sqlite.caller_transaction import commit_on

    check_epoch(epoch)
    names = check_name("log", log), check_name("group", group)
    return commit_on(connection, *names, partition, offset, epoch, SystemClock().now())


def _commit(log: str, group: str, partition: int, offset: int, epoch: int | None) -> Statement:
    check_epoch(epoch)
    for name, number in (("partition", partition), ("offset", offset)):
        check_between(name, number, -1, _MAX_BIGINT)
    numbers = (str(partition), str(offset), "" if epoch is None else str(epoch))
    return _styled(_COMMIT, check_name("log", log), check_name("group", group), *numbers)


def _committed(answer: str, log: str, group: str, partition: int, offset: int, epoch: int | None) -> int:
    known, _, flaw = answer.partition("/")
    return committed(int(known or -1), flaw or None, log, group, partition, offset, epoch)


def _statement(drafts: Sequence[Draft], notify: bool) -> Statement:
    check_batch("enqueue_in", len(drafts))
    check_bytes("enqueue_in", [draft.body for draft in drafts])
    puts = msgspec.json.encode([_put(draft) for draft in drafts]).decode()
    queues = ",".join(sorted({draft.queue for draft in drafts}))
    return _styled(_PUT_AND_NOTIFY, puts, queues) if notify else _styled(_PUT, puts)


def _styled(text: str, *parameters: str) -> Statement:
    def styled(mark: str) -> tuple[str, tuple[str, ...]]:
        marks = [mark if mark == "%s" else f"${number}" for number in range(1, len(parameters) + 1)]
        return text.format(*marks), parameters

    return styled


def _put(draft: Draft) -> _Put:
    return _Put(
        draft.kind,
        msgspec.Raw(draft.body),
        draft.queue,
        draft.priority,
        draft.run_at,
        draft.delay,
        draft.deadline,
        draft.expires_at,
        draft.key,
        draft.tenant,
        draft.subject,
        draft.max_attempts,
        draft.meta,
        None if draft.key is None else digest(draft.kind, draft.body).hex(),
        draft.cost,
    )


def _psycopg(connection: Any, statement: Statement) -> list[int]:
    with connection.cursor(row_factory=_tuples) as cursor:
        return [job_id for (job_id,) in cursor.execute(*statement(_mark(cursor))).fetchall()]


def _psycopg_cursor(cursor: Any, statement: Statement) -> list[int]:
    """On a cursor beside it: what the caller has fetched so far stays as it is."""
    return _psycopg(cursor.connection, statement)


def _sqlalchemy(connection: Any, statement: Statement) -> list[int]:
    rows = connection.exec_driver_sql(*statement(_dialect_mark(connection)))
    return [job_id for (job_id,) in rows]


def _sqlalchemy_session(session: Any, statement: Statement) -> list[int]:
    return _sqlalchemy(session.connection(), statement)


def _django(connection: Any, statement: Statement) -> list[int]:
    if connection.vendor != "postgresql":
        raise _elsewhere(connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(*statement("%s"))
        return [job_id for (job_id,) in cursor.fetchall()]


def _django_cursor(cursor: Any, statement: Statement) -> list[int]:
    return _django(cursor.db, statement)


async def _async_psycopg(connection: Any, statement: Statement) -> list[int]:
    async with connection.cursor(row_factory=_tuples) as cursor:
        await cursor.execute(*statement(_mark(cursor)))
        return [job_id for (job_id,) in await cursor.fetchall()]


async def _async_psycopg_cursor(cursor: Any, statement: Statement) -> list[int]:
    return await _async_psycopg(cursor.connection, statement)


async def _asyncpg(connection: Any, statement: Statement) -> list[int]:
    text, parameters = statement("$")
    return [record[0] for record in await connection.fetch(text, *parameters)]


async def _async_sqlalchemy(connection: Any, statement: Statement) -> list[int]:
    rows = await connection.exec_driver_sql(*statement(_dialect_mark(connection)))
    return [job_id for (job_id,) in rows]


async def _async_sqlalchemy_session(session: Any, statement: Statement) -> list[int]:
    return await _async_sqlalchemy(await session.connection(), statement)


def _file_below_sqlalchemy(connection: Any) -> "sqlite3.Connection | None":
    below = connection.connection.driver_connection if connection.dialect.name == "sqlite" else None
    return below if ("sqlite3", "Connection") in _names(below) else None


def _file_below_django(connection: Any) -> "sqlite3.Connection | None":
    if connection.vendor != "sqlite":
        return None
    connection.validate_no_broken_transaction()
    connection.ensure_connection()
    return connection.connection  # type: ignore[no-any-return] # the proxy is not typed


_SQLITE: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("sqlite3", "Connection"): lambda connection: connection,
    ("sqlite3", "Cursor"): lambda cursor: cursor.connection,
    ("sqlalchemy", "Connection"): _file_below_sqlalchemy,
    ("sqlalchemy", "Session"): lambda session: _file_below_sqlalchemy(session.connection()),
    ("sqlalchemy", "scoped_session"): lambda session: _file_below_sqlalchemy(session.connection()),
    ("django", "ConnectionProxy"): _file_below_django,
    ("django", "BaseDatabaseWrapper"): _file_below_django,
    ("django", "CursorWrapper"): lambda cursor: _file_below_django(cursor.db),
}
_SYNC: Final[dict[tuple[str, str], Callable[[Any, Statement], list[int]]]] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "Cursor"): _psycopg_cursor,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy_session,
    ("sqlalchemy", "scoped_session"): _sqlalchemy_session,
    ("django", "ConnectionProxy"): _django,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "CursorWrapper"): _django_cursor,
}
_ASYNC: Final[dict[tuple[str, str], Callable[[Any, Statement], Awaitable[list[int]]]]] = {
    ("psycopg", "AsyncConnection"): _async_psycopg,
    ("psycopg", "AsyncCursor"): _async_psycopg_cursor,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("sqlalchemy", "AsyncConnection"): _async_sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _async_sqlalchemy_session,
    ("sqlalchemy", "async_scoped_session"): _async_sqlalchemy_session,
}
_AFTER_COMMIT: Final[dict[tuple[str, str], Callable[[Any, Callable[[], object]], object]]] = {
    ("django", "ConnectionProxy"): lambda connection, call: connection.on_commit(call),
    ("django", "BaseDatabaseWrapper"): lambda connection, call: connection.on_commit(call),
    ("django", "CursorWrapper"): lambda cursor, call: cursor.db.on_commit(call),
}


def _found(connection: object, table: dict[Any, Any], others: dict[Any, Any], reason: str, remedy: str) -> Any:
    """The adapter for this connection's class, or for one that it derives from."""
    names = _names(connection)
    for name in names:
        if name in table:
            return table[name]
    shown = _class_of(connection)
    if any(name in others for name in names):
        raise Invalid("connection", f"{shown}: {reason}", remedy)
    raise Invalid("connection", f"{shown} is not a connection that is known here", _KNOWN)


def _names(connection: object) -> list[tuple[str, str]]:
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__]


def _class_of(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def _sqlite_connection(connection: object) -> "sqlite3.Connection | None":
    """The connection to a SQLite file that this one is, or is made of."""
    below = next((_SQLITE[name] for name in _names(connection) if name in _SQLITE), None)
    return None if below is None else below(connection)


def _tuples(_: object) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Rows as they are, whatever the caller's connection makes of its own."""
    return tuple


def _mark(cursor: object) -> str:
    """psycopg's raw cursors number their parameters as the server does."""
    return "$" if any(kind.__name__ == "RawCursorMixin" for kind in type(cursor).__mro__) else "%s"


def _dialect_mark(connection: Any) -> str:
    if connection.dialect.name != "postgresql":
        raise _elsewhere(connection.dialect.name)
    return "$" if connection.dialect.paramstyle == "numeric_dollar" else "%s"


def _elsewhere(database: str) -> Invalid:
    return Invalid("connection", f"it leads to a {database} database", "connect to the database of the store")


@contextmanager
def _translating_errors(drafts: Sequence[Draft]) -> Iterator[None]:
    try:
        yield
    except ForebayError:
        raise
    except Exception as error:
        translated = _translated(error, drafts)
        if translated is None:
            raise
        raise translated from error


def _translated(error: Exception, drafts: Sequence[Draft]) -> ForebayError | None:
    if conflict := _CONFLICT.search(str(error)):
        literal, queue, job_id = conflict.groups()
        keys = [draft.key for draft in drafts if draft.key is not None and draft.queue == queue]
        return KeyConflict(queue, keys[0] if len(keys) == 1 else literal, int(job_id))
    if log := _LOG.search(str(error)):
        return WrongQueueKind(log[1], is_log=True)
    causes = (error, getattr(error, "orig", None), error.__cause__)
    if any(getattr(cause, "sqlstate", None) in _MISSING for cause in causes) and "forebay" in str(error):
        return Invalid(
            "connection",
            "its database has no schema forebay, or an old one",
            "connect to the database of the store; `forebay migrate` brings its schema up to date",
        )
    return None
