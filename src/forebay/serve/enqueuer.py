"""Group commit for producers over HTTP: drafts that arrive during one call of `enqueue` share the next.

A call of the store is all or nothing, so one bad draft would fail the whole batch. A refused batch is therefore split
until every draft has its own result. When the store fails, every draft of the batch fails with its error, because it is
unknown what was written. When one of several cells fails, that is so for its own drafts only.

A queue with the capacity policy `Block` makes its producers wait. Its drafts are enqueued one per call on threads of
their own, so that they do not delay other queues. The set of such queues is refreshed every `_SPECS_SECONDS`.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from forebay.core.errors import Closed, ForebayError, PartlyDone, QueueFull, StoreFailed
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, MAX_BATCH
from forebay.core.policy import Block, Bounded
from forebay.serve.problems import Problem
from forebay.store.protocol import Receipt, Store

if TYPE_CHECKING:
    from forebay.serve.context import ServerContext

IntakeResult: TypeAlias = Receipt | Exception
PendingDraft: TypeAlias = tuple[Draft, "asyncio.Future[Receipt]"]

GATHER_SECONDS: Final = 0.004
"""Minimum time between two calls under load: few large calls cost less than many small ones."""

_SPECS_SECONDS: Final = 1.5
_BLOCKING_THREADS: Final = 16


class Enqueuer:
    """Belongs to one event loop. `put` returns when the job is durable, or raises the draft's own error."""

    def __init__(self, context: "ServerContext") -> None:
        self._context = context
        self._waiting: deque[PendingDraft] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._blocking_threads = ThreadPoolExecutor(_BLOCKING_THREADS, "forebay-blocking")
        self._blocking: frozenset[str] = frozenset()
        self._specs_read_at = float("-inf")
        self.blocked = 0

    @property
    def waiting(self) -> int:
        """Drafts that wait for the next call."""
        return len(self._waiting)

    async def put(self, draft: Draft) -> Receipt:
        if draft.queue in self._blocking:
            return await self._put_blocking(draft)
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, answer))
        self._send()
        return await answer

    async def refresh_blocking(self) -> None:
        """Find the queues that make their producers wait, and the brokers with a route to one of them."""
        self._specs_read_at = monotonic()
        specs = await self._context.call(self._context.store.specs)
        blocking = {
            spec.name
            for spec in specs
            if isinstance(spec.capacity, Bounded) and isinstance(spec.capacity.when_full, Block)
        }
        routes = [(spec.name, route.queue) for spec in specs if spec.fan_out for route in spec.fan_out.routes]
        self._blocking = frozenset(blocking | {name for name, queue in routes if queue in blocking})

    def close(self) -> None:
        self._blocking_threads.shutdown(wait=False, cancel_futures=True)

    async def _put_blocking(self, draft: Draft) -> Receipt:
        if self.blocked >= self._context.settings.max_calls:
            detail = f"{self.blocked} requests already wait for room in a full queue: try again later"
            raise Problem(503, "busy", "Too many blocked producers", detail, {"Retry-After": "5"})
        self.blocked += 1
        try:
            enqueue = self._context.store.enqueue
            return (await asyncio.get_running_loop().run_in_executor(self._blocking_threads, enqueue, [draft]))[0]
        finally:
            self.blocked -= 1

    def _send(self) -> None:
        if self._waiting and self._sending is None:
            self._sending = asyncio.create_task(self._send_batches())

    async def _send_batches(self) -> None:
        """Call after call while drafts wait. A single draft is sent without delay."""
        clock = asyncio.get_running_loop().time
        try:
            while batch := self._next_batch():
                began = clock()
                await self._send_batch(batch)
                if len(batch) > 1 and (rest := began + GATHER_SECONDS - clock()) > 0:
                    await asyncio.sleep(rest)
        finally:
            self._sending = None

    def _next_batch(self) -> list[PendingDraft]:
        """The next drafts, within the bounds of one store call; drafts of disconnected callers are dropped."""
        batch: list[PendingDraft] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH:
            draft, answer = self._waiting[0]
            if batch and size + len(draft.body) > BATCH_BYTES:
                break
            self._waiting.popleft()
            if not answer.done():
                batch.append((draft, answer))
                size += len(draft.body)
        return batch

    async def _send_batch(self, batch: list[PendingDraft]) -> None:
        answers: list[IntakeResult]
        try:
            if monotonic() - self._specs_read_at > _SPECS_SECONDS:
                await self.refresh_blocking()
            answers = await self._context.call(enqueue_each, self._context.store, [draft for draft, _ in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def enqueue_each(store: Store, drafts: list[Draft]) -> list[IntakeResult]:
    """One result per draft, in few calls: a bad draft costs further calls, a full queue one more in all."""
    if not drafts:
        return []
    try:
        return list(store.enqueue(drafts))
    except PartlyDone as partly:
        return _answer_partly(store, drafts, partly)
    except (StoreFailed, Closed) as error:
        return [error] * len(drafts)
    except QueueFull as full:
        if len(drafts) == 1:
            return [full]
        return _enqueue_around_full(store, drafts, full)
    except ForebayError as error:
        if len(drafts) == 1:
            return [error]
        half = len(drafts) // 2
        return enqueue_each(store, drafts[:half]) + enqueue_each(store, drafts[half:])


def _answer_partly(store: Store, drafts: list[Draft], partly: PartlyDone) -> list[IntakeResult]:
    """Receipts of cells that have accepted their part; what the others refused is enqueued again by itself."""
    answers = [
        answer if isinstance(answer, Receipt) else cast(Exception, cause)
        for answer, cause in zip(partly.answers, partly.causes, strict=True)
    ]
    refused = [place for place, answer in enumerate(answers) if not isinstance(answer, Receipt | StoreFailed)]
    for place, answer in zip(refused, enqueue_each(store, [drafts[place] for place in refused]), strict=True):
        answers[place] = answer
    return answers


def _enqueue_around_full(store: Store, drafts: list[Draft], full: QueueFull) -> list[IntakeResult]:
    """Enqueue the drafts of other queues and as many of the full queue as fit; refuse the rest.

    A draft with a known idempotency key needs no room, so each draft with a key is tried by itself.
    """
    room = max(0, full.limit - full.depth)
    tried: list[int] = []
    refused: list[int] = []
    for index, draft in enumerate(drafts):
        if draft.queue != full.queue:
            tried.append(index)
        elif draft.key is None and room > 0:
            room -= 1
            tried.append(index)
        else:
            refused.append(index)
    if len(tried) == len(drafts):
        half = len(drafts) // 2
        return enqueue_each(store, drafts[:half]) + enqueue_each(store, drafts[half:])
    answers: dict[int, IntakeResult] = dict(
        zip(tried, enqueue_each(store, [drafts[index] for index in tried]), strict=True)
    )
    for index in refused:
        keyed = drafts[index].key is not None
        answers[index] = enqueue_each(store, [drafts[index]])[0] if keyed else _refusal_of_one(full)
    return [answers[index] for index in range(len(drafts))]


def _refusal_of_one(full: QueueFull) -> QueueFull:
    """The refusal of one draft, from the refusal of a batch."""
    return QueueFull(full.queue, full.limit, full.limit, 1, full.retry_after)
