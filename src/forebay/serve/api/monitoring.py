"""`GET /health` and `GET /ready`: liveness and readiness, without a key. `GET /metrics`: for viewers.

    /health   200 while the process answers. It does not use the store, so that an outage of the store kills no servers
    /ready    200 when the store accepts claims and writes, and claims make progress; 503 with reasons by name:

        store-timeout    the store did not answer within two seconds
        store-failed     the store answered with an error
        read-only        the server behind the store refuses writes
        unsafe-settings  the server behind the store is configured to lose acknowledged writes
        no-progress      jobs are ready, and none was claimed for fifteen seconds
        stale-poll       the queues were last polled too long ago

The first two need no key, so they name no queue and no error text: metrics and `forebay doctor` do. A load balancer
uses `?skip=no-progress`: it should keep routing requests to a server when the workers have stopped.
"""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from forebay.serve.api.routing import JSON, ApiRoute, Context, Viewer, api_router
from forebay.serve.api.schema import problems
from forebay.serve.metrics.exposition import exposition
from forebay.serve.metrics.server_metrics import visible_families
from forebay.serve.security.visibility import sees_all

Reason = Literal["store-timeout", "store-failed", "read-only", "unsafe-settings", "no-progress", "stale-poll"]

router = APIRouter(route_class=ApiRoute, tags=["health"])
metrics = api_router("metrics")

_READY: dict[int | str, dict[str, Any]] = problems(422) | {
    200: {"content": {"application/json": {"example": {"status": "ready", "reasons": [], "store": "sqlite"}}}},
    503: {
        "description": "Not ready",
        "content": {"application/json": {"example": {"status": "not ready", "reasons": ["no-progress"]}}},
    },
}


@router.get("/health", summary="Liveness")
async def health() -> dict[str, str]:
    """200 while the process answers."""
    return {"status": "alive"}


@router.get("/ready", summary="Readiness", responses=_READY)
async def ready(context: Context, skip: Annotated[frozenset[Reason], Query()] = frozenset()) -> Response:
    """Whether the store accepts claims and writes, and jobs are claimed. `skip` leaves reasons out."""
    readiness = context.metrics.readiness
    reasons = [reason for reason in await readiness.reasons() if reason not in skip]
    body = {"status": "not ready" if reasons else "ready", "reasons": reasons, **readiness.facts()}
    status = 503 if reasons else 200
    return Response(msgspec.json.encode(body), status, {"Cache-Control": "no-store"}, JSON)


@metrics.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'forebay_queue_jobs{queue="mail",state="ready"} 12.0\n'}}}},
)
async def scrape(context: Context, actor: Viewer, request: Request) -> Response:
    """Fleet counters from the ledger, queue gauges, and the metrics of this process.

    A key for some queues gets the series of those queues. A scrape makes no store call: it returns the last poll.
    """
    families = visible_families(actor, context.metrics.families())
    # Tens of thousands of series take a while to write, so it happens off the event loop.
    body, content_type = await asyncio.to_thread(
        exposition, request.headers.get("accept", ""), families, process=sees_all(actor)
    )
    return Response(body, media_type=None, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
