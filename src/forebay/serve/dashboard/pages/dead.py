"""Dead letters by cause."""

from typing import Final

from msgspec.structs import replace

from forebay.serve.actor import Actor
from forebay.serve.dashboard.pages.routing import Cache, ViewerActor, pages
from forebay.serve.dashboard.render import HtmlPage
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.causes import Cause
from forebay.serve.security.redact import redact_text, secrets_of

router = pages()

CAUSES_SHOWN: Final = 100
_QUEUES_PROPOSED: Final = 500
_STEP_SECONDS: Final = 0.08


@router.get("/ui/dead")
def dead(cache: Cache, actor: ViewerActor, queue: str = "") -> HtmlPage:
    scan = cache.scan(actor)
    if scan.due():
        scan.step(_STEP_SECONDS)
    summary = scan.summary()
    causes = [each for each in summary.causes if actor.reaches(each.queue) and queue in ("", each.queue)]
    total = _dead(cache, actor, queue) if actor.tenant is None else sum(each.count for each in causes)
    values = {
        "summary": summary,
        "causes": _without_secrets(cache, causes[:CAUSES_SHOWN]),
        "more": max(0, len(causes) - CAUSES_SHOWN),
        "total": total,
        "most": max((each.count for each in causes), default=1),
        "queue": queue,
        "queues": sorted({each.queue for each in summary.causes if actor.reaches(each.queue)})[:_QUEUES_PROPOSED],
    }
    return HtmlPage("dead.html", "Dead letters", values, "dead", live=True)


def _without_secrets(cache: ViewCache, causes: list[Cause]) -> list[Cause]:
    """The causes with their last messages redacted; one whose job is gone shows the message without variable parts."""
    jobs = cache.store.get([each.example for each in causes]) if causes else []
    return [
        replace(each, last_message=each.message if job is None else redact_text(each.last_message, secrets_of(job)))
        for each, job in zip(causes, jobs, strict=True)
    ]


def _dead(cache: ViewCache, actor: Actor, queue: str) -> int:
    if not queue:
        return cache.totals(actor).dead
    backlog = cache.backlog(actor, queue)
    return 0 if backlog is None else backlog.dead
