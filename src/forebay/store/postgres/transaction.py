"""A handler's transaction: the writes of the handler and the end of its job commit together, or not at all.

The handler gets a connection of its own, inside a transaction. At the end of the block the job is settled in the same
transaction, by its fence, and the transaction is committed. If the lease is lost by then, `LeaseLost` is raised and
everything is rolled back. A commit whose reply is lost raises `StoreFailed`; if it did happen, the fence refuses
whatever the caller settles next, so the effect is there exactly once.

Sessions are reset and kept for the next handler. A connection object is not: it is closed after its block.
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
from forebay.store.postgres.claims import Claims
from forebay.store.postgres.connect import is_read_only
from forebay.store.postgres.queries import SQL
from forebay.store.postgres.runs import RunningRow
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.postgres.settling import SETTLE, PackGroup, PackSettlement, Settling
from forebay.store.postgres.waiting import ending_of

Plain = psycopg.Connection[tuple[Any, ...]]
Awaited = psycopg.AsyncConnection[tuple[Any, ...]]
T = TypeVar("T")

MAX_TRANSACTIONS: Final = 16
"""Handlers of one process that have a transaction at a time; the others wait."""

_WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
_THREADS: Final = 4
_MAX_LOOKUPS: Final = 5
_NAME: Final = "forebay handler"
_RESET: Final = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; DISCARD TEMP; "
    "SELECT pg_advisory_unlock_all()"
)
"""DISCARD ALL without the plans: to plan our own functions again costs more than all the rest."""

_CLOSED: Final = pq.PGconn.connect_start(b"port=0")
"""A closed session, which a connection object gets after its block."""

_CLOSED.finish()


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
        with self._sessions.slot():
            connection = self._begin()
            ending, settled = False, None
            try:
                with connection.transaction():
                    yield connection
                    ending = True
                    settled = self._settle_on(_Executor(connection), lease, verdict())
            except psycopg.Error as error:
                if not ending:
                    raise
                raise self._session.server.failure(error) from error
            finally:
                self._sessions.end(connection)
        self._committed(lease, settled)

    @asynccontextmanager
    async def atransaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AsyncIterator[Awaited]:
        """The same for a handler on a loop; a thread settles, and runs each statement on the loop."""
        async with self._sessions.aslot():
            connection = await self._abegin()
            ending, settled = False, None
            try:
                async with connection.transaction():
                    yield connection
                    ending = True
                    executor = _LoopExecutor(connection, asyncio.get_running_loop())
                    settled = await self._sessions.in_thread(partial(self._settle_on, executor, lease, verdict()))
            except psycopg.Error as error:
                if not ending:
                    raise
                raise self._session.server.failure(error) from error
            finally:
                self._sessions.end(connection)
        self._committed(lease, settled)

    def settle_in(self, connection: object, lease: Lease, verdict: Verdict) -> Callable[[], None]:
        """Settle in the caller's transaction, which the caller ends; the result is called after the commit."""
        if not isinstance(connection, psycopg.Connection):
            shown = f"{type(connection).__module__}.{type(connection).__qualname__}"
            raise Invalid("connection", f"{shown} is not a psycopg.Connection", "pass one of the store's database")
        return partial(self._committed, lease, self._settle_on(_Executor(connection), lease, verdict))

    def _begin(self) -> Plain:
        while (session := self._sessions.take()) is not None:
            connection: Plain = psycopg.Connection(session)
            try:
                connection.autocommit = True
                connection.prepare_threshold = None
                connection.execute(_RESET)
                if not is_read_only(session):
                    return connection
            except psycopg.OperationalError:
                pass
            self._sessions.end(connection)
        try:
            return psycopg.connect(**self._session.server.options(_NAME))
        except psycopg.OperationalError as error:
            raise self._session.server.failure(error) from None

    async def _abegin(self) -> Awaited:
        while (session := self._sessions.take()) is not None:
            connection: Awaited = psycopg.AsyncConnection(session)
            try:
                await connection.set_autocommit(True)
                connection.prepare_threshold = None
                await connection.execute(_RESET)
                if not is_read_only(session):
                    return connection
            except psycopg.OperationalError:
                pass
            self._sessions.end(connection)
        try:
            return await psycopg.AsyncConnection.connect(**self._session.server.options(_NAME))
        except psycopg.OperationalError as error:
            raise self._session.server.failure(error) from None

    def _settle_on(self, executor: "_Executor", lease: Lease, verdict: Verdict) -> UnitOfWork:
        """Settle the job in its current pack: it moves to another one when its pack is extended without it."""
        _check_open(executor.status)
        for _ in range(_MAX_LOOKUPS):
            rows = executor.execute(SQL.running_jobs, ([lease.job.id],)).fetchall()
            found = [job for row in rows if (job := RunningRow._make(row)).fence == lease.fence]
            if not found:
                break
            unit = self._settled_unit(executor, [[PackSettlement(0, lease, verdict, found[0].ref)]])
            if unit is not None:
                return unit
        raise LeaseLost(*lease.fence)

    def _settled_unit(self, executor: Any, groups: list[PackGroup]) -> UnitOfWork | None:
        ((_, lease, _, _),) = groups[0]
        queue = lease.job.queue
        unit = UnitOfWork(executor, 0, self._session.specs)
        applied = unit.fetch(SETTLE, self._settling.call_of(groups))[0][0]
        if applied is None:
            self._session.specs.reload([queue], unit.fetch)
        unit.has_room.add(queue)
        unit.topics.add(ending_of(lease.job.id))
        if self._session.specs.of(queue).lock_keys:
            unit.has_work.add(queue)
        return unit if applied else None

    def _committed(self, lease: Lease, unit: UnitOfWork | None) -> None:
        """None: the block raised psycopg's `Rollback`."""
        if unit is not None:
            self._claims.remove([lease.fence])
            self._session.waiters.notify(unit.has_work, unit.has_room, unit.topics)


class _Sessions:
    """The sessions of handlers: how many are in use, and those that are kept for the next handler."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()
        self._slots = BoundedSemaphore(MAX_TRANSACTIONS)
        self._guard = Lock()
        self._idle: list[pq.abc.PGconn] = []
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    @contextmanager
    def slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=_WAIT_SECONDS):
            raise self._exhausted()
        try:
            yield
        finally:
            self._slots.release()

    @asynccontextmanager
    async def aslot(self) -> AsyncIterator[None]:
        deadline = monotonic() + _WAIT_SECONDS
        while not self._slots.acquire(blocking=False):
            if monotonic() > deadline:
                raise self._exhausted()
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            self._slots.release()

    def take(self) -> pq.abc.PGconn | None:
        if os.getpid() != self._process:
            raise StoreFailed(self._name, f"it was opened by process {self._process}, before a fork")
        with self._guard:
            if self._closed:
                raise Closed("the store")
            return self._idle.pop() if self._idle else None

    def end(self, connection: Plain | Awaited) -> None:
        """Keep the session if it can write and is in no transaction; the connection object is closed."""
        session, connection.pgconn = connection.pgconn, _CLOSED
        with self._guard:
            usable = session.transaction_status == pq.TransactionStatus.IDLE and not is_read_only(session)
            if usable and not self._closed:
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

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run the work in a thread; a cancellation takes effect when it has ended and the connection is free."""
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

    def _exhausted(self) -> StoreFailed:
        reason = f"all {MAX_TRANSACTIONS} transactions of this process were busy for {_WAIT_SECONDS:g} s"
        return StoreFailed(self._name, reason)


class _Result(NamedTuple):
    """The result of a statement."""

    rowcount: int
    rows: list[tuple[Any, ...]]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None


class _Executor:
    """Runs statements on a handler's connection, independent of its row factory."""

    def __init__(self, connection: Plain) -> None:
        self._connection = connection

    @property
    def status(self) -> int:
        return self._connection.pgconn.transaction_status

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> _Result:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement.encode(), parameters)
            return _Result(cursor.rowcount, cursor.fetchall() if cursor.description else [])


class _LoopExecutor(_Executor):
    """The same for a connection that belongs to the loop of another thread."""

    def __init__(self, connection: Awaited, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited = connection
        self._loop = loop

    @property
    def status(self) -> int:
        return self._awaited.pgconn.transaction_status

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> _Result:
        return asyncio.run_coroutine_threadsafe(self._execute(statement, parameters), self._loop).result(_WAIT_SECONDS)

    async def _execute(self, statement: str, parameters: Sequence[Any]) -> _Result:
        async with psycopg.AsyncCursor(self._awaited, row_factory=tuple_row) as cursor:
            await cursor.execute(statement.encode(), parameters)
            return _Result(cursor.rowcount, await cursor.fetchall() if cursor.description else [])


def _check_open(status: int) -> None:
    """Raise unless the block left its transaction open and not failed."""
    if status == pq.TransactionStatus.IDLE:
        raise Invalid("ctx.transaction", "it was ended inside its block", "leave COMMIT and ROLLBACK to the block")
    if status == pq.TransactionStatus.INERROR:
        remedy = "let the error out, or put `with connection.transaction():` around what may fail"
        raise Invalid("ctx.transaction", "a statement in it failed, and the block continued", remedy)
