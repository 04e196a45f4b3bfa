"""The calls of `Forebay` for coroutines: `aget`, `acancel`, `ajobs`, `aenqueue_many`, `await_for`, `async with`.

The store blocks, so calls are made in threads, but not in a thread each: coroutines that call at the same time share
one (`forebay.async_calls`). A coroutine may be cancelled at any time; what its call has changed by then stays changed.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any, Final, Protocol, TypeVar

from msgspec.structs import replace

from forebay.async_calls import AsyncCalls, AsyncEnqueue
from forebay.blobs import PayloadCodec
from forebay.core.instant import from_seconds
from forebay.core.job import Draft, Job
from forebay.core.limits import MAX_BATCH
from forebay.store.protocol import CancelAnswer, Page, Query, Receipt, Store

_MAX_THREADS: Final = 64
_WAIT_SLICE: Final = 1.0
"""So many coroutines wait at once; with more of them each waits for so many seconds, then it is the next one's turn."""

T = TypeVar("T")


class BlockingClient(Protocol):
    """What coroutines call of an application, in threads."""

    @property
    def store(self) -> Store: ...
    @property
    def codec(self) -> PayloadCodec: ...
    def enqueue_many(self, drafts: Iterable[Draft], progress: Callable[[int], object] | None = None) -> int: ...
    def get_all(self, ids: Sequence[int]) -> list[Job | None]: ...
    def cancel_all(self, ids: Sequence[int]) -> list[CancelAnswer]: ...
    def wait_for(self, job_id: int, timeout: float) -> Job | None: ...


class AsyncCaller:
    """Makes the blocking calls of one application for coroutines of any number of loops."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self.enqueue = AsyncEnqueue(self._enqueue).put
        self.get = AsyncCalls(client.get_all).put
        self.cancel = AsyncCalls(client.cancel_all).put
        self._threads: ThreadPoolExecutor | None = None
        self._guard = Lock()

    def close(self) -> None:
        with self._guard:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def wait_for(self, job_id: int, timeout: float) -> Job | None:  # noqa: ASYNC109
        loop, left = asyncio.get_running_loop(), from_seconds("timeout", timeout) / 1_000_000
        deadline = loop.time() + left
        while True:
            job = await self._call(self._client.wait_for, job_id, min(left, _WAIT_SLICE))
            if job is None or job.state.terminal or left <= _WAIT_SLICE:
                return job
            # The store's clock may run ahead of the loop's: that of a test is virtual.
            left = max(0.0, min(left - _WAIT_SLICE, deadline - loop.time()))

    async def jobs(self, query: Query) -> AsyncIterator[Job]:
        after: int | None = 0
        while after is not None:
            page = await self._call(self._page, query, after)
            for job in page.jobs:
                yield job
            after = page.next

    def _enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """On the store as it is then: this may open it, and it may have been replaced."""
        return self._client.store.enqueue(drafts)

    def _page(self, query: Query, after: int) -> Page:
        page = self._client.store.browse(query, after, MAX_BATCH)
        return replace(page, jobs=[self._client.codec.open_job(job) for job in page.jobs])

    async def enqueue_many(
        self, drafts: Iterable[Draft] | AsyncIterable[Draft], progress: Callable[[int], object] | None
    ) -> int:
        """In one thread for the whole stream. When cancelled it reads no further draft, and waits for the rest."""
        loop, cancelled = asyncio.get_running_loop(), Event()

        def read() -> Iterator[Draft]:
            for draft in drafts if isinstance(drafts, Iterable) else _read(drafts, loop):
                if cancelled.is_set():
                    return
                yield draft

        def report(count: int) -> None:
            loop.call_soon_threadsafe(progress or (lambda _: None), count)

        call = asyncio.ensure_future(self._call(self._client.enqueue_many, read(), report))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([call])
            raise

    def _call(self, call: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_MAX_THREADS, "forebay-wait")
            return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def _read(drafts: AsyncIterable[Draft], loop: asyncio.AbstractEventLoop) -> Iterator[Draft]:
    """The drafts of an async iterator, read by another thread in parts."""
    iterator = aiter(drafts)

    async def part() -> list[Draft]:
        found = []
        async for draft in iterator:
            found.append(draft)
            if len(found) == MAX_BATCH:
                break
        return found

    while found := asyncio.run_coroutine_threadsafe(part(), loop).result():
        yield from found
