"""Figures for programs: what each queue holds, how many attempts jobs take, how many workers would be kept busy.

Counts are the store's own. What takes history comes from the tail of the ledger (`serve.recent`), and says so.
"""

from math import ceil
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from msgspec.structs import replace

from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import SECOND, Scale, Stats
from forebay.serve.api.bodies import NAME_PATTERN
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, must_rule
from forebay.serve.api.jobs import Limit, NameFilter
from forebay.serve.figures import figures_of
from forebay.serve.ground import Ground
from forebay.serve.recent import Recent, p99
from forebay.serve.security.door import need
from forebay.store.protocol import Backlog

router = APIRouter(tags=["figures"])


_NOTHING: Final = Backlog("", 0, 0, 0, 0, 0, 0, 0, None, 0)


@router.get("/stats", **described(Stats, problems=(404,)))
async def stats(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER)],
    queue: NameFilter = None,
    limit: Limit = 100,
) -> Response:
    """Counts of one queue; or of all that this key reaches together, and of the `limit` deepest one by one."""
    ground: Ground = request.app.state.ground
    if queue is None:
        return Answer(await ground.call(_together, ground, actor, limit))
    must_rule(actor, queue)
    backlogs, recent = await ground.call(_looked, ground, queue)
    return Answer(_stats(queue, backlogs, recent))


def _together(ground: Ground, actor: Actor, limit: int) -> Stats:
    recent = ground.recent.look(ground.store)
    if actor.tenant is not None:
        return replace(_stats(None, [], recent), queues=[], queues_total=0)
    found = figures_of(ground.store, actor, limit)
    return replace(
        _stats(None, found.deepest, recent),
        waiting=found.waiting,
        ready=found.ready,
        running=found.running,
        done=found.done,
        dead=found.dead,
        cancelled=found.cancelled,
        depth=found.waiting + found.ready + found.running,
        queues=[_stats(each.queue, [each], recent) for each in found.deepest],
        queues_total=found.queues,
        whole=found.whole,
    )


def _looked(ground: Ground, queue: str) -> tuple[list[Backlog], Recent]:
    return ground.store.backlog([queue]), ground.recent.look(ground.store)


def _stats(queue: str | None, backlogs: list[Backlog], recent: Recent) -> Stats:
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
        p99(recent.attempts[each.queue] for each in known if each.queue in recent.attempts),
        recent.source,
        queue is not None and known[0].paused_until is not None,
    )


@router.get("/scale", **described(Scale, problems=(404,)))
async def scale(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER)],
    queue: Annotated[str, Query(pattern=NAME_PATTERN)],
    within: Annotated[float, Query(gt=0, le=86_400)] = 60.0,
) -> Response:
    """How many slots would work off what is claimable and running `within` seconds: for whoever scales workers.

    Jobs behind a closed gate do not count: more workers would not start them. Seconds a job are the mean of those that
    ended lately; null while none has, and then nothing can be said.
    """
    ground: Ground = request.app.state.ground
    must_rule(actor, queue)
    backlogs, recent = await ground.call(_looked, ground, queue)
    backlog = backlogs[0] if backlogs else _NOTHING
    count, total = recent.ran.get(queue, (0, 0))
    depth = backlog.ready - backlog.held + backlog.running
    if not count:
        return Answer(Scale(queue, depth, None, None, within, 0 if depth == 0 else None, 0))
    mean = total / count / SECOND
    return Answer(Scale(queue, depth, mean, mean * depth, within, ceil(mean * depth / within), count))
