"""Dead letters by their causes, and those of one cause."""

from functools import partial
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import answer, desk_of
from forebay.serve.dashboard.pages.route import Viewer, pages
from forebay.serve.dashboard.render import Sheet

router = pages()

CAUSES_SHOWN: Final = 100
_QUEUES_PROPOSED: Final = 500
_STEP_SECONDS: Final = 0.08


@router.get("/ui/dead")
async def dead(request: Request, actor: Viewer) -> Response:
    queue = request.query_params.get("queue", "")
    return await answer(request, actor, partial(_sheet, desk_of(request), actor, queue))


async def _sheet(desk: Desk, actor: Actor, queue: str) -> Sheet:
    return Sheet("dead.html", "Dead letters", await desk.ground.call(_values, desk, actor, queue), "dead", live=True)


def _values(desk: Desk, actor: Actor, queue: str) -> dict[str, Any]:
    survey = desk.survey(actor)
    if survey.due():
        survey.step(_STEP_SECONDS)
    census = survey.census()
    causes = [each for each in census.causes if actor.reaches(each.queue) and queue in ("", each.queue)]
    total = _dead(desk, actor, queue) if actor.tenant is None else sum(each.count for each in causes)
    return {
        "census": census,
        "causes": causes[:CAUSES_SHOWN],
        "more": max(0, len(causes) - CAUSES_SHOWN),
        "total": total,
        "most": max((each.count for each in causes), default=1),
        "queue": queue,
        "queues": sorted({each.queue for each in census.causes if actor.reaches(each.queue)})[:_QUEUES_PROPOSED],
    }


def _dead(desk: Desk, actor: Actor, queue: str) -> int:
    if not queue:
        return desk.figures(actor).dead
    backlog = desk.backlog(actor, queue)
    return 0 if backlog is None else backlog.dead
