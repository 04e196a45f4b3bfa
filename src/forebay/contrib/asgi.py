"""An app's store, API and dashboard inside an ASGI application: FastAPI, Starlette, Litestar, Django and others.

    dashboard = Dashboard(fb, operator_of)
    app = FastAPI(lifespan=lifespan(fb, dashboard))
    app.mount("/jobs", dashboard)

`operator_of(request)` returns the user of the application as an `Actor`, or None. See docs/guides/fastapi.md.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import unquote

from forebay.client import Forebay
from forebay.serve.actor import Actor, Role
from forebay.serve.app import create_app
from forebay.serve.problems import Problem
from forebay.serve.security.mounting import HostAuth
from forebay.serve.settings import ServeSettings

__all__ = ["Actor", "Dashboard", "Role", "lifespan"]


class Dashboard:
    """The server of an app, to be mounted; it serves while `lifespan` runs.

    authenticate  the user of a request as an `Actor`, perhaps awaited; None: only keys count
    path          where it is mounted, for a framework that does not say so in `root_path`
    login_url     where those who are not logged in are sent
    settings      of the server; it fires no schedules by default, which workers do
    """

    def __init__(
        self,
        fb: Forebay,
        authenticate: HostAuth | None = None,
        *,
        path: str | None = None,
        login_url: str | None = None,
        settings: ServeSettings | None = None,
    ) -> None:
        self._fb = fb
        self._authenticate = authenticate
        self._path = None if path is None else path.rstrip("/")
        self._settings = settings or ServeSettings(maintain=False, login_url=login_url)
        self._served: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._served is None:
            detail = "its application runs without forebay.contrib.asgi.lifespan"
            problem = Problem(503, "not-started", "The server has not started", detail)
            await problem.response()(scope, receive, send)
            return
        if self._path is not None:
            # Litestar takes the mount off `path`, and adds a slash; the path as it was sent is whole.
            sent = scope["raw_path"].partition(b"?")[0].decode("latin-1")
            scope = {**scope, "root_path": self._path, "path": unquote(sent)}
        await self._served(scope, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the open store of the app while the block runs."""
        served = await asyncio.to_thread(self._created)
        await served.state.context.start()
        self._served = served
        try:
            yield
        finally:
            self._served = None
            served.state.context.end_polls()
            await served.state.context.stop()

    def _created(self) -> Any:
        fb = self._fb
        layers = fb.hooks.enqueue_layers_for(fb.registry)
        return create_app(fb.store, self._settings, registry=fb.registry, host=self._authenticate, layers=layers)


def lifespan(fb: Forebay, *dashboards: Dashboard) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """For `lifespan=` of an application: the store is open, and the dashboards serve, while it runs."""

    @asynccontextmanager
    async def running(_: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(getattr, fb, "store")
        try:
            async with AsyncExitStack() as stack:
                for dashboard in dashboards:
                    await stack.enter_async_context(dashboard.serving())
                yield
        finally:
            await asyncio.to_thread(fb.close)

    return running
