"""`GET /metrics`, for viewers."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from forebay.serve.actor import Actor, Role
from forebay.serve.context import ServerContext, server_context
from forebay.serve.metrics.exposition import exposition
from forebay.serve.metrics.server_metrics import Metrics, visible_families
from forebay.serve.security.auth import require_role

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'forebay_queue_jobs{queue="mail",state="ready"} 12.0\n'}}}},
)
async def metrics(
    request: Request,
    actor: Annotated[Actor, require_role(Role.VIEWER)],
    base: Annotated[ServerContext, Depends(server_context)],
) -> Response:
    """Fleet counters from the ledger, queue gauges, and the metrics of this process.

    A key for some queues gets the series of those queues. A scrape makes no store call: it returns the last poll.
    """
    counted: Metrics = base.metrics
    everything = actor.tenant is None and actor.queues == ("*",)
    families = visible_families(actor, counted.families())
    # Tens of thousands of series take a while to write, so it happens off the event loop.
    body, content_type = await asyncio.to_thread(
        exposition, request.headers.get("accept", ""), families, process=everything
    )
    return Response(body, media_type=None, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
