"""The overview: rates, queues and problems."""

from typing import Final

from msgspec import Struct

from forebay.serve.dashboard.pages.routing import Cache, ViewerActor, pages
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.views.rates import Rates
from forebay.serve.queue_totals import QueueTotals
from forebay.serve.security.visibility import sees_all
from forebay.store.protocol import Backlog

router = pages()

QUEUES_SHOWN: Final = 100
_SCAN_SECONDS: Final = 0.02


class QueueLine(Struct, frozen=True):
    """One queue."""

    backlog: Backlog
    rates: Rates
    dead_since: int | None


@router.get("/ui/")
def overview(cache: Cache, actor: ViewerActor) -> HtmlPage | str:
    if actor.tenant is not None:
        return link("jobs")
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
    values = {
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
        "verdict": cache.verdict(),
    }
    return HtmlPage("overview.html", "Overview", values, "overview", live=True)
