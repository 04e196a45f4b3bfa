"""`ctx.transaction()`: what a handler does in the block and the end of its job commit together, or not at all.

The store does the work, if it can; here are the rules of use. A job has one such block that commits: it cannot be
nested, and after it the job is done. A block that was rolled back may be tried again. Nothing of a block is left when
the lease is lost: `LeaseLost`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from forebay.core.errors import Invalid, LeaseLost, Unsupported
from forebay.core.instant import Span
from forebay.core.lease import Lease
from forebay.core.outcome import Ack
from forebay.store.protocol import Store, Transacting


class Transaction:
    """`with` it in a plain handler, `async with` it in one on a loop; either gives a connection of psycopg."""

    def __init__(self, lease: Lease, store: Store | None, lose: Callable[[], None], keep_for: Span = 0) -> None:
        self._lease = lease
        self._keep_for = keep_for
        self._store = store
        self._lose = lose
        self._block: AbstractContextManager[Any] | None = None
        self._awaited: AbstractAsyncContextManager[Any] | None = None
        self.result: bytes | None = None
        self.committed = False
        self._lost = False

    def __enter__(self) -> Any:
        store = self._checked()
        if _on_a_loop():
            raise Invalid("ctx.transaction", "this handler is asynchronous", "use `async with`")
        block = store.transaction(self._lease, self._verdict)
        connection = block.__enter__()
        self._block = block
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        assert self._block is not None
        block, self._block = self._block, None
        try:
            swallowed = block.__exit__(kind, error, at)
        except LeaseLost:
            self._lost = True
            self._lose()
            raise
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
        try:
            swallowed = await block.__aexit__(kind, error, at)
        except LeaseLost:
            self._lost = True
            self._lose()
            raise
        self.committed = kind is None
        return swallowed

    def _verdict(self) -> Ack:
        return Ack(self.result, self._keep_for)

    def _checked(self) -> Transacting:
        """The store, if a block may begin."""
        store: object = self._store
        if not isinstance(store, Transacting):
            name = "this context" if self._store is None else self._store.capabilities.name
            remedy = "use a postgresql:// store, or make the effect idempotent with ctx.fence"
            raise Unsupported(name, "ctx.transaction()", remedy)
        if self._lost:
            raise LeaseLost(*self._lease.fence)
        if self.committed:
            raise Invalid("ctx.transaction", "it has committed, and the job is done", "do everything in one block")
        if self._block is not None or self._awaited is not None:
            remedy = "use connection.transaction() for a part that may fail on its own"
            raise Invalid("ctx.transaction", "it is open already", remedy)
        return store


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
