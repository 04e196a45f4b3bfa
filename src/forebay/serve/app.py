"""`create_app`: one FastAPI application on one store. Whoever makes it opens the store and closes it afterwards."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from forebay.serve.api import batch, cron, dead, gates, jobs, logs, queues, stats, work
from forebay.serve.api.describe import complete
from forebay.serve.dashboard import mount
from forebay.serve.ground import Ground
from forebay.serve.health import router as health
from forebay.serve.metrics import Metered
from forebay.serve.metrics.routes import router as metrics
from forebay.serve.problems import install
from forebay.serve.quick import Quick
from forebay.serve.security.door import Door
from forebay.serve.security.walls import put_up
from forebay.serve.settings import ServeSettings
from forebay.store.protocol import Store
from forebay.work.handler import Handler

API_VERSION = "1"
_ABOUT = "A durable job queue and scheduler. Every refusal is application/problem+json."


def create_app(
    store: Store,
    settings: ServeSettings | None = None,
    *,
    door: Door | None = None,
    registry: Mapping[str, Handler] | None = None,
) -> FastAPI:
    """`registry`: what an app says of its kinds, so that a job finds its queue by its kind."""
    chosen = settings or ServeSettings()
    ground = Ground(store, chosen, door or Door.of(store), registry)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await ground.start()
        try:
            yield
        finally:
            await ground.stop()

    app = FastAPI(
        title="Forebay",
        version=API_VERSION,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        # Spans of requests stay FastAPI's; asking for the rest costs every request a look at the environment.
        telemetry={"metrics": False, "logs": False},
        lifespan=lifespan,
    )
    app.state.ground = ground
    install(app)
    app.add_middleware(Quick)
    put_up(app, ground.door, chosen)
    app.add_middleware(Metered, meters=ground.meters)
    for room in (batch, jobs, work, dead, queues, gates, cron, stats, logs):
        app.include_router(room.router)
    app.include_router(health)
    if chosen.metrics:
        app.include_router(metrics)
    if chosen.dashboard:
        mount(app)
    app.openapi = lambda: complete(app)  # type: ignore[method-assign]
    return app
