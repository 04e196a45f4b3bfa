"""Statistics: counts of each queue, attempts of recent jobs, and the number of workers that a queue needs.

Counts come from the store. Attempts and run times come from the tail of the ledger (`serve.recent_runs`).
"""

from math import ceil
from typing import Annotated, Final

from fastapi import Query
from msgspec.structs import replace

from forebay.serve.actor import Actor
from forebay.serve.api.requests import NAME_PATTERN
from forebay.serve.api.responses import SECOND, Scale, Stats
from forebay.serve.api.routing import Context, Limit, NameFilter, Viewer, api_router
from forebay.serve.api.schema import problems
from forebay.serve.context import ServerContext
from forebay.serve.queue_totals import totals_for
from forebay.serve.recent_runs import RecentRuns, p99
from forebay.serve.security.visibility import require_queue
from forebay.store.protocol import Backlog

router = api_router("figures")


_NOTHING: Final = Backlog("", 0, 0, 0, 0, 0, 0, 0, None, 0)


@router.get("/stats", responses=problems(404))
async def stats(context: Context, actor: Viewer, queue: NameFilter = None, limit: Limit = 100) -> Stats:
    """Counts of one queue; or of all that this key can reach, in total and for the `limit` deepest."""
    if queue is None:
        return await context.call(_totals, context, actor, limit)
    require_queue(actor, queue)
    backlogs, recent_runs = await context.call(_read, context, queue)
    return _stats(queue, backlogs, recent_runs)


def _totals(context: ServerContext, actor: Actor, limit: int) -> Stats:
    recent_runs = context.recent_runs.refresh(context.store)
    if actor.tenant is not None:
        return replace(_stats(None, [], recent_runs), queues=[], queues_total=0)
    found = totals_for(context.store, actor, limit)
    return replace(
        _stats(None, found.deepest, recent_runs),
        waiting=found.waiting,
        ready=found.ready,
        running=found.running,
        done=found.done,
        dead=found.dead,
        cancelled=found.cancelled,
        depth=found.waiting + found.ready + found.running,
        queues=[_stats(each.queue, [each], recent_runs) for each in found.deepest],
        queues_total=found.queues,
        complete=found.complete,
    )


def _read(context: ServerContext, queue: str) -> tuple[list[Backlog], RecentRuns]:
    return context.store.backlog([queue]), context.recent_runs.refresh(context.store)


def _stats(queue: str | None, backlogs: list[Backlog], recent_runs: RecentRuns) -> Stats:
    known = backlogs or [_NOTHING]
    return Stats(
        queue,
        sum(each.waiting for each in known),
        sum(each.ready for each in known),
        sum(each.running for each in known),
        sum(each.done for each in known),
        sum(each.dead for each in known),
        sum(each.cancelled for each in known),
        sum(each.depth for each in known),
        max(each.oldest_age for each in known) / SECOND,
        sum(each.held for each in known),
        sum(each.blocked for each in known),
        p99(recent_runs.attempts[each.queue] for each in known if each.queue in recent_runs.attempts),
        recent_runs.source,
        queue is not None and known[0].paused_until is not None,
    )


@router.get("/scale", responses=problems(404))
async def scale(
    context: Context,
    actor: Viewer,
    queue: Annotated[str, Query(pattern=NAME_PATTERN)],
    within: Annotated[float, Query(gt=0, le=86_400)] = 60.0,
) -> Scale:
    """How many worker slots would finish the claimable and running jobs `within` seconds, for autoscaling.

    Jobs behind a closed gate do not count: more workers would not start them. `seconds_per_job` is the mean of recently
    ended jobs; null when there are none, and then `workers` is null too.
    """
    require_queue(actor, queue)
    backlogs, recent_runs = await context.call(_read, context, queue)
    backlog = backlogs[0] if backlogs else _NOTHING
    count, total = recent_runs.ran.get(queue, (0, 0))
    depth = backlog.ready - backlog.held + backlog.running
    if not count:
        return Scale(queue, depth, None, None, within, 0 if depth == 0 else None, 0)
    mean = total / count / SECOND
    return Scale(queue, depth, mean, mean * depth, within, ceil(mean * depth / within), count)
