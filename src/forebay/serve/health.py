"""`GET /health` and `GET /ready`: whether the process lives, and whether work goes through it. Neither asks for a key.

    /health   the process answers. It asks nobody else, so that a store's outage does not get servers killed.
    /ready    200 when the store can be claimed from and written to, and claims make progress; 503 with reasons by name:

        store-silent     no answer within two seconds              store-failed    an answer, and it was an error
        read-only        the server behind the store takes no writes
        unsafe-settings  the server behind the store was set to lose what it acknowledges
        no-progress      jobs are ready, and for fifteen seconds none was claimed
        not-watched      what the queues hold was last seen too long ago to say

Strangers may ask, so no answer names a queue or an error's text: metrics and `forebay doctor` do. `?skip=no-progress`
is for whoever routes requests to servers: that should not stop because workers did.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from forebay.serve.ground import Ground, ground

Reason = Literal["store-silent", "store-failed", "read-only", "unsafe-settings", "no-progress", "not-watched"]

router = APIRouter(tags=["health"])

_READY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"example": {"status": "ready", "reasons": [], "store": "sqlite"}}}},
    503: {
        "description": "It does not",
        "content": {"application/json": {"example": {"status": "not ready", "reasons": ["no-progress"]}}},
    },
}


@router.get("/health", summary="Whether the process lives")
async def health() -> dict[str, str]:
    """200 while the process answers."""
    return {"status": "alive"}


@router.get("/ready", summary="Whether work goes through", responses=_READY)
async def ready(
    base: Annotated[Ground, Depends(ground)], skip: Annotated[frozenset[Reason], Query()] = frozenset()
) -> JSONResponse:
    """Whether jobs can be claimed and written, and are claimed. `skip` leaves reasons out."""
    readiness = base.metrics.readiness
    reasons = [reason for reason in await readiness.reasons() if reason not in skip]
    body = {"status": "not ready" if reasons else "ready", "reasons": reasons, **readiness.facts()}
    return JSONResponse(body, 503 if reasons else 200, {"Cache-Control": "no-store"})
