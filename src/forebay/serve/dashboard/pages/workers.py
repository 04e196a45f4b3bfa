"""Workers: the jobs that each one holds, since when, and when its leases expire."""

from functools import partial

from fastapi import Request
from fastapi.responses import Response

from forebay.serve.actor import Actor
from forebay.serve.dashboard.live import answer, view_cache
from forebay.serve.dashboard.pages.routing import Viewer, pages, require_all_tenants
from forebay.serve.dashboard.render import Page
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.workers import workers_view

router = pages()


@router.get("/ui/workers")
async def workers(request: Request, actor: Viewer) -> Response:
    require_all_tenants(actor)
    return await answer(request, actor, partial(_sheet, view_cache(request), actor))


async def _sheet(cache: ViewCache, actor: Actor) -> Page:
    return await cache.context.call(_made, cache, actor)


def _made(cache: ViewCache, actor: Actor) -> Page:
    cache.rate_tracker.refresh()
    running = cache.totals(actor).running
    claims = cache.rate_tracker.claims() if actor.queues == ("*",) else {}
    view = workers_view(cache.store, actor, running, claims)
    return Page("workers.html", "Workers", {"view": view, "known": cache.rate_tracker.known}, "workers", live=True)
