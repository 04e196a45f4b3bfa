"""`GET /metrics`, for viewers: the text that Prometheus scrapes."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from forebay.serve.actor import Actor, Role
from forebay.serve.ground import Ground, ground
from forebay.serve.metrics.expose import exposition
from forebay.serve.metrics.metrics import Metrics, seen_by
from forebay.serve.security.door import need

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    summary="What Prometheus scrapes",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'forebay_queue_jobs{queue="mail",state="ready"} 12.0\n'}}}},
)
async def metrics(
    request: Request, actor: Annotated[Actor, need(Role.VIEWER)], base: Annotated[Ground, Depends(ground)]
) -> Response:
    """Counters of the whole fleet from the ledger, gauges of every queue, and this process's own.

    A key for some queues gets the series of those queues. The store is not asked: the answer is what was seen last.
    """
    counted: Metrics = base.metrics
    everything = actor.tenant is None and actor.queues == ("*",)
    told = seen_by(actor, counted.families())
    # Tens of thousands of series take a while to write, and nobody should wait for that.
    body, content_type = await asyncio.to_thread(
        exposition, request.headers.get("accept", ""), told, process=everything
    )
    return Response(body, media_type=None, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
