"""`GET /health`, `GET /ready`: liveness and readiness, without a key. `GET /metrics`, `/stats`, `/scale`: for viewers.

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

Statistics are the counts of each queue, from the store, and attempts and run times of recent jobs, from the tail of the
ledger (`serve.recent_runs`).
"""

import asyncio
from math import ceil
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from msgspec.structs import replace

from forebay.serve.api.requests import NAME_PATTERN
from forebay.serve.api.responses import SECOND, ScaleAdvice, Stats
from forebay.serve.api.routing import JSON, ApiRoute, ContextDep, Limit, NameFilter, ViewerActor, api_router
from forebay.serve.api.schema import problems
from forebay.serve.metrics.server_metrics import exposition, visible_families
from forebay.serve.queue_totals import sum_states, totals_for
from forebay.serve.recent_runs import RecentRuns, p99
from forebay.serve.security.visibility import require_queue, sees_all
from forebay.store.protocol import Backlog

Reason = Literal["store-timeout", "store-failed", "read-only", "unsafe-settings", "no-progress", "stale-poll"]

router = APIRouter(route_class=ApiRoute, tags=["health"])
metrics = api_router("metrics")
figures = api_router("figures")

_NOTHING: Final = Backlog("", 0, 0, 0, 0, 0, 0, 0, None, 0)

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
async def ready(context: ContextDep, skip: Annotated[frozenset[Reason], Query()] = frozenset()) -> Response:
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
async def scrape(context: ContextDep, actor: ViewerActor, request: Request) -> Response:
    """Fleet counters from the ledger, queue gauges, and the metrics of this process.

    A key for some queues gets the series of those queues. A scrape makes no store call: it returns the last poll.
    """
    families = visible_families(actor, context.metrics.families())
    # Tens of thousands of series take a while to write, so it happens off the event loop.
    body, content_type = await asyncio.to_thread(
        exposition, request.headers.get("accept", ""), families, process=sees_all(actor)
    )
    return Response(body, media_type=None, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


@figures.get("/stats", responses=problems(404))
def stats(context: ContextDep, actor: ViewerActor, queue: NameFilter = None, limit: Limit = 100) -> Stats:
    """Counts of one queue; or of all that this key can reach, in total and for the `limit` deepest."""
    if queue is not None:
        require_queue(actor, queue)
    recent_runs = context.recent_runs.refresh(context.store)
    if queue is not None:
        return _stats(queue, context.store.backlog([queue]), recent_runs)
    if actor.tenant is not None:
        return replace(_stats(None, [], recent_runs), queues=[], queues_total=0)
    found = totals_for(context.store, actor, limit)
    return replace(
        _stats(None, found.deepest, recent_runs),
        **sum_states([found]),
        depth=found.waiting + found.ready + found.running,
        queues=[_stats(each.queue, [each], recent_runs) for each in found.deepest],
        queues_total=found.queues,
        complete=found.complete,
    )


def _stats(queue: str | None, backlogs: list[Backlog], recent_runs: RecentRuns) -> Stats:
    known = backlogs or [_NOTHING]
    return Stats(
        queue=queue,
        **sum_states(known),
        depth=sum(each.depth for each in known),
        oldest_age_s=max(each.oldest_age for each in known) / SECOND,
        held=sum(each.held for each in known),
        blocked_lines=sum(each.blocked for each in known),
        attempts_p99=p99(recent_runs.attempts[each.queue] for each in known if each.queue in recent_runs.attempts),
        attempts_from=recent_runs.source,
        paused=queue is not None and known[0].paused_until is not None,
    )


@figures.get("/scale", responses=problems(404))
def scale(
    context: ContextDep,
    actor: ViewerActor,
    queue: Annotated[str, Query(pattern=NAME_PATTERN)],
    within: Annotated[float, Query(gt=0, le=86_400)] = 60.0,
) -> ScaleAdvice:
    """How many worker slots would finish the claimable and running jobs `within` seconds, for autoscaling.

    Jobs behind a closed gate do not count: more workers would not start them. `seconds_per_job` is the mean of recently
    ended jobs; null when there are none, and then `workers` is null too.
    """
    require_queue(actor, queue)
    backlog = next(iter(context.store.backlog([queue])), _NOTHING)
    count, total = context.recent_runs.refresh(context.store).ran.get(queue, (0, 0))
    depth = backlog.ready - backlog.held + backlog.running
    if not count:
        return ScaleAdvice(queue, depth, None, None, within, 0 if depth == 0 else None, 0)
    mean = total / count / SECOND
    return ScaleAdvice(queue, depth, mean, mean * depth, within, ceil(mean * depth / within), count)
