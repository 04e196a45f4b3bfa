"""The context of a running handler: its job and lease, its progress, its result, and its transaction."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from forebay.core.errors import Invalid, LeaseLost, Unsupported
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, Progress
from forebay.core.lease import Fence, Lease
from forebay.core.limits import MAX_NOTE
from forebay.core.outcome import Ack
from forebay.store.protocol import Store, Transacting

T = TypeVar("T")


class JobState(dict[type, Any]):
    """Values of one run, by their types: `ctx.state[Tenant]` is a `Tenant`, set by `ctx.state[Tenant] = tenant`."""

    def __getitem__(self, kind: type[T]) -> T:
        value: T = super().__getitem__(kind)
        return value

    def __setitem__(self, kind: type[T], value: T) -> None:
        if not isinstance(value, kind):
            what = f"{type(value).__name__} is not a {kind.__name__}"
            raise Invalid("ctx.state", what, "set a value under its own type, or a base class of it")
        super().__setitem__(kind, value)


class Transaction:
    """`ctx.transaction()`: the handler's writes and the acknowledgement of the job commit together, or not at all.

    Use `with` in a plain handler and `async with` in an async one; both return a psycopg connection. Only one block of
    a job can commit; blocks cannot be nested, and a block that was rolled back may be tried again. If the lease is lost
    the block raises `LeaseLost` and nothing of it is kept.
    """

    def __init__(self, lease: Lease, store: Store | None, on_lost: Callable[[], None], keep_for: Duration = 0) -> None:
        self._lease = lease
        self._keep_for = keep_for
        self._store = store
        self._on_lost = on_lost
        self._block: AbstractContextManager[Any] | None = None
        self._awaited: AbstractAsyncContextManager[Any] | None = None
        self.result: bytes | None = None
        self.committed = False
        self._lost = False

    def __enter__(self) -> Any:
        store = self._checked()
        if _on_a_loop():
            raise Invalid("ctx.transaction", "this handler is async", "use `async with`")
        block = store.transaction(self._lease, self._verdict)
        connection = block.__enter__()
        self._block = block
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        assert self._block is not None
        block, self._block = self._block, None
        with self._noting_loss():
            swallowed = block.__exit__(kind, error, at)
        self.committed = kind is None
        return swallowed

    async def __aenter__(self) -> Any:
        block = self._checked().atransaction(self._lease, self._verdict)
        connection = await block.__aenter__()
        self._awaited = block
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        assert self._awaited is not None
        block, self._awaited = self._awaited, None
        with self._noting_loss():
            swallowed = await block.__aexit__(kind, error, at)
        self.committed = kind is None
        return swallowed

    def settle_in(self, connection: object) -> Callable[[], None]:
        """See `Context.settle_in`."""
        with self._noting_loss():
            after_commit = self._checked().settle_in(connection, self._lease, self._verdict())

        def committed() -> None:
            self.committed = True
            after_commit()

        return committed

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        try:
            yield
        except LeaseLost:
            self._lost = True
            self._on_lost()
            raise

    def _verdict(self) -> Ack:
        return Ack(self.result, self._keep_for)

    def _checked(self) -> Transacting:
        """The store, or an error if no block may begin now."""
        store: object = self._store
        if not isinstance(store, Transacting):
            name = "this context" if self._store is None else self._store.capabilities.name
            remedy = "use a postgresql:// store, or make the effect idempotent with ctx.fence"
            raise Unsupported(name, "ctx.transaction()", remedy)
        if self._lost:
            raise LeaseLost(*self._lease.fence)
        if self.committed:
            raise Invalid("ctx.transaction", "it has already committed", "do everything in one block")
        if self._block is not None or self._awaited is not None:
            remedy = "use connection.transaction() for a savepoint"
            raise Invalid("ctx.transaction", "it is already open", remedy)
        return store


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class ResultRules(Protocol):
    """The part of a handler that its context uses. `keep_for` 0: results are not kept."""

    @property
    def keep_for(self) -> Duration: ...

    def encode_result(self, value: object) -> bytes | None: ...

    def redact(self, text: str, body: bytes) -> str: ...


class Context:
    """Given to a handler that has a parameter annotated `Context` (or named `ctx`).

    fence      (job id, delivery), which only increases: store it with your effect and refuse a smaller one
    deadline   the instant at which the handler is stopped, in microseconds; None without a timeout
    stop       why the run is to end early: `timeout`, `cancel`, `drain` or `lost`; None: it is not
    lost       the lease is lost: another worker may run the job at the same time
    reported   the last progress
    """

    __slots__ = ("_rules", "_state", "_store", "_transaction", "deadline", "lease", "lost", "reported", "stop")

    def __init__(
        self,
        lease: Lease,
        deadline: Instant | None = None,
        store: Callable[[], Store] | None = None,
        rules: ResultRules | None = None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._transaction: Transaction | None = None
        self._state: JobState | None = None
        self.lease = lease
        self.deadline = deadline
        self.reported: Progress | None = None
        self.stop: str | None = None
        self.lost = False

    @property
    def job(self) -> Job:
        return self.lease.job

    @property
    def state(self) -> JobState:
        """Values of this run, by type, which middleware and handler share; a retry begins without them."""
        if self._state is None:
            self._state = JobState()
        return self._state

    @property
    def attempt(self) -> int:
        return self.lease.job.attempt

    @property
    def fence(self) -> Fence:
        return self.lease.fence

    @property
    def cancelled(self) -> bool:
        """The run is to end early. A plain handler checks this in long loops: a thread cannot be stopped."""
        return self.stop is not None

    @property
    def settled(self) -> bool:
        """The job was settled by its transaction."""
        return self._transaction is not None and self._transaction.committed

    def transaction(self) -> Transaction:
        """`with ctx.transaction() as connection:` what it writes and the acknowledgement of the job commit together.

        A psycopg connection; Postgres only. In an async handler use `async with`. See docs/guides/transactions.md.
        """
        if self._transaction is None:
            store = None if self._store is None else self._store()
            keep_for = 0 if self._rules is None else self._rules.keep_for
            self._transaction = Transaction(self.lease, store, self._set_lost, keep_for)
        return self._transaction

    def settle_in(self, connection: object) -> Callable[[], None]:
        """Acknowledge the job in your own transaction, as the last thing before its commit; Postgres only.

        `connection` is a psycopg connection to the store's database, inside a transaction. Call what is returned after
        the commit; without that call the job is settled by its outcome as any other, and the fence decides.
        """
        return self.transaction().settle_in(connection)

    def set_result(self, value: object) -> None:
        """Set the result inside `ctx.transaction()`: the return value of the handler comes after the commit."""
        if self._rules is None or not self._rules.keep_for:
            raise Invalid("ctx.set_result", "this handler keeps no results", "use @fb.job(keep_result=True)")
        self.transaction().result = self._rules.encode_result(value)

    def _set_lost(self) -> None:
        self.lost = True

    def progress(self, portion: float, note: str = "") -> None:
        """Report progress from 0 to 1 with a short note; it is visible within about a second.

        Never blocks: only the last of the values set within a second is written.
        """
        shown = note if self._rules is None or not note else self._rules.redact(note[:MAX_NOTE], self.job.body)
        self.reported = Progress(min(1.0, max(0.0, portion)), shown)
