"""`ServerContext`: what the routes of one server share, at `app.state.context`.

The store's verbs block, so they run on a bounded thread pool (`call`); a call beyond the bound is refused with a 503
instead of growing a queue in memory. Roles that maintain the store or follow one of its logs run while the app does.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, ParamSpec, TypeVar

from fastapi import Request

from forebay.core.errors import ForebayError
from forebay.serve.enqueuer import Enqueuer
from forebay.serve.event_streams import EventStreams
from forebay.serve.lease_tokens import LeaseSigner, load_signer
from forebay.serve.long_poll import ClaimPolls, JobPolls
from forebay.serve.metrics import Metrics
from forebay.serve.problems import Problem
from forebay.serve.recent_runs import RecentRuns
from forebay.serve.security.auth import Authenticator
from forebay.serve.security.mounting import HostAuth
from forebay.serve.settings import ServeSettings
from forebay.store.protocol import Store
from forebay.work.handler import Handler
from forebay.work.reaper import Promoter, Reaper
from forebay.work.role import RoleThread, ThrottledLogger, WorkerRole
from forebay.work.ticker import EnqueueLayers, Ticker
from forebay.work.worker import RoutingCache

P = ParamSpec("P")
R = TypeVar("R")

_STOP_SECONDS: Final = 2.0


class ServerContext:
    """The store, the settings, and the services of one server."""

    def __init__(
        self,
        store: Store,
        settings: ServeSettings,
        authenticator: Authenticator,
        registry: Mapping[str, Handler] | None = None,
        host: HostAuth | None = None,
        layers: EnqueueLayers | None = None,
        read_verdict: Callable[[], bytes | None] | None = None,
    ) -> None:
        self.host = host
        self.read_verdict = read_verdict
        self.store = store
        self.settings = settings
        self.authenticator = authenticator
        self.metrics = Metrics(store, whole=settings.count_from_start)
        self.meters = self.metrics.meters
        self.meters.limited = authenticator.limits.refused
        self.registry: Mapping[str, Handler] = registry or {}
        self.throttled_log = ThrottledLogger()
        self.routing = RoutingCache(store, self.throttled_log)
        self.signer: LeaseSigner = load_signer(store)
        self._threads = ThreadPoolExecutor(settings.threads, "forebay-http")
        self._calls = 0
        self._roles: list[WorkerRole] = [*self.metrics.roles]
        if authenticator.follower is not None:
            self._roles.append(authenticator.follower)
        if authenticator.usage is not None:
            self._roles.append(authenticator.usage)
        if settings.maintain:
            ticker = Ticker(store, layers=layers)
            self._roles += [Reaper(store, self.routing, after_outage=True), Promoter(store), ticker]
        self._role_threads: list[RoleThread] = []
        self.stopping = asyncio.Event()
        self.enqueuer = Enqueuer(self)
        self.claim_polls = ClaimPolls(self)
        self.job_polls = JobPolls(self)
        self.event_streams = EventStreams(self)
        self.recent_runs = RecentRuns()

    async def call(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a blocking call, made on the thread pool."""
        if self._calls >= self.settings.max_calls:
            raise Problem(503, "busy", "The server is busy", "try again in a moment", {"Retry-After": "1"})
        self._calls += 1
        try:
            loop = asyncio.get_running_loop()
            timed = partial(self.meters.timed, verb, *args, **kwargs)
            # With the request's context: pages read from it where the server is mounted.
            return await loop.run_in_executor(self._threads, partial(copy_context().run, timed))
        finally:
            self._calls -= 1

    async def start(self) -> None:
        with suppress(ForebayError):
            await self.enqueuer.refresh_blocking()
        self._role_threads = [RoleThread(role, self.throttled_log) for role in self._roles]
        for thread in self._role_threads:
            thread.start()

    def end_polls(self) -> None:
        """Answer all long polls at once: the server is about to stop."""
        self.stopping.set()
        self.claim_polls.end_polls()
        self.job_polls.end_polls()

    async def stop(self) -> None:
        await self.claim_polls.close()
        await self.job_polls.close()
        await self.event_streams.close()
        await asyncio.gather(*(asyncio.to_thread(thread.stop, _STOP_SECONDS) for thread in self._role_threads))
        self.enqueuer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


async def server_context(request: Request) -> ServerContext:
    """For `Depends`."""
    found: ServerContext = request.app.state.context
    return found
