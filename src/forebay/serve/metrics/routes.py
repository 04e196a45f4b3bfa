"""`GET /metrics`, for viewers."""

import asyncio

from fastapi import Request
from fastapi.responses import Response

from forebay.serve.api.routing import Context, Viewer, api_router
from forebay.serve.metrics.exposition import exposition
from forebay.serve.metrics.server_metrics import visible_families
from forebay.serve.security.visibility import sees_all

router = api_router("metrics")


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'forebay_queue_jobs{queue="mail",state="ready"} 12.0\n'}}}},
)
async def metrics(context: Context, actor: Viewer, request: Request) -> Response:
    """Fleet counters from the ledger, queue gauges, and the metrics of this process.

    A key for some queues gets the series of those queues. A scrape makes no store call: it returns the last poll.
    """
    families = visible_families(actor, context.metrics.families())
    # Tens of thousands of series take a while to write, so it happens off the event loop.
    body, content_type = await asyncio.to_thread(
        exposition, request.headers.get("accept", ""), families, process=sees_all(actor)
    )
    return Response(body, media_type=None, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
