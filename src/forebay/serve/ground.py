"""`Ground`: what all routes of one server stand on, kept at `app.state.ground`.

The store's verbs block, so they run on a bounded pool of threads (`call`); what comes while too many wait is refused
with a 503 instead of growing a queue in memory. Roles that tend the store, or follow one of its logs, are added before
the start and run from the start of the app to its end.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar

from fastapi import Request

from forebay.core.errors import ForebayError
from forebay.serve.enqueuer import Enqueuer
from forebay.serve.leases import Signer, signer_of
from forebay.serve.metrics import Metrics
from forebay.serve.problems import Problem
from forebay.serve.recent import Recent
from forebay.serve.security.door import Door
from forebay.serve.settings import ServeSettings
from forebay.serve.waiting import Waiting
from forebay.serve.watching import Watching
from forebay.store.protocol import Store
from forebay.work.handler import Handler
from forebay.work.reaper import Promoter, Reaper
from forebay.work.role import Beat, Role, Voice
from forebay.work.ticker import Ticker
from forebay.work.worker import Routings

P = ParamSpec("P")
R = TypeVar("R")

_STOP_SECONDS: Final = 2.0


class Ground:
    """What routes share."""

    def __init__(
        self, store: Store, settings: ServeSettings, door: Door, registry: Mapping[str, Handler] | None = None
    ) -> None:
        self.store = store
        self.settings = settings
        self.door = door
        self.metrics = Metrics(store, whole=settings.count_whole)
        self.meters = self.metrics.meters
        self.meters.limited = door.limits.refused
        self.registry: Mapping[str, Handler] = registry or {}
        self.voice = Voice()
        self.routing = Routings(store, self.voice)
        self.signer: Signer = signer_of(store)
        self._threads = ThreadPoolExecutor(settings.threads, "forebay-http")
        self._calls = 0
        self._roles: list[Role] = [*self.metrics.roles]
        if door.follower is not None:
            self._roles.append(door.follower)
        if door.usage is not None:
            self._roles.append(door.usage)
        if settings.tend:
            self._roles += [Reaper(store, self.routing, wary=True), Promoter(store), Ticker(store)]
        self._beats: list[Beat] = []
        self.leaving = asyncio.Event()
        self.enqueuer = Enqueuer(self)
        self.waiting = Waiting(self)
        self.watching = Watching(self)
        self.recent = Recent()

    def add_role(self, role: Role) -> None:
        """A role that runs, in a thread of its own, while the server does."""
        self._roles.append(role)

    async def call(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer of a blocking call."""
        if self._calls >= self.settings.calls_most:
            raise Problem(503, "busy", "The server is busy", "try again in a moment", {"Retry-After": "1"})
        self._calls += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, partial(self.meters.timed, verb, *args, **kwargs))
        finally:
            self._calls -= 1

    async def start(self) -> None:
        with suppress(ForebayError):
            await self.enqueuer.look()
        self._beats = [Beat(role, self.voice) for role in self._roles]
        for beat in self._beats:
            beat.start()

    def dismiss(self) -> None:
        """The server is about to stop: those who only wait are answered at once."""
        self.leaving.set()
        self.waiting.dismiss()
        self.watching.dismiss()

    async def stop(self) -> None:
        await self.waiting.close()
        await self.watching.close()
        await asyncio.gather(*(asyncio.to_thread(beat.stop, _STOP_SECONDS) for beat in self._beats))
        self.enqueuer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


async def ground(request: Request) -> Ground:
    """For `Depends`."""
    found: Ground = request.app.state.ground
    return found
