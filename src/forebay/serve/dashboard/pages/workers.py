"""Workers: what each owner holds, since when, and how long its leases have left."""

from functools import partial

from fastapi import Request
from fastapi.responses import Response

from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import answer, desk_of
from forebay.serve.dashboard.pages.route import Viewer, pages, whole
from forebay.serve.dashboard.render import Sheet
from forebay.serve.dashboard.views.workers import workers_view

router = pages()


@router.get("/ui/workers")
async def workers(request: Request, actor: Viewer) -> Response:
    whole(actor)
    return await answer(request, actor, partial(_sheet, desk_of(request), actor))


async def _sheet(desk: Desk, actor: Actor) -> Sheet:
    return await desk.ground.call(_made, desk, actor)


def _made(desk: Desk, actor: Actor) -> Sheet:
    desk.pulse.look()
    running = desk.figures(actor).running
    claims = desk.pulse.claims() if actor.queues == ("*",) else {}
    view = workers_view(desk.store, actor, running, claims)
    return Sheet("workers.html", "Workers", {"view": view, "known": desk.pulse.known}, "workers", live=True)
