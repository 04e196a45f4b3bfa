"""Group commit for producers over HTTP: what arrives while one call of `enqueue` runs goes into the next.

A call is all or nothing, so one bad draft would fail its neighbours; it does not: a call that is refused is taken
apart until every draft has its own answer. A store that fails is everybody's answer, because nobody knows what it did.

A queue whose capacity says `Block` makes its producers wait; they do that on threads of their own, one draft a call, so
that they hold up nobody else. Which queues those are is looked up every second or two.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from forebay.core.errors import Closed, ForebayError, QueueFull, StoreFailed
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, BATCH_MOST
from forebay.core.policy import Block, Bounded
from forebay.serve.problems import Problem
from forebay.store.protocol import Receipt, Store

if TYPE_CHECKING:
    from forebay.serve.ground import Ground

Answer: TypeAlias = Receipt | Exception
Waiting: TypeAlias = tuple[Draft, "asyncio.Future[Receipt]"]

GATHER: Final = 0.004
"""Seconds from one call to the next while callers come together: few large calls cost less than many small ones."""

_SPECS_EVERY: Final = 1.5
_PATIENT_THREADS: Final = 16


class Enqueuer:
    """Of one event loop. `put` returns when the job is durable, or raises its own error."""

    def __init__(self, ground: "Ground") -> None:
        self._ground = ground
        self._waiting: deque[Waiting] = deque()
        self._carrying: asyncio.Task[None] | None = None
        self._patient = ThreadPoolExecutor(_PATIENT_THREADS, "forebay-patient")
        self._blocking: frozenset[str] = frozenset()
        self._looked_at = float("-inf")
        self.blocked = 0

    @property
    def waiting(self) -> int:
        """Drafts for the next call."""
        return len(self._waiting)

    async def put(self, draft: Draft) -> Receipt:
        if draft.queue in self._blocking:
            return await self._put_patiently(draft)
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, answer))
        self._send()
        return await answer

    async def look(self) -> None:
        """Which queues make their producers wait, and which brokers lead to one of them."""
        self._looked_at = monotonic()
        specs = await self._ground.call(self._ground.store.specs)
        blocking = {
            spec.name
            for spec in specs
            if isinstance(spec.capacity, Bounded) and isinstance(spec.capacity.when_full, Block)
        }
        routes = [(spec.name, route.queue) for spec in specs if spec.fan_out for route in spec.fan_out.routes]
        self._blocking = frozenset(blocking | {name for name, queue in routes if queue in blocking})

    def close(self) -> None:
        self._patient.shutdown(wait=False, cancel_futures=True)

    async def _put_patiently(self, draft: Draft) -> Receipt:
        if self.blocked >= self._ground.settings.calls_most:
            raise Problem(503, "busy", "Too many wait for room already", "try again later", {"Retry-After": "5"})
        self.blocked += 1
        try:
            enqueue = self._ground.store.enqueue
            return (await asyncio.get_running_loop().run_in_executor(self._patient, enqueue, [draft]))[0]
        finally:
            self.blocked -= 1

    def _send(self) -> None:
        if self._waiting and self._carrying is None:
            self._carrying = asyncio.create_task(self._carry_all())

    async def _carry_all(self) -> None:
        """One call after the other while anybody waits. Who comes alone waits for nobody."""
        clock = asyncio.get_running_loop().time
        try:
            while batch := self._next_batch():
                began = clock()
                await self._carry(batch)
                if len(batch) > 1 and (rest := began + GATHER - clock()) > 0:
                    await asyncio.sleep(rest)
        finally:
            self._carrying = None

    def _next_batch(self) -> list[Waiting]:
        """Bounded as a store's verb is; who left before its turn is left out."""
        batch: list[Waiting] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MOST:
            draft, answer = self._waiting[0]
            if batch and size + len(draft.body) > BATCH_BYTES:
                break
            self._waiting.popleft()
            if not answer.done():
                batch.append((draft, answer))
                size += len(draft.body)
        return batch

    async def _carry(self, batch: list[Waiting]) -> None:
        answers: list[Answer]
        try:
            if monotonic() - self._looked_at > _SPECS_EVERY:
                await self.look()
            answers = await self._ground.call(enqueue_each, self._ground.store, [draft for draft, _ in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def enqueue_each(store: Store, drafts: list[Draft]) -> list[Answer]:
    """An answer a draft, in few calls: refusals cost calls, and a full queue costs one more, not one a draft."""
    if not drafts:
        return []
    try:
        return list(store.enqueue(drafts))
    except (StoreFailed, Closed) as error:
        return [error] * len(drafts)
    except QueueFull as full:
        if len(drafts) == 1:
            return [full]
        return _without_the_full(store, drafts, full)
    except ForebayError as error:
        if len(drafts) == 1:
            return [error]
        half = len(drafts) // 2
        return enqueue_each(store, drafts[:half]) + enqueue_each(store, drafts[half:])


def _without_the_full(store: Store, drafts: list[Draft], full: QueueFull) -> list[Answer]:
    """The others first; then as many of the full queue as there was room for, and those behind them are refused.

    A draft that repeats a key needs no room, so one with a key is asked for by itself.
    """
    room = max(0, full.limit - full.depth)
    tried: list[int] = []
    refused: list[int] = []
    for place, draft in enumerate(drafts):
        if draft.queue != full.queue:
            tried.append(place)
        elif draft.key is None and room > 0:
            room -= 1
            tried.append(place)
        else:
            refused.append(place)
    if len(tried) == len(drafts):
        half = len(drafts) // 2
        return enqueue_each(store, drafts[:half]) + enqueue_each(store, drafts[half:])
    answers: dict[int, Answer] = dict(zip(tried, enqueue_each(store, [drafts[place] for place in tried]), strict=True))
    for place in refused:
        keyed = drafts[place].key is not None
        answers[place] = enqueue_each(store, [drafts[place]])[0] if keyed else _alone(full)
    return [answers[place] for place in range(len(drafts))]


def _alone(full: QueueFull) -> QueueFull:
    """The refusal of one draft, out of the refusal of many."""
    return QueueFull(full.queue, full.limit, full.limit, 1, full.retry_after)
