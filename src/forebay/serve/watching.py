"""Those who wait for the end of a job: one task looks for all of them, a batch at a time, and only while anybody waits.

A store tells nobody that a job ended, so it is asked: soon at first, then less often, and the less often the more jobs
are watched. A look costs one call for a thousand jobs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from forebay.core.job import Job
from forebay.core.limits import BATCH_MOST
from forebay.serve.problems import Problem

if TYPE_CHECKING:
    from forebay.serve.ground import Ground

_FIRST: Final = 0.01
_LAST: Final = 0.25
_AWAY_REST: Final = 0.5


class Watching:
    """Jobs that are watched, of one event loop."""

    def __init__(self, ground: "Ground") -> None:
        self._ground = ground
        self._watched: dict[int, set[asyncio.Future[Job | None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause = _FIRST
        self._closed = False
        self.watchers = 0

    async def ended(self, job: Job, wait: float, gone: Callable[[], Awaitable[None]]) -> Job | None:
        """The job once it has ended, or as it was when the time is up; None when it is gone."""
        wait = min(wait, self._ground.settings.wait_most)
        if job.state.terminal or wait <= 0 or self._closed:
            return job
        if self.watchers >= self._ground.settings.pollers_most:
            raise Problem(503, "busy", "Too many wait already", "try again later", {"Retry-After": "5"})
        answer: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        leaving = asyncio.ensure_future(gone())
        self.watchers += 1
        self._watched.setdefault(job.id, set()).add(answer)
        self._pause = _FIRST
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            either: list[asyncio.Future[Any]] = [answer, leaving]
            await asyncio.wait(either, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and not answer.cancelled():
                return answer.result()
            return (await self._ground.call(self._ground.store.get, [job.id]))[0]
        finally:
            self.watchers -= 1
            leaving.cancel()
            answer.cancel()
            self._forget(job.id, answer)

    def dismiss(self) -> None:
        """Everyone gets the job as it is now."""
        self._closed = True
        for job_id, answers in list(self._watched.items()):
            for answer in list(answers):
                self._forget(job_id, answer)
                answer.cancel()

    async def close(self) -> None:
        self.dismiss()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        try:
            while self._watched and not self._closed:
                await asyncio.sleep(self._pause)
                self._pause = min(_LAST, self._pause * 1.5)
                try:
                    await self._look_once()
                except Exception as error:
                    self._ground.voice.warn("watching", error)
                    await asyncio.sleep(_AWAY_REST)
        finally:
            self._task = None

    async def _look_once(self) -> None:
        ids = list(self._watched)
        for start in range(0, len(ids), BATCH_MOST):
            part = ids[start : start + BATCH_MOST]
            for job_id, job in zip(part, await self._ground.call(self._ground.store.get, part), strict=True):
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
