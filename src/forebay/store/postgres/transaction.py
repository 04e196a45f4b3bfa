"""A handler's transaction: what the handler does on it and the end of its job commit together, or not at all.

The handler gets a connection of its own, inside a transaction. At the end of the block the job is settled in that same
transaction, by its fence, and then it is committed. Somebody else has the job by now: `LeaseLost`, all is rolled back.
A commit whose reply is lost is `StoreFailed`; whatever the caller writes about the job then is refused by the fence if
the commit had happened, so the effect is there exactly once.

Sessions are kept for the next handler, cleaned; a connection object is not: after its block it is closed for whoever
still has it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from threading import BoundedSemaphore, Lock
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from forebay.core.errors import Closed, Invalid, LeaseLost, StoreFailed
from forebay.core.lease import Lease
from forebay.core.outcome import Verdict
from forebay.store.postgres.claims import PLACES, Claims
from forebay.store.postgres.runs import Place
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.postgres.settling import SETTLE, Group, Settling
from forebay.store.postgres.waiting import ending_of

Plain = psycopg.Connection[tuple[Any, ...]]
Awaited = psycopg.AsyncConnection[tuple[Any, ...]]
T = TypeVar("T")

MAX_TRANSACTIONS: Final = 16
"""Handlers of one process that have a transaction at a time; the others wait."""

_WAIT_SECONDS: Final = 30.0
_LOOK_EVERY: Final = 0.01
_THREADS: Final = 4
_MAX_LOOKS: Final = 5
_OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "prepare_threshold": None,
    "connect_timeout": 10,
    "fallback_application_name": "forebay handler",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_CLEAN: Final = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; DISCARD TEMP; "
    "SELECT pg_advisory_unlock_all()"
)
"""All of DISCARD ALL but the plans: those of our own functions cost more than everything else here."""

_NOWHERE: Final = pq.PGconn.connect_start(b"port=0")
"""A session that never was: what a connection has after its block."""

_NOWHERE.finish()


class Transactions:
    """Transactions that end a job."""

    def __init__(self, session: Session, claims: Claims, settling: Settling) -> None:
        self._session = session
        self._claims = claims
        self._settling = settling
        self._sessions = _Sessions(session.server.name)
        self.close = self._sessions.close

    @contextmanager
    def transaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> Iterator[Plain]:
        """A connection in a transaction whose commit settles the job."""
        with self._sessions.room():
            connection = self._begin()
            ending, settled = False, None
            try:
                with connection.transaction():
                    yield connection
                    ending = True
                    settled = self._settle_on(_Hand(connection), lease, verdict())
            except psycopg.Error as error:
                if not ending:
                    raise
                raise self._session.server.failure(error) from error
            finally:
                self._sessions.end(connection)
        self._heard(lease, settled)

    @asynccontextmanager
    async def atransaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AsyncIterator[Awaited]:
        """The same for a handler on a loop; a thread carries the settle out, statement by statement on the loop."""
        async with self._sessions.aroom():
            connection = await self._abegin()
            ending, settled = False, None
            try:
                async with connection.transaction():
                    yield connection
                    ending = True
                    hand = _FarHand(connection, asyncio.get_running_loop())
                    settled = await self._sessions.carried_out(partial(self._settle_on, hand, lease, verdict()))
            except psycopg.Error as error:
                if not ending:
                    raise
                raise self._session.server.failure(error) from error
            finally:
                self._sessions.end(connection)
        self._heard(lease, settled)

    def settle_in(self, connection: object, lease: Lease, verdict: Verdict) -> Callable[[], None]:
        """In the transaction of a connection that the caller brings and ends."""
        if not isinstance(connection, psycopg.Connection):
            shown = f"{type(connection).__module__}.{type(connection).__qualname__}"
            raise Invalid("connection", f"{shown} is not a psycopg.Connection", "bring one to the store's database")
        return partial(self._heard, lease, self._settle_on(_Hand(connection), lease, verdict))

    def _begin(self) -> Plain:
        while (session := self._sessions.take()) is not None:
            connection: Plain = psycopg.Connection(session)
            try:
                connection.autocommit = True
                connection.prepare_threshold = None
                connection.execute(_CLEAN)
                return connection
            except psycopg.OperationalError:
                self._sessions.end(connection)
        try:
            return psycopg.connect(self._session.server.url, **_OPTIONS)
        except psycopg.OperationalError as error:
            raise self._session.server.failure(error) from None

    async def _abegin(self) -> Awaited:
        while (session := self._sessions.take()) is not None:
            connection: Awaited = psycopg.AsyncConnection(session)
            try:
                await connection.set_autocommit(True)
                connection.prepare_threshold = None
                await connection.execute(_CLEAN)
                return connection
            except psycopg.OperationalError:
                self._sessions.end(connection)
        try:
            return await psycopg.AsyncConnection.connect(self._session.server.url, **_OPTIONS)
        except psycopg.OperationalError as error:
            raise self._session.server.failure(error) from None

    def _settle_on(self, hand: "_Hand", lease: Lease, verdict: Verdict) -> UnitOfWork:
        """Settle the job where it is by now: it moves to a row of its own when its run is renewed without it."""
        _check_open(hand.status)
        for _ in range(_MAX_LOOKS):
            rows = hand.execute(PLACES, ([lease.job.id],)).fetchall()
            found = [place for row in rows if (place := Place._make(row)).fence == lease.fence]
            if not found:
                break
            unit = self._settled_unit(hand, [[(0, lease, verdict, found[0].ref)]])
            if unit is not None:
                return unit
        raise LeaseLost(*lease.fence)

    def _settled_unit(self, hand: Any, groups: list[Group]) -> UnitOfWork | None:
        ((_, lease, _, _),) = groups[0]
        queue = lease.job.queue
        unit = UnitOfWork(hand, 0, self._session.specs)
        applied = unit.fetch(SETTLE, self._settling.call_of(groups))[0][0]
        if applied is None:
            self._session.specs.reload([queue], unit.fetch)
        unit.eased.add(queue)
        unit.topics.add(ending_of(lease.job.id))
        if self._session.specs.of(queue).keys:
            unit.news.add(queue)
        return unit if applied else None

    def _heard(self, lease: Lease, unit: UnitOfWork | None) -> None:
        """After the commit. None: the block was rolled back by psycopg's own word for that."""
        if unit is not None:
            self._claims.let_go([lease.fence])
            self._session.waiters.notify(unit.news, unit.eased, unit.topics)


class _Sessions:
    """The sessions of handlers: so many at a time, and those that wait for the next one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()
        self._room = BoundedSemaphore(MAX_TRANSACTIONS)
        self._guard = Lock()
        self._idle: list[pq.abc.PGconn] = []
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    @contextmanager
    def room(self) -> Iterator[None]:
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            raise self._crowded()
        try:
            yield
        finally:
            self._room.release()

    @asynccontextmanager
    async def aroom(self) -> AsyncIterator[None]:
        give_up_at = monotonic() + _WAIT_SECONDS
        while not self._room.acquire(blocking=False):
            if monotonic() > give_up_at:
                raise self._crowded()
            await asyncio.sleep(_LOOK_EVERY)
        try:
            yield
        finally:
            self._room.release()

    def take(self) -> pq.abc.PGconn | None:
        if os.getpid() != self._process:
            raise StoreFailed(self._name, f"it was opened by process {self._process}, before a fork")
        with self._guard:
            if self._closed:
                raise Closed("the store")
            return self._idle.pop() if self._idle else None

    def end(self, connection: Plain | Awaited) -> None:
        """Keep the session if it is whole. Whoever still has the connection finds it closed."""
        session, connection.pgconn = connection.pgconn, _NOWHERE
        with self._guard:
            if not self._closed and session.transaction_status == pq.TransactionStatus.IDLE:
                self._idle.append(session)
                return
        session.finish()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if os.getpid() == self._process:
            for session in idle:
                session.finish()

    async def carried_out(self, work: Callable[[], T]) -> T:
        """In a thread, to its end: who is cancelled meanwhile leaves when nothing uses the connection any more."""
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, "forebay-transaction")
            threads = self._threads
        future = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            raise

    def _crowded(self) -> StoreFailed:
        reason = f"all {MAX_TRANSACTIONS} transactions of this process were busy for {_WAIT_SECONDS:g} s"
        return StoreFailed(self._name, reason)


class _Answer(NamedTuple):
    """What a statement gave."""

    rowcount: int
    rows: list[tuple[Any, ...]]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None


class _Hand:
    """A handler's connection in our hands: rows as they are, whatever the handler made of its cursors."""

    def __init__(self, connection: Plain) -> None:
        self._connection = connection

    @property
    def status(self) -> int:
        return self._connection.pgconn.transaction_status

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> _Answer:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement.encode(), parameters)
            return _Answer(cursor.rowcount, cursor.fetchall() if cursor.description else [])


class _FarHand(_Hand):
    """The same from another thread than that of the connection's loop."""

    def __init__(self, connection: Awaited, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited = connection
        self._loop = loop

    @property
    def status(self) -> int:
        return self._awaited.pgconn.transaction_status

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> _Answer:
        return asyncio.run_coroutine_threadsafe(self._execute(statement, parameters), self._loop).result(_WAIT_SECONDS)

    async def _execute(self, statement: str, parameters: Sequence[Any]) -> _Answer:
        async with psycopg.AsyncCursor(self._awaited, row_factory=tuple_row) as cursor:
            await cursor.execute(statement.encode(), parameters)
            return _Answer(cursor.rowcount, await cursor.fetchall() if cursor.description else [])


def _check_open(status: int) -> None:
    """The block has left its transaction open and sound."""
    if status == pq.TransactionStatus.IDLE:
        raise Invalid("ctx.transaction", "it was ended inside its block", "leave COMMIT and ROLLBACK to the block")
    if status == pq.TransactionStatus.INERROR:
        remedy = "let the error out, or put `with connection.transaction():` around what may fail"
        raise Invalid("ctx.transaction", "a statement in it failed, and the block went on", remedy)
