"""Enqueue for coroutines: those of an event loop that call at the same time share one call of the store.

A loop has at most one call under way for each queue, in a thread; drafts that arrive meanwhile go with the next one. So
a thousand coroutines need one thread and one commit, not a thousand. What the store refuses as a whole is repeated
draft by draft, so that each error reaches the coroutine that caused it; a refusal has stored nothing. A queue that was
full once gets a call for each draft from then on, since a call may have to wait for room.

A coroutine that is cancelled while its draft waits takes it along. During the call it is too late: the job may be
stored, whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from forebay.core.errors import Closed, ForebayError, QueueFull, StoreFailed
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, MAX_BATCH
from forebay.store.protocol import Receipt

MAX_WAITING: Final = 10 * MAX_BATCH
"""Drafts of a queue that wait in a loop; further coroutines wait until there is room."""

_MAX_FULL: Final = 1_000

_Waiting = tuple[Draft, "asyncio.Future[Receipt]"]


class _Arrivals:
    """Drafts for one queue that wait in one loop, and the task that enqueues them."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def take(self) -> list[_Waiting]:
        """The next drafts whose coroutines still wait, as many as one call may have."""
        taken: list[_Waiting] = []
        weight = 0
        while self.waiting and len(taken) < MAX_BATCH:
            draft, future = self.waiting[0]
            if not future.done():
                weight += len(draft.body)
                if taken and weight > BATCH_BYTES:
                    break
                taken.append((draft, future))
            self.waiting.popleft()
        self.room.set()
        return taken


class AsyncEnqueue:
    """`enqueue` is the store's, and blocks. One object serves any number of loops."""

    def __init__(self, enqueue: Callable[[Sequence[Draft]], list[Receipt]]) -> None:
        self._enqueue = enqueue
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Arrivals]] = WeakKeyDictionary()
        self._full: set[str] = set()
        self._guard = Lock()

    async def put(self, draft: Draft) -> Receipt:
        """The receipt of the draft, once it is stored."""
        loop = asyncio.get_running_loop()
        with self._guard:
            queues = self._loops.setdefault(loop, {})
        arrivals = queues.get(draft.queue)
        while arrivals is not None and len(arrivals.waiting) >= MAX_WAITING:
            arrivals.room.clear()
            await arrivals.room.wait()
            arrivals = queues.get(draft.queue)
        if arrivals is None:
            arrivals = queues[draft.queue] = _Arrivals()
            arrivals.task = loop.create_task(self._serve(draft.queue, queues, arrivals))
        future: asyncio.Future[Receipt] = loop.create_future()
        arrivals.waiting.append((draft, future))
        return await future

    async def _serve(self, queue: str, queues: dict[str, _Arrivals], arrivals: _Arrivals) -> None:
        """Enqueue what waits until nothing does."""
        taken: list[_Waiting] = []
        try:
            while taken := arrivals.take():
                if queue in self._full:
                    await asyncio.gather(*[self._store([each]) for each in taken])
                else:
                    await self._store(taken)
        finally:
            # The loop may end first: no coroutine is left to wait for ever.
            del queues[queue]
            arrivals.room.set()
            for _, future in (*taken, *arrivals.waiting):
                future.cancel()

    async def _store(self, taken: list[_Waiting]) -> None:
        """One call of the store; the drafts of a call that was refused are enqueued one by one."""
        drafts = [draft for draft, _ in taken]
        try:
            receipts = await asyncio.get_running_loop().run_in_executor(None, self._enqueue, drafts)
        except Exception as error:
            if isinstance(error, QueueFull) and len(self._full) < _MAX_FULL:
                self._full.add(error.queue)
            whole = not isinstance(error, ForebayError) or isinstance(error, StoreFailed | Closed)
            if len(taken) > 1 and not whole:
                await asyncio.gather(*[self._store([each]) for each in taken])
                return
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), receipt in zip(taken, receipts, strict=True):
                if not future.done():
                    future.set_result(receipt)
