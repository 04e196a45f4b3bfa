"""Connections to the server: few, shared by all threads, replaced when they break; and Postgres's errors in our words.

A call is one statement in autocommit, so it works through a pooler in transaction mode; no session state is kept but
prepared statements, and those only where no pooler is in between. A connection that turns out to be dead, or to lead to
a server that is read-only by now, is replaced and the call is made again once, if repeating it is safe; all else that
goes wrong is `StoreFailed`. A deadlock or a serialisation failure changed nothing and is tried again, a bounded number
of times. A connection that is lost during a commit leaves open whether it happened: the server is asked, as soon as it
answers again, what became of it.

A statement that is not answered in time is such a loss: the server is asked to cancel it, and the connection is closed.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

import psycopg
from psycopg import capabilities, pq
from psycopg._preparing import Prepare, PrepareManager
from psycopg._queries import PostgresQuery
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.types import TypeInfo

from forebay.core.errors import StoreFailed
from forebay.store.connection_pool import CALL_SECONDS, REMEDY, ConnectionPool, RetryDeadline, split_call_timeout

_log = logging.getLogger("forebay.store")

Row = tuple[Any, ...]
Rows = list[Row]

_CONNECT_SECONDS: Final = 10
_CANCEL_SECONDS: Final = 1.0
_LONG_CALLS: Final = 10
"""Calls that read or write much may take so many times as long."""

_MAX_CLASHES: Final = 20
_MARK: Final = (
    "INSERT INTO forebay.call SELECT %s, 0, forebay.clock() WHERE pg_current_xact_id_if_assigned() IS NOT NULL "
    "RETURNING pg_current_xact_id()::text"
)
_MARKED: Final = "SELECT 1 FROM forebay.call WHERE token = %s"
_STATUS: Final = "SELECT pg_xact_status(%s::text::xid8)"
_CLASHES: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_ELSEWHERE: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
"""What another connection may not meet."""

_PREPARED_ONLY: Final = 1 << 30
"""Executions after which the driver prepares a statement that is not `Prepared`."""

_CALLS: Final = re.compile(rb"forebay\.\w+\(")
_JSON_OID: Final = 114
_KEEPALIVE: Final[dict[str, Any]] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

T = TypeVar("T")


class NoAnswer(psycopg.OperationalError):
    """A statement was not answered in time; its connection is closed."""


class Connection(psycopg.Connection[Row]):
    """A connection on which no statement is waited for longer than `patience` seconds without a byte."""

    patience: float = CALL_SECONDS

    def wait(self, gen: PQGen[T], *given: Any, **named: Any) -> T:
        return super().wait(_within(gen, self), *given, **named)

    def give_up(self) -> NoAnswer:
        """Whoever calls next must not read an answer that comes late."""
        if capabilities.has_cancel_safe():
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
        self.close()
        return NoAnswer(f"no answer within {self.patience:g} s")


def _within(gen: PQGen[T], connection: Connection) -> PQGen[T]:
    """The same steps, until nothing has come for too long. The driver resumes it several times a second."""
    until = monotonic() + connection.patience
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                until = monotonic() + connection.patience
            elif monotonic() >= until:
                raise connection.give_up()
            wanted = gen.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer


class Prepared(str):
    """A statement that a connection parses and plans once. For calls of functions: they have no plan to choose."""

    __slots__ = ()


class Json(bytes):
    """JSON text on its way into a statement."""


def array_of(values: Iterable[int | bool | str | None]) -> str:
    """A list of numbers or texts as the text of an array: much cheaper than the driver's way for long lists."""
    return "{" + ",".join(["NULL" if value is None else _element(value) for value in values]) + "}"


def _element(value: int | bool | str) -> str:
    if not isinstance(value, str):
        return str(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _JsonDumper(Dumper):
    format = pq.Format.BINARY
    oid = _JSON_OID

    def dump(self, obj: Json) -> Buffer:
        return obj


class _JsonLoader(Loader):
    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.types.add(TypeInfo("json", _JSON_OID, 199))
    adapters.register_dumper(Json, _JsonDumper)
    adapters.register_loader("json", _JsonLoader)
    return adapters


class PooledConnection:
    """A connection with a cursor that is used again and again: making one costs more than a short query."""

    __slots__ = ("connection", "cursor")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()

    @property
    def idle(self) -> bool:
        """Whether it works, and is in no transaction."""
        return self.connection.pgconn.transaction_status == pq.TransactionStatus.IDLE


class Server(ConnectionPool[PooledConnection]):
    """One database, as one process uses it."""

    def __init__(self, url: str) -> None:
        super().__init__(masked(url))
        self.url, self.patience = split_call_timeout(url)
        self._context = _adapters()

    @property
    def long(self) -> float:
        """Seconds for a statement that reads or writes much."""
        return _LONG_CALLS * self.patience

    def connect(self) -> Connection:
        """A new connection in autocommit; closing it is up to the caller."""
        try:
            connection = Connection.connect(
                self.url,
                autocommit=True,
                prepare_threshold=None,
                context=_Context(self._context),
                connect_timeout=min(_CONNECT_SECONDS, ceil(self.patience)),
                fallback_application_name="forebay",
                **_KEEPALIVE,
            )
            connection.patience = self.patience
            return connection
        except psycopg.OperationalError as error:
            raise self.failure(error) from None

    def query(
        self,
        statement: str,
        parameters: Sequence[Any] = (),
        *,
        repeatable: bool = True,
        certain: bool = False,
        within: float | None = None,
    ) -> Rows:
        """One statement, one round trip, one commit; made again when it clashed with another.

        `certain`: once it may have happened it is repeated, for a while, until the server has answered.
        `within`: seconds in which it must be answered, if not in those of every call.
        """
        for _ in range(_MAX_CLASHES):
            with suppress(*_CLASHES):
                return self._attempt(partial(_fetch, statement, parameters), repeatable, certain, within)
        raise self._clashed()

    def transact(self, work: Callable[[Connection], T], *, marked: bool = True, within: float | None = None) -> T:
        """Several statements in one transaction; made again when it clashed with another, or found a dead connection.

        A connection that is lost while the commit is under way leaves the outcome open: the server is asked for it, and
        the mark that the transaction left is the answer. Its id alone would not do: after a crash the ids that were not
        written yet are given to others. What may simply be done again needs no mark.
        """
        for _ in range(_MAX_CLASHES):
            progress: _Progress[T] = _Progress(uuid4() if marked else None)
            try:
                with suppress(*_CLASHES):
                    return self._attempt(partial(_transact, work, progress), progress, within=within)
            except StoreFailed:
                if not progress.answers:
                    raise
                if self._has_committed(progress):
                    return progress.answers[0]
        raise self._clashed()

    def failure(self, error: psycopg.Error) -> StoreFailed:
        text = without_password(str(error).strip(), self.url).splitlines()
        return StoreFailed(self.name, text[0] if text else type(error).__name__, REMEDY)

    def _clashed(self) -> StoreFailed:
        return StoreFailed(self.name, f"{_MAX_CLASHES} transactions in a row clashed with others", REMEDY)

    def _has_committed(self, progress: "_Progress[Any]") -> bool:
        """What became of a transaction whose connection was lost. One without an id has written nothing."""
        deadline = RetryDeadline()
        while progress.xid is not None:
            try:
                if self._has_ended(progress.xid):
                    return bool(self.query(_MARKED, (progress.token,)))
                if deadline.expired:
                    raise StoreFailed(self.name, "a commit is under way for too long", REMEDY)
            except StoreFailed:
                if deadline.expired:
                    raise
            deadline.pause()
        return False

    def _has_ended(self, xid: str) -> bool:
        """Whether no transaction with this id is under way; one from before a crash may be in the future now."""
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
        """The action on a connection that works; an idle one may have died meanwhile, so a second one is tried."""
        deadline: RetryDeadline | None = None
        last = False
        while True:
            line: PooledConnection | None = None
            try:
                line = self._take(fresh=last)
                line.connection.patience = self.patience if within is None else within
                return action(line)
            except _CLASHES:
                raise
            except StoreFailed:
                if deadline is None or deadline.expired:
                    raise
            except psycopg.Error as error:
                if isinstance(error, NoAnswer):
                    _log.warning("%s: %s; the connection is dropped", self.name, error)
                safe = repeatable if isinstance(repeatable, bool) else not repeatable.answers
                unknown = not isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
                deadline = deadline or (RetryDeadline() if certain and unknown else None)
                if (last if deadline is None else deadline.expired) or not safe or not isinstance(error, _ELSEWHERE):
                    raise self.failure(error) from error
            finally:
                if line is not None:
                    self._give_back(line)
            last = True
            if deadline is not None:
                deadline.pause()

    def _open(self) -> PooledConnection:
        connection = self.connect()
        try:
            _allow_prepared(connection)
        except BaseException:
            connection.close()
            raise
        return PooledConnection(connection)

    def _close_connection(self, connection: PooledConnection) -> None:
        connection.connection.close()

    def _is_usable(self, connection: PooledConnection) -> bool:
        return connection.idle


class _Context:
    """What psycopg asks for adapters."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None


class _Progress(Generic[T]):
    """How far a transaction has come: it has an answer once nothing but the commit is left."""

    def __init__(self, token: UUID | None) -> None:
        self.token = token
        self.xid: str | None = None
        self.answers: list[T] = []


def _allow_prepared(connection: Connection) -> None:
    """Prepare statements where the session is the server's own.

    A pooler gives its clients process ids that it makes up. Behind it the next statement may meet another session,
    which does not know what was prepared.
    """
    ((backend,),) = connection.execute("SELECT pg_backend_pid()")
    if backend == connection.info.backend_pid:
        connection._prepared = _Statements()
        connection.prepare_threshold = _PREPARED_ONLY


class _Statements(PrepareManager):
    """Prepared statements are named by the functions that they call, so that the wire can be read.

    No name is used twice: the driver forgets a statement that failed when it was first executed, the server does not.
    """

    def get(self, query: PostgresQuery, prepare: bool | None = None) -> tuple[Prepare, bytes]:
        answer, name = super().get(query, prepare)
        if answer is Prepare.SHOULD:
            name = b"".join(_CALLS.findall(query.query)) + name
        return answer, name


def _transact(work: Callable[[Connection], T], progress: _Progress[T], line: PooledConnection) -> T:
    connection = line.connection
    connection.execute("BEGIN")
    try:
        answer = work(connection)
        if progress.token is not None:
            progress.xid = next((xid for (xid,) in connection.execute(_MARK, (progress.token,))), None)
        progress.answers.append(answer)
        connection.execute("COMMIT")
    except BaseException:
        if not connection.closed and not line.idle:
            connection.rollback()
        raise
    return answer


def _fetch(statement: str, parameters: Sequence[Any], line: PooledConnection) -> Rows:
    cursor = line.cursor
    cursor.execute(statement, parameters, prepare=isinstance(statement, Prepared))
    return cursor.fetchall() if cursor.description else []


def masked(url: str) -> str:
    """The URL for people: without its password."""
    parts = urlsplit(url)
    login, _, places = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if user else ''}{places}{parts.path}"


def without_password(text: str, url: str) -> str:
    """The driver quotes parts of a URL that it does not understand, the password among them."""
    for secret in _passwords(url):
        text = text.replace(secret, "***")
    return text


def _passwords(url: str) -> list[str]:
    _, _, rest = url.partition("://")
    userinfo, found, _ = rest.rpartition("@")
    _, has_one, password = userinfo.partition(":")
    return [each for each in (password, unquote(password)) if each] if found and has_one else []
