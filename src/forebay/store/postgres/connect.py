"""Connections to the server: a small pool for all threads, and the translation of Postgres's errors.

A call is one statement in autocommit, so it works through a pooler in transaction mode. Prepared statements are the
only session state, and are used only without a pooler. A connection that is dead, or whose server has become read-only,
is replaced, and the call is repeated once if that is safe; any other failure is `StoreFailed`. A deadlock or a
serialisation failure changed nothing and is retried, a bounded number of times. When a connection is lost during a
commit, the outcome is unknown: it is read from the server as soon as that answers again.

A statement that is not answered in time is cancelled, and its connection is closed, as if it had been lost.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from math import ceil
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote
from uuid import UUID, uuid4

import psycopg
from psycopg import capabilities, pq
from psycopg._preparing import Prepare, PrepareManager
from psycopg._queries import PostgresQuery
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types import TypeInfo

from forebay.core.errors import Invalid, StoreFailed
from forebay.store.connection_pool import (
    CALL_SECONDS,
    REMEDY,
    ConnectionPool,
    RetryDeadline,
    masked,
    split_call_timeout,
)

_log = logging.getLogger("forebay.store")

Row = tuple[Any, ...]
Rows = list[Row]

_CONNECT_SECONDS: Final = 10
_CANCEL_SECONDS: Final = 1.0
_LONG_CALLS: Final = 10
"""The timeout of calls that read or write much, as a multiple of that of other calls."""

_MAX_CONFLICTS: Final = 20
_MARK: Final = (
    "INSERT INTO forebay.call (token, first_id, at) SELECT %s, 0, forebay.clock() "
    "WHERE pg_current_xact_id_if_assigned() IS NOT NULL "
    "RETURNING pg_current_xact_id()::text"
)
_MARKED: Final = "SELECT 1 FROM forebay.call WHERE token = %s FOR SHARE"
"""The row lock makes it a write: its commit waits until the standby has the mark, too."""

_STATUS: Final = "SELECT pg_xact_status(%s::text::xid8)"
_ENTER_TIMELINE: Final = "SELECT forebay.enter_timeline()"
_CONFLICTS: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
CONNECTION_ERRORS: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
)
"""Errors that another connection may not have."""

_WAIT_FUNCTION: Final = "SyncRepWaitForLSN"
"""The server's function that warns of a commit without its standby; the text of the warning is translated."""

_READ_ONLY: Final = (b"in_hot_standby", b"default_transaction_read_only")
_WRITING: Final = ("read-write", "primary")
_PREPARED_ONLY: Final = 1 << 30
"""Executions after which the driver prepares a statement that is not `Prepared`."""

_CALLS: Final = re.compile(rb"forebay\.\w+\(")
_JSON_OID: Final = 114
KEEPALIVE: Final[dict[str, Any]] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

T = TypeVar("T")


class CallTimedOut(psycopg.OperationalError):
    """A statement was not answered in time; its connection is closed."""


class NotReplicated(psycopg.OperationalError):
    """A commit stopped waiting for the synchronous standby: a fail-over could still undo it."""


class Connection(psycopg.Connection[Row]):
    """A connection whose statements fail after `call_timeout` seconds without a byte.

    A commit that an operator cancels while it waits for a synchronous standby is reported by the server as a success
    with a warning. Here it is a lost connection: the outcome is unknown.
    """

    call_timeout: float = CALL_SECONDS
    replicated: bool = True

    def wait(self, gen: PQGen[T], *given: Any, **named: Any) -> T:
        answer = super().wait(_with_timeout(gen, self), *given, **named)
        if not self.replicated:
            self.close()
            raise NotReplicated("the wait for the synchronous standby was cancelled")
        return answer

    def read_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == _WAIT_FUNCTION:
            self.replicated = False

    def time_out(self) -> CallTimedOut:
        """Cancel the statement and close the connection: the next call must not read a late answer."""
        if capabilities.has_cancel_safe():
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
        self.close()
        return CallTimedOut(f"no answer within {self.call_timeout:g} s")


def _with_timeout(gen: PQGen[T], connection: Connection) -> PQGen[T]:
    """The same steps until the timeout. The driver resumes the generator several times a second."""
    until = monotonic() + connection.call_timeout
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                until = monotonic() + connection.call_timeout
            elif monotonic() >= until:
                raise connection.time_out()
            wanted = gen.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer


class Prepared(str):
    """A statement that a connection parses and plans once. For calls of functions, which have only one plan."""

    __slots__ = ()


class JsonParameter(bytes):
    """JSON text as a parameter of a statement."""


def array_literal(values: Iterable[int | bool | str | None]) -> str:
    """The text of an array of numbers or texts: much cheaper than the driver's own conversion of long lists."""
    return "{" + ",".join(["NULL" if value is None else _element(value) for value in values]) + "}"


def row_literal(values: Iterable[int | bool | str | None]) -> str:
    """The text of a row, which may be an element of an array."""
    return "(" + ",".join(["" if value is None else _element(value) for value in values]) + ")"


def _element(value: int | bool | str) -> str:
    if not isinstance(value, str):
        return str(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _JsonDumper(Dumper):
    format = pq.Format.BINARY
    oid = _JSON_OID

    def dump(self, obj: JsonParameter) -> Buffer:
        return obj


class _JsonLoader(Loader):
    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.types.add(TypeInfo("json", _JSON_OID, 199))
    adapters.register_dumper(JsonParameter, _JsonDumper)
    adapters.register_loader("json", _JsonLoader)
    return adapters


class PooledConnection:
    """A connection with a cursor that is reused: making one costs more than a short query."""

    __slots__ = ("connection", "cursor")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()

    @property
    def idle(self) -> bool:
        """Whether it works, and is in no transaction."""
        return self.connection.pgconn.transaction_status == pq.TransactionStatus.IDLE


class Server(ConnectionPool[PooledConnection]):
    """One database, as one process uses it. `standby`: it can be read, and nothing can be written."""

    def __init__(self, url: str) -> None:
        super().__init__(masked(url))
        self.url, self.call_timeout = split_call_timeout(url)
        self._context = _adapters()
        self._last_host: tuple[str, str] | None = None
        self._timeline = 0
        self.standby = False

    @property
    def long_timeout(self) -> float:
        """Seconds for a statement that reads or writes much."""
        return _LONG_CALLS * self.call_timeout

    def connect(self) -> Connection:
        """A new connection in autocommit, which the caller closes."""
        try:
            connection = Connection.connect(**self.options(), context=_Context(self._context))
        except psycopg.OperationalError as error:
            raise self.failure(error) from None
        connection.call_timeout = self.call_timeout
        connection.add_notice_handler(connection.read_notice)
        self._last_host = (connection.info.host, str(connection.info.port))
        self.standby = connection.pgconn.parameter_status(b"in_hot_standby") == b"on"
        return connection

    def options(self, name: str = "forebay") -> dict[str, Any]:
        """The parameters of every connection to the database. Of several hosts, that which accepts writes is wanted."""
        return {
            **self._hosts(),
            **KEEPALIVE,
            "conninfo": self.url,
            "autocommit": True,
            "prepare_threshold": None,
            "connect_timeout": min(_CONNECT_SECONDS, ceil(self.call_timeout)),
            "fallback_application_name": name,
        }

    @cached_property
    def hosts(self) -> list[tuple[str, str]]:
        """Host and port of each server that the URL names."""
        given = conninfo_to_dict(self.url)
        names = str(given.get("host", "")).split(",")
        ports = str(given.get("port", "")).split(",")
        wanted = given.get("target_session_attrs", _WRITING[0])
        if len(names) > 1 and wanted not in _WRITING:
            reason = f"it names {len(names)} hosts and target_session_attrs={wanted}, which accepts a standby"
            raise Invalid("store URL", reason, "leave that option out: the host that accepts writes is used")
        return list(zip(names, ports * len(names) if len(ports) == 1 else ports, strict=True))

    def _hosts(self) -> dict[str, Any]:
        """Which server is wanted, if the URL names several. That which accepted the last connection is tried first:
        one that is gone may cost the whole timeout of a connection."""
        if len(self.hosts) == 1:
            return {}
        if "hostaddr" in conninfo_to_dict(self.url):
            return {"target_session_attrs": _WRITING[0]}
        first = sorted(self.hosts, key=lambda each: each != self._last_host)
        names, ports = (",".join(column) for column in zip(*first, strict=True))
        return {"host": names, "port": ports, "target_session_attrs": _WRITING[0]}

    def query(
        self,
        statement: str,
        parameters: Sequence[Any] = (),
        *,
        repeatable: bool = True,
        certain: bool = False,
        within: float | None = None,
    ) -> Rows:
        """One statement, one round trip, one commit; retried after a conflict with another transaction.

        `certain`: if its outcome is unknown, it is repeated for a while until the server answers.
        `within`: its timeout in seconds, if not that of every call.
        """
        for _ in range(_MAX_CONFLICTS):
            with suppress(*_CONFLICTS):
                return self._attempt(partial(_fetch, statement, parameters), repeatable, certain, within)
        raise self._conflicted()

    def transact(self, work: Callable[[Connection], T], *, marked: bool = True, within: float | None = None) -> T:
        """Several statements in one transaction; retried after a conflict, or on another connection if one was dead.

        If the connection is lost during the commit, the outcome is unknown, and is decided by whether the mark of the
        transaction exists. Its id is not enough: after a crash, ids that were not written are assigned again. A
        transaction that may be repeated needs no mark.
        """
        for _ in range(_MAX_CONFLICTS):
            progress: _Progress[T] = _Progress(uuid4() if marked else None)
            try:
                with suppress(*_CONFLICTS):
                    return self._attempt(partial(_transact, work, progress), progress, within=within)
            except StoreFailed:
                if not progress.answers:
                    raise
                if self._has_committed(progress):
                    return progress.answers[0]
        raise self._conflicted()

    def failure(self, error: psycopg.Error) -> StoreFailed:
        text = without_password(str(error).strip(), self.url).splitlines()
        return StoreFailed(self.name, text[0] if text else type(error).__name__, REMEDY)

    def _conflicted(self) -> StoreFailed:
        return StoreFailed(self.name, f"{_MAX_CONFLICTS} transactions in a row conflicted with others", REMEDY)

    def _has_committed(self, progress: "_Progress[Any]") -> bool:
        """Whether a transaction was committed whose connection was lost. One without an id has written nothing."""
        deadline = RetryDeadline()
        while progress.xid is not None:
            try:
                if self._has_ended(progress.xid):
                    return bool(self.query(_MARKED, (progress.token,)))
                if deadline.expired:
                    raise StoreFailed(self.name, "a commit has not ended in time", REMEDY)
            except StoreFailed:
                if deadline.expired:
                    raise
            deadline.pause()
        return False

    def _has_ended(self, xid: str) -> bool:
        """Whether no transaction with this id is in progress; after a crash the id may not be assigned yet."""
        try:
            return bool(self.query(_STATUS, (xid,))[0][0] != "in progress")
        except StoreFailed as failed:
            if isinstance(failed.__cause__, psycopg.errors.InvalidParameterValue):
                return True
            raise

    def _attempt(
        self,
        action: Callable[[PooledConnection], T],
        repeatable: "bool | _Progress[Any]",
        certain: bool = False,
        within: float | None = None,
    ) -> T:
        """Run the action on a connection that works; an idle one may be dead, so a second one is tried."""
        deadline: RetryDeadline | None = None
        last = False
        while True:
            pooled: PooledConnection | None = None
            try:
                pooled = self._take(fresh=last)
                pooled.connection.call_timeout = self.call_timeout if within is None else within
                return action(pooled)
            except _CONFLICTS:
                raise
            except StoreFailed:
                if deadline is None or deadline.expired:
                    raise
            except psycopg.Error as error:
                if isinstance(error, CallTimedOut):
                    _log.warning("%s: %s; the connection is dropped", self.name, error)
                safe = repeatable if isinstance(repeatable, bool) else not repeatable.answers
                unknown = not isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
                if pooled is not None and not unknown:
                    pooled.connection.close()
                deadline = deadline or (RetryDeadline() if certain and unknown else None)
                retries_left = not last if deadline is None else not deadline.expired
                if not (safe and retries_left and isinstance(error, CONNECTION_ERRORS)):
                    raise self.failure(error) from error
            finally:
                if pooled is not None:
                    self._give_back(pooled)
            last = True
            if deadline is not None:
                deadline.pause()

    def _open(self) -> PooledConnection:
        connection = self.connect()
        try:
            _allow_prepared(connection)
            if len(self.hosts) > 1:
                self._check_timeline(connection)
        except BaseException:
            connection.close()
            raise
        return PooledConnection(connection)

    def _check_timeline(self, connection: Connection) -> None:
        """Refuse a server that a fail-over has left behind, and which still accepts writes: they would be lost."""
        with suppress(psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
            ((timeline,),) = connection.execute(_ENTER_TIMELINE)
            if timeline is not None and timeline < self._timeline:
                where = f"{connection.info.host}:{connection.info.port}"
                reason = f"{where} is on timeline {timeline}, and a fail-over has led to timeline {self._timeline}"
                raise StoreFailed(self.name, reason, f"stop {where}, and make it a standby of the new primary")
            self._timeline = timeline or self._timeline

    def _close_connection(self, connection: PooledConnection) -> None:
        connection.connection.close()

    def _is_usable(self, connection: PooledConnection) -> bool:
        return connection.idle


class _Context:
    """From which psycopg takes adapters."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None


class _Progress(Generic[T]):
    """The progress of a transaction: it has an answer once only the commit is left."""

    def __init__(self, token: UUID | None) -> None:
        self.token = token
        self.xid: str | None = None
        self.answers: list[T] = []


def _allow_prepared(connection: Connection) -> None:
    """Prepare statements on direct connections only.

    A pooler reports invented process ids to its clients. Behind it the next statement may run in another session, in
    which nothing was prepared.
    """
    ((backend,),) = connection.execute("SELECT pg_backend_pid()")
    if backend == connection.info.backend_pid:
        connection._prepared = _Statements()
        connection.prepare_threshold = _PREPARED_ONLY


class _Statements(PrepareManager):
    """Prepared statements are named after the functions that they call, to be recognised on the server.

    No name is used twice: the driver drops a statement whose first execution failed, the server keeps it.
    """

    def get(self, query: PostgresQuery, prepare: bool | None = None) -> tuple[Prepare, bytes]:
        answer, name = super().get(query, prepare)
        if answer is Prepare.SHOULD:
            name = b"".join(_CALLS.findall(query.query)) + name
        return answer, name


def _transact(work: Callable[[Connection], T], progress: _Progress[T], pooled: PooledConnection) -> T:
    connection = pooled.connection
    connection.execute("BEGIN")
    try:
        answer = work(connection)
        if progress.token is not None:
            progress.xid = next((xid for (xid,) in connection.execute(_MARK, (progress.token,))), None)
        progress.answers.append(answer)
        connection.execute("COMMIT")
    except BaseException:
        if not connection.closed and not pooled.idle:
            connection.rollback()
        raise
    return answer


def _fetch(statement: str, parameters: Sequence[Any], pooled: PooledConnection) -> Rows:
    cursor = pooled.cursor
    cursor.execute(statement, parameters, prepare=isinstance(statement, Prepared))
    return cursor.fetchall() if cursor.description else []


def is_read_only(session: pq.abc.PGconn) -> bool:
    """Whether the server has reported to this session that it is a standby, or read-only."""
    return any(session.parameter_status(name) == b"on" for name in _READ_ONLY)


def without_password(text: str, url: str) -> str:
    """Error messages of the driver quote parts of an invalid URL, the password among them."""
    for secret in _passwords(url):
        text = text.replace(secret, "***")
    return text


def _passwords(url: str) -> list[str]:
    _, _, rest = url.partition("://")
    userinfo, found, _ = rest.rpartition("@")
    _, has_one, password = userinfo.partition(":")
    return [each for each in (password, unquote(password)) if each] if found and has_one else []
