"""Calls of the store for coroutines: those of an event loop that call at the same time share one call.

A loop has at most one call under way for each group (drafts: each queue), in a thread; items that arrive meanwhile go
with the next one. So a thousand coroutines need one thread and one commit, not a thousand. What the store refuses as a
whole is repeated item by item, so that each error reaches the coroutine that caused it; a refusal has changed nothing.
Where one of several cells fails, its items fail, and the others have their answers.
A queue that was full once gets a call for each draft from then on, since a call may have to wait for room.

A coroutine that is cancelled while its item waits takes it along. During the call it is too late: the job may be
stored, whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from forebay.core.errors import Closed, ForebayError, PartlyDone, QueueFull, StoreFailed
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, MAX_BATCH
from forebay.store.protocol import Receipt

MAX_WAITING: Final = 10 * MAX_BATCH
"""Items of a group that wait in a loop; further coroutines wait until there is room."""

_MAX_FULL: Final = 1_000

A = TypeVar("A")
B = TypeVar("B")


class _Arrivals(Generic[A, B]):
    """Items of one group that wait in one loop, and the task that makes their calls."""

    def __init__(self, weight: Callable[[A], int]) -> None:
        self._weight = weight
        self.waiting: deque[tuple[A, asyncio.Future[B]]] = deque()
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def take(self) -> "list[tuple[A, asyncio.Future[B]]]":
        """The next items whose coroutines still wait, as many as one call may have."""
        taken: list[tuple[A, asyncio.Future[B]]] = []
        weight = 0
        while self.waiting and len(taken) < MAX_BATCH:
            item, future = self.waiting[0]
            if not future.done():
                weight += self._weight(item)
                if taken and weight > BATCH_BYTES:
                    break
                taken.append((item, future))
            self.waiting.popleft()
        self.room.set()
        return taken


class AsyncCalls(Generic[A, B]):
    """`call` blocks, and returns an answer for each item. One object serves any number of loops.

    `weight`: bytes of an item, of which a call has a bounded number.
    """

    def __init__(
        self,
        call: Callable[[Sequence[A]], Sequence[B]],
        group: Callable[[A], str] = lambda _: "",
        weight: Callable[[A], int] = lambda _: 0,
    ) -> None:
        self._call = call
        self._group = group
        self._weight = weight
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Arrivals[A, B]]] = WeakKeyDictionary()
        self._full: set[str] = set()
        self._guard = Lock()

    async def put(self, item: A) -> B:
        """The answer for the item."""
        loop, name = asyncio.get_running_loop(), self._group(item)
        with self._guard:
            groups = self._loops.setdefault(loop, {})
        arrivals = groups.get(name)
        while arrivals is not None and len(arrivals.waiting) >= MAX_WAITING:
            arrivals.room.clear()
            await arrivals.room.wait()
            arrivals = groups.get(name)
        if arrivals is None:
            arrivals = groups[name] = _Arrivals(self._weight)
            arrivals.task = loop.create_task(self._serve(name, groups, arrivals))
        future: asyncio.Future[B] = loop.create_future()
        arrivals.waiting.append((item, future))
        return await future

    async def _serve(self, name: str, groups: dict[str, _Arrivals[A, B]], arrivals: _Arrivals[A, B]) -> None:
        """Make calls for what waits until nothing does."""
        taken: list[tuple[A, asyncio.Future[B]]] = []
        try:
            while taken := arrivals.take():
                if name in self._full:
                    await asyncio.gather(*[self._share([each]) for each in taken])
                else:
                    await self._share(taken)
        finally:
            # The loop may end first: no coroutine is left to wait for ever.
            del groups[name]
            arrivals.room.set()
            for _, future in (*taken, *arrivals.waiting):
                future.cancel()

    async def _share(self, taken: "list[tuple[A, asyncio.Future[B]]]") -> None:
        """One call; the items of a call that was refused get one each."""
        items = [item for item, _ in taken]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(None, self._call, items)
        except PartlyDone as partly:
            await self._share_partly(taken, partly)
        except Exception as error:
            if isinstance(error, QueueFull) and len(self._full) < _MAX_FULL:
                self._full.add(error.queue)
            whole = not isinstance(error, ForebayError) or isinstance(error, StoreFailed | Closed)
            if len(taken) > 1 and not whole:
                await asyncio.gather(*[self._share([each]) for each in taken])
                return
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _share_partly(self, taken: "list[tuple[A, asyncio.Future[B]]]", partly: PartlyDone) -> None:
        """Some cells have done their part. What the others refused gets a call each; a failure is final."""
        refused = []
        for (item, future), answer, cause in zip(taken, partly.answers, partly.causes, strict=True):
            if cause is not None and not isinstance(cause, StoreFailed):
                refused.append((item, future))
            elif not future.done():
                future.set_result(cast(B, answer)) if cause is None else future.set_exception(cause)
        await asyncio.gather(*[self._share([each]) for each in refused])


class AsyncEnqueue(AsyncCalls[Draft, Receipt]):
    """`enqueue` of a store, for coroutines."""

    def __init__(self, enqueue: Callable[[Sequence[Draft]], list[Receipt]]) -> None:
        super().__init__(enqueue, lambda draft: draft.queue, lambda draft: len(draft.body))
