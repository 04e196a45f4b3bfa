"""Long polls: workers that wait for jobs (`ClaimPolls`), and callers that wait for the end of a job (`JobPolls`).

A waiting worker is queued under each queue that it wants and holds nothing but its socket. A few threads wait for all
of them, each for some of the queues (`store.wait`). When one wakes, claims are made for the longest waiting workers of
each of its queues until a claim returns nothing. A new poll on a queue that is known to be empty makes no claim. A
notification may be lost, so each queue is tried once a second anyway.

Polls that time out at nearly the same time are answered ending, at most one percent early: answering thousands of
them one by one costs more than twice as much.

A worker that disconnects is removed from its queues; jobs that were claimed for it are released, uncharged.

A store sends no notification when a job ends, so `JobPolls` reads the watched jobs: soon at first, then less often, one
call per `MAX_BATCH` jobs, and only while a caller waits.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from math import frexp
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Release
from forebay.serve.problems import Problem
from forebay.store.protocol import Want

if TYPE_CHECKING:
    from forebay.serve.context import ServerContext

Gone: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Returns when the caller has disconnected."""

MAX_WAIT_THREADS: Final = 16
"""Waiting threads; further queues share them."""

_WAIT: Final = timedelta(seconds=1)
_EMPTY_PAUSE: Final = 0.02
_FAILED_PAUSE: Final = 0.5
_MAX_CONCURRENT: Final = 8
"""Concurrent claims for one queue, while each of them returns jobs."""

_MAX_CLAIM_SECONDS: Final = 5.0
_MIN_TICK: Final = 0.001
_EARLY_BITS: Final = 7
"""A poll may end early by one part in two to the power of this."""

_FIRST_PAUSE: Final = 0.01
_LAST_PAUSE: Final = 0.25


class WaitingClaim:
    """One waiting worker. `busy`: a claim is being made for it. `left`: it waits for that claim only."""

    __slots__ = ("answer", "busy", "lease_for", "left", "owner", "queues", "wants")

    def __init__(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> None:
        self.wants = wants
        self.queues = [want.queue for want in wants]
        self.owner = owner
        self.lease_for = lease_for
        self.answer: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()
        self.busy = False
        self.left = False


class PollGroup:
    """Some queues, their waiting workers, and the task that waits for them. `claiming`: it makes claims."""

    def __init__(self) -> None:
        self.waiting: dict[str, OrderedDict[WaitingClaim, None]] = {}
        self.task: asyncio.Task[None] | None = None
        self.claiming = False

    def take(self, queue: str, count: int) -> list[WaitingClaim]:
        """The longest waiting workers that are not busy; marks them busy."""
        taken = list(islice((poll for poll in self.waiting.get(queue, ()) if not poll.busy), count))
        for poll in taken:
            poll.busy = True
        return taken


class ClaimPolls:
    """The waiting workers of one event loop."""

    def __init__(self, context: "ServerContext") -> None:
        self._context = context
        self._groups = [PollGroup() for _ in range(MAX_WAIT_THREADS)]
        self._group_of: dict[str, PollGroup] = {}
        self._ends: dict[float, set[WaitingClaim]] = {}
        self._threads = ThreadPoolExecutor(MAX_WAIT_THREADS, "forebay-claims")
        self._closed = False
        self.pollers = 0

    async def claim(
        self, wants: Sequence[Want], owner: str, lease_for: timedelta, wait: float, gone: Gone
    ) -> list[Lease]:
        """Leases as soon as there are any; none after `wait` seconds, or when `gone` returns."""
        wait = min(wait, self._context.settings.max_wait)
        if wait <= 0 or not all(self._known_empty(want.queue) for want in wants):
            leases = await self._context.call(self._context.store.claim, wants, owner, lease_for)
            if leases or wait <= 0:
                return leases
        if self._closed:
            return []
        if self.pollers >= self._context.settings.max_pollers:
            raise _too_many_polls(self.pollers)
        return await self._wait(WaitingClaim(wants, owner, lease_for), wait, gone)

    def end_polls(self) -> None:
        """Answer every poll with no leases, and accept no further ones."""
        self._closed = True
        for poll in {poll for group in self._groups for polls in group.waiting.values() for poll in polls}:
            self._end_poll(poll)

    async def close(self) -> None:
        self.end_polls()
        tasks = [group.task for group in self._groups if group.task is not None]
        # A claim in progress may return jobs, which must be released; a waiting thread is not waited for.
        busy = [group.task for group in self._groups if group.task is not None and group.claiming]
        if busy:
            await asyncio.wait(busy, timeout=_MAX_CLAIM_SECONDS)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _known_empty(self, queue: str) -> bool:
        """A worker waits there whose claim returned nothing, and no claim is being made."""
        group = self._group_of.get(queue)
        return group is not None and queue in group.waiting and not group.claiming

    async def _wait(self, poll: WaitingClaim, wait: float, gone: Gone) -> list[Lease]:
        self.pollers += 1
        self._join(poll)
        ending = self._end_after(wait)
        ending.add(poll)
        disconnect = asyncio.get_running_loop().create_task(gone())
        disconnect.add_done_callback(lambda _: self._end_poll(poll))
        try:
            leases = await poll.answer
            if leases and disconnect.done():
                await self._release(leases)
                return []
            return leases
        finally:
            self.pollers -= 1
            ending.discard(poll)
            disconnect.cancel()
            self._end_poll(poll)

    def _end_after(self, wait: float) -> "set[WaitingClaim]":
        """The polls that end then, or a little earlier."""
        loop = asyncio.get_running_loop()
        at = end_of(loop.time(), wait)
        if at not in self._ends:
            self._ends[at] = set()
            loop.call_at(at, self._end_polls_at, at)
        return self._ends[at]

    def _end_polls_at(self, at: float) -> None:
        for poll in self._ends.pop(at):
            self._end_poll(poll)

    def _join(self, poll: WaitingClaim) -> None:
        for queue in poll.queues:
            group = self._group_of.get(queue)
            if group is None:
                group = self._group_of[queue] = min(
                    self._groups, key=lambda each: (len(each.waiting), each.task is not None)
                )
            group.waiting.setdefault(queue, OrderedDict())[poll] = None
            if group.task is None:
                group.task = asyncio.create_task(self._run_group(group))

    def _end_poll(self, poll: WaitingClaim) -> None:
        """Remove it from all queues. It is answered now, or with the claim that is being made for it."""
        poll.left = True
        for queue in poll.queues:
            waiting = self._group_of[queue].waiting if queue in self._group_of else {}
            if queue in waiting:
                waiting[queue].pop(poll, None)
                if not waiting[queue]:
                    del waiting[queue]
        if not poll.busy and not poll.answer.done():
            poll.answer.set_result([])

    async def _run_group(self, group: PollGroup) -> None:
        """Wait, make claims, and repeat while workers wait in this group."""
        loop = asyncio.get_running_loop()
        empty = 0
        try:
            while group.waiting and not self._closed:
                queues = list(group.waiting)
                try:
                    notified = await loop.run_in_executor(self._threads, self._context.store.wait, queues, _WAIT)
                    found = await self._claim_for_group(group, queues)
                except Exception as error:
                    # A store failure must not end the group: its workers would never be answered.
                    self._context.meters.count_error(error)
                    self._context.throttled_log.log_failure("claims", error)
                    await asyncio.sleep(_FAILED_PAUSE)
                    continue
                empty = empty + 1 if notified and not found else 0
                if empty > len(queues):
                    await asyncio.sleep(_EMPTY_PAUSE)
        finally:
            group.task = None
            # Until now a queue kept its group, so that two threads never wait for one queue.
            self._group_of = {queue: other for queue, other in self._group_of.items() if other is not group}

    async def _claim_for_group(self, group: PollGroup, queues: Sequence[str]) -> int:
        """Claims for the longest waiting workers, queue by queue, until no jobs or no workers are left."""
        group.claiming = True
        try:
            found = 0
            for queue in queues:
                concurrent = 1
                while (polls := group.take(queue, concurrent)) and not self._closed:
                    results = await asyncio.gather(*map(self._claim_for, polls))
                    found += sum(map(len, results))
                    if not all(results):
                        break
                    concurrent = min(_MAX_CONCURRENT, 2 * concurrent)
            return found
        finally:
            group.claiming = False

    async def _claim_for(self, poll: WaitingClaim) -> list[Lease]:
        """One claim for a worker that is marked busy."""
        leases: list[Lease] = []
        try:
            leases = await self._context.call(self._context.store.claim, poll.wants, poll.owner, poll.lease_for)
        finally:
            poll.busy = False
            if poll.answer.cancelled():
                await self._release(leases)
            elif leases or poll.left:
                poll.answer.set_result(leases)
                self._end_poll(poll)
        return leases

    async def _release(self, leases: Sequence[Lease]) -> None:
        """Release the leases, uncharged: the worker has disconnected."""
        await self._context.call(self._context.store.settle, [(lease, Release()) for lease in leases])


def end_of(now: float, wait: float) -> float:
    """When a poll that begins now ends: on the last tick before its time is up. Longer polls have longer ticks.

    Ticks are powers of two, so that polls of different lengths share them.
    """
    tick: float = 2.0 ** (frexp(max(wait, _MIN_TICK))[1] - 1 - _EARLY_BITS)
    return (now + wait) // tick * tick


class JobPolls:
    """The watched jobs of one event loop."""

    def __init__(self, context: "ServerContext") -> None:
        self._context = context
        self._watched: dict[int, set[asyncio.Future[Job | None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause = _FIRST_PAUSE
        self._closed = False
        self.watchers = 0

    async def ended(self, job: Job, wait: float, gone: Callable[[], Awaitable[None]]) -> Job | None:
        """The job once it has ended, or as it is after `wait` seconds; None when it was removed."""
        wait = min(wait, self._context.settings.max_wait)
        if job.state.terminal or wait <= 0 or self._closed:
            return job
        if self.watchers >= self._context.settings.max_pollers:
            raise _too_many_polls(self.watchers)
        answer: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        disconnect = asyncio.ensure_future(gone())
        self.watchers += 1
        self._watched.setdefault(job.id, set()).add(answer)
        self._pause = _FIRST_PAUSE
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            either: list[asyncio.Future[Any]] = [answer, disconnect]
            await asyncio.wait(either, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and not answer.cancelled():
                return answer.result()
            return (await self._context.call(self._context.store.get, [job.id]))[0]
        finally:
            self.watchers -= 1
            disconnect.cancel()
            answer.cancel()
            self._forget(job.id, answer)

    def end_polls(self) -> None:
        """Answer every poll with the job as it is now."""
        self._closed = True
        for job_id, answers in list(self._watched.items()):
            for answer in list(answers):
                self._forget(job_id, answer)
                answer.cancel()

    async def close(self) -> None:
        self.end_polls()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        try:
            while self._watched and not self._closed:
                await asyncio.sleep(self._pause)
                self._pause = min(_LAST_PAUSE, self._pause * 1.5)
                try:
                    await self._poll()
                except Exception as error:
                    self._context.throttled_log.log_failure("watching", error)
                    await asyncio.sleep(_FAILED_PAUSE)
        finally:
            self._task = None

    async def _poll(self) -> None:
        ids = list(self._watched)
        for start in range(0, len(ids), MAX_BATCH):
            part = ids[start : start + MAX_BATCH]
            for job_id, job in zip(part, await self._context.call(self._context.store.get, part), strict=True):
                if job is None or job.state.terminal:
                    for answer in self._watched.pop(job_id, ()):
                        if not answer.done():
                            answer.set_result(job)

    def _forget(self, job_id: int, answer: "asyncio.Future[Job | None]") -> None:
        answers = self._watched.get(job_id)
        if answers is not None:
            answers.discard(answer)
            if not answers:
                del self._watched[job_id]


def _too_many_polls(polls: int) -> Problem:
    return Problem(503, "busy", "Too many long polls", f"{polls} wait already: try again later", {"Retry-After": "5"})
