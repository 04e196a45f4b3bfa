"""The overview (rates, queues, problems) and the workers (what each holds, and until when)."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.serve.actor import Actor
from forebay.serve.dashboard.live import answer, view_cache
from forebay.serve.dashboard.pages.routing import Viewer, back, pages, require_all_tenants
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.rates import Rates
from forebay.serve.dashboard.views.workers import workers_view
from forebay.serve.queue_totals import QueueTotals
from forebay.serve.security.visibility import sees_all
from forebay.store.protocol import Backlog

router = pages()

QUEUES_SHOWN: Final = 100
_VERDICT: Final = "verdict.json"
_VERDICT_BYTES: Final = 4 * 1024 * 1024
_SCAN_SECONDS: Final = 0.02


class QueueLine(Struct, frozen=True):
    """One queue."""

    backlog: Backlog
    rates: Rates
    dead_since: int | None


class LastVerdict(Struct, frozen=True):
    """The part of the last audit verdict that the page shows."""

    answer: str
    at: int = 0
    reasons: list[str] = []


@router.get("/ui/")
async def overview(request: Request, actor: Viewer) -> Response:
    if actor.tenant is not None:
        return back(link("jobs"))
    return await answer(request, actor, partial(_load_page, view_cache(request), actor))


async def _load_page(cache: ViewCache, actor: Actor) -> HtmlPage:
    return HtmlPage("overview.html", "Overview", await cache.context.call(_values, cache, actor), "overview", live=True)


def _values(cache: ViewCache, actor: Actor) -> dict[str, Any]:
    cache.rate_tracker.refresh()
    counted = cache.totals_soon(actor)
    totals = counted or QueueTotals([], 0, 0, 0, 0, 0, 0, 0)
    backlogs = totals.deepest
    scan = cache.scan(actor)
    if scan.due() and totals.dead:
        scan.step(_SCAN_SECONDS)
    summary = scan.summary()
    busy, since = cache.rate_tracker.busy(), summary.since()
    ranked = sorted(backlogs, key=lambda each: (-busy.get(each.queue, 0), -each.depth, each.queue))
    shown = ranked[:QUEUES_SHOWN]
    lines = [QueueLine(each, cache.rate_tracker.rates([each.queue]), since.get(each.queue)) for each in shown]
    return {
        "known": cache.rate_tracker.known,
        "counting": counted is None,
        "day": cache.context.metrics.history.day(cache.store.now(), None if sees_all(actor) else actor.reaches),
        "rates": cache.rate_tracker.rates(None if sees_all(actor) else {each.queue for each in backlogs}),
        "lines": lines,
        "unhandled": cache.unhandled(actor),
        "more": max(0, totals.queues - len(shown)),
        "ready": totals.ready,
        "running": totals.running,
        "waiting": totals.waiting,
        "dead": totals.dead,
        "oldest": max((each.oldest_age for each in backlogs), default=0),
        "dead_since": min((since[each.queue] for each in backlogs if each.queue in since), default=None),
        "verdict": _verdict(cache.context.settings.lake),
    }


def _verdict(lake: str | None) -> LastVerdict | None:
    """None: no lake, or it has no verdict yet."""
    if lake is None:
        return None
    try:
        with (Path(lake) / _VERDICT).open("rb") as file:
            return msgspec.json.decode(file.read(_VERDICT_BYTES), type=LastVerdict)
    except (OSError, msgspec.DecodeError):
        return None


@router.get("/ui/workers")
async def workers(request: Request, actor: Viewer) -> Response:
    require_all_tenants(actor)
    return await answer(request, actor, partial(_load_workers_page, view_cache(request), actor))


async def _load_workers_page(cache: ViewCache, actor: Actor) -> HtmlPage:
    return await cache.context.call(_build_workers_page, cache, actor)


def _build_workers_page(cache: ViewCache, actor: Actor) -> HtmlPage:
    cache.rate_tracker.refresh()
    running = cache.totals(actor).running
    claims = cache.rate_tracker.claims() if sees_all(actor) else {}
    view = workers_view(cache.store, actor, running, claims)
    return HtmlPage("workers.html", "Workers", {"view": view, "known": cache.rate_tracker.known}, "workers", live=True)
