"""Workers: those that have announced themselves, and every other owner of a running job or a recent claim.

Running jobs are searched in bounded time; a search that ended early says so. Recent claims come from the ledger
(`rates`).
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.limits import MAX_BATCH
from forebay.core.presence import Presence
from forebay.serve.actor import Actor
from forebay.serve.dashboard.pages.routing import Cache, ViewerActor, pages, require_all_tenants
from forebay.serve.dashboard.render import HtmlPage
from forebay.serve.dashboard.views.search import find_some
from forebay.serve.security.visibility import sees_all
from forebay.store.protocol import Query, Store

router = pages()

SEARCH_SECONDS: Final = 0.15
MAX_OWNERS: Final = 200
HELD_SHOWN: Final = 12


class WorkerRow(Struct, frozen=True):
    """One owner. `since`: its oldest lease. `left`: the time until its next lease expires.

    `queues`: those that the reader can see. `kinds`: None when the reader cannot see all of its queues.
    `presence`: what it announced; None for owners that announce nothing, such as workers over HTTP.
    """

    owner: str
    presence: Presence | None
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    held: int
    jobs: list[Job]
    since: Instant | None
    left: int | None
    claimed_at: Instant | None
    claimed: int


class Workers(Struct, frozen=True):
    """`idle`: announced workers without a job. `slots`: jobs that all announced workers may run at once."""

    rows: list[WorkerRow]
    running: int
    seen: int
    early: bool
    more: int
    announced: int
    idle: int
    slots: int


@router.get("/ui/workers")
def workers(cache: Cache, actor: ViewerActor) -> HtmlPage:
    require_all_tenants(actor)
    cache.rate_tracker.refresh()
    running = cache.totals(actor).running
    claims = cache.rate_tracker.claims() if sees_all(actor) else {}
    view = workers_view(cache.store, actor, running, claims)
    return HtmlPage("workers.html", "Workers", {"view": view, "known": cache.rate_tracker.known}, "workers", live=True)


def workers_view(store: Store, actor: Actor, running: int, claims: Mapping[str, tuple[Instant, int]]) -> Workers:
    jobs, early = find_some(store, Query(state=State.RUNNING), running, SEARCH_SECONDS)
    now = store.now()
    held: dict[str, list[Job]] = {}
    for job in jobs:
        if actor.sees(job.queue, job.tenant):
            held.setdefault(job.owner or "", []).append(job)
    announced = {each.owner: each for each in store.workers("", MAX_BATCH) if any(map(actor.reaches, each.queues))}
    rows = [
        _row(owner, announced.get(owner), actor, held.get(owner, []), claims.get(owner), now)
        for owner in {*held, *claims, *announced}
    ]
    rows.sort(key=lambda row: (-row.held, row.presence is None, -(row.claimed_at or 0), row.owner))
    shown, more = rows[:MAX_OWNERS], max(0, len(rows) - MAX_OWNERS)
    idle = sum(owner not in held for owner in announced)
    slots = sum(each.concurrency for each in announced.values())
    return Workers(shown, running, len(jobs), early, more, len(announced), idle, slots)


def _row(
    owner: str,
    presence: Presence | None,
    actor: Actor,
    jobs: list[Job],
    claim: tuple[Instant, int] | None,
    now: Instant,
) -> WorkerRow:
    jobs = sorted(jobs, key=lambda job: job.claimed_at or 0)
    queues = () if presence is None else tuple(filter(actor.reaches, presence.queues))
    return WorkerRow(
        owner,
        presence,
        queues,
        presence.kinds if presence is not None and queues == presence.queues else None,
        len(jobs),
        jobs[:HELD_SHOWN],
        jobs[0].claimed_at if jobs else None,
        min(((job.lease_until or 0) - now for job in jobs), default=None),
        claim[0] if claim else None,
        claim[1] if claim else 0,
    )
