"""`create_app`: one FastAPI application on one store. The caller opens the store and closes it afterwards."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from forebay.serve.api import batch, cron, dead, events, gates, jobs, logs, monitoring, queues, work
from forebay.serve.api.routing import FastPath
from forebay.serve.api.schema import complete_document
from forebay.serve.context import ServerContext
from forebay.serve.dashboard import mount
from forebay.serve.metrics.meters import MetricsMiddleware
from forebay.serve.problems import install_error_handlers
from forebay.serve.security.auth import Authenticator, AuthMiddleware
from forebay.serve.security.headers import SecurityHeadersMiddleware
from forebay.serve.security.mounting import HostAuth, MountMiddleware
from forebay.serve.security.request_limits import RequestLimitsMiddleware
from forebay.serve.security.sessions import Sessions
from forebay.serve.settings import ServeSettings
from forebay.store.protocol import Store
from forebay.work.handler import Handler
from forebay.work.ticker import EnqueueLayers

API_VERSION = "1"
_ABOUT = "A durable job queue and scheduler. Every refusal is application/problem+json."


class Api(FastAPI):
    """FastAPI, with the schemas of msgspec in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            complete_document(super().openapi())
        return super().openapi()


def create_app(
    store: Store,
    settings: ServeSettings | None = None,
    *,
    authenticator: Authenticator | None = None,
    registry: Mapping[str, Handler] | None = None,
    host: HostAuth | None = None,
    layers: EnqueueLayers | None = None,
    read_verdict: Callable[[], bytes | None] | None = None,
) -> FastAPI:
    """`registry`: the app's handlers by kind, from which a job takes its default queue and attempts.

    `host`: the users of the application in which this one is mounted, besides those with keys. `layers`: those
    of the app around an enqueue, for the schedules that this server fires. `read_verdict`: the last verdict of an
    audit, from a lake that is not a directory (`ServeSettings.lake`).
    """
    chosen = settings or ServeSettings()
    known = authenticator or Authenticator.of(store)
    context = ServerContext(store, chosen, known, registry, host, layers, read_verdict)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await context.start()
        try:
            yield
        finally:
            await context.stop()

    app = Api(
        title="Forebay",
        version=API_VERSION,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        # Request spans stay FastAPI's. The other two would read the environment at every request.
        telemetry={"metrics": False, "logs": False},
        lifespan=lifespan,
    )
    app.state.context = context
    install_error_handlers(app)
    app.add_middleware(FastPath, routes=app.routes)
    install_security(app, context.authenticator, chosen)
    app.add_middleware(MetricsMiddleware, meters=context.meters)
    modules = (batch, jobs, work, events, dead, queues, gates, cron, logs, monitoring)
    for router in (*(module.router for module in modules), monitoring.figures):
        app.include_router(router)
    if chosen.metrics:
        app.include_router(monitoring.metrics)
    if chosen.dashboard:
        mount(app)
    app.add_middleware(MountMiddleware, host=host)
    return app


def install_security(app: FastAPI, authenticator: Authenticator, settings: ServeSettings) -> None:
    """Outermost first: security headers, request limits, authentication. Starlette runs the last added first."""
    authenticator.sessions = Sessions(authenticator)
    app.add_middleware(AuthMiddleware, authenticator=authenticator)
    app.add_middleware(
        RequestLimitsMiddleware,
        max_body=settings.max_body,
        max_headers=settings.max_headers,
        body_seconds=settings.body_seconds,
    )
    app.add_middleware(SecurityHeadersMiddleware)
