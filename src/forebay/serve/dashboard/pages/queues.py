"""One queue: its vector as a picture, gates, shares; pausing and resuming it, and opening its gates."""

from functools import partial
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from forebay.core.errors import Invalid
from forebay.core.gate import has_gate
from forebay.core.limits import INSTANT_MOST
from forebay.core.spec import QueueSpec
from forebay.core.words import SECOND
from forebay.serve.actor import Actor
from forebay.serve.dashboard.charts import star
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import answer, desk_of
from forebay.serve.dashboard.pages.route import Operator, Viewer, back, pages, whole
from forebay.serve.dashboard.render import Sheet, link
from forebay.serve.dashboard.views.queue import queue_view
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.reach import touches
from forebay.serve.security.sessions import form_of

router = pages()

_MINUTES_MOST: Final = 60 * 24 * 365


@router.get("/ui/queues/{name}")
async def queue(request: Request, name: str, actor: Viewer) -> Response:
    whole(actor)
    return await answer(request, actor, partial(_sheet, desk_of(request), actor, name))


async def _sheet(desk: Desk, actor: Actor, name: str) -> Sheet:
    return await desk.ground.call(_made, desk, actor, name)


def _made(desk: Desk, actor: Actor, name: str) -> Sheet:
    declared = desk.specs(actor).get(name)
    if declared is not None and declared.is_log:
        raise absent(f"queue {name}")
    backlog = desk.backlog(actor, name)
    if backlog is None:
        raise absent(f"queue {name}")
    desk.pulse.look()
    specs = desk.store.specs()
    spec = declared or QueueSpec(name=name)
    view = queue_view(desk.store, spec, declared is not None, backlog, lambda gate: touches(actor, gate, specs))
    values = {
        "view": view,
        "unhandled": desk.unhandled(actor).get(name, []),
        "star": star(view.axes),
        "known": desk.pulse.known,
        "rates": desk.pulse.rates([name]),
        "day": desk.ground.metrics.history.day(desk.store.now(), name.__eq__),
        "forever": INSTANT_MOST,
    }
    return Sheet("queue.html", name, values, "overview", live=True)


@router.post("/ui/queues/{name}/pause")
async def pause(request: Request, name: str, actor: Operator) -> Response:
    desk = desk_of(request)
    text = (await form_of(request)).get("minutes", "").strip()
    if text and not (text.isascii() and text.isdigit() and 0 < int(text) <= _MINUTES_MOST):
        raise Invalid("minutes", "they are not a number of minutes", f"write 1 to {_MINUTES_MOST}, or leave it empty")
    await desk.ground.call(_known, desk, actor, name)
    until = await desk.ground.call(desk.store.now) + int(text) * 60 * SECOND if text else None
    await record_act(desk.ground, actor, "pause", f"queue {name}", minutes=text or None)
    await desk.ground.call(desk.store.pause, name, until)
    desk.spoil()
    return back(link("queues", name))


@router.post("/ui/queues/{name}/resume")
async def resume(request: Request, name: str, actor: Operator) -> Response:
    desk = desk_of(request)
    await desk.ground.call(_known, desk, actor, name)
    await record_act(desk.ground, actor, "resume", f"queue {name}")
    await desk.ground.call(desk.store.resume, name)
    desk.spoil()
    return back(link("queues", name))


@router.post("/ui/queues/{name}/gate")
async def gate(request: Request, name: str, actor: Operator) -> Response:
    """Another number of slots for one of the queue's gates; none goes back to what its jobs were stamped with."""
    desk = desk_of(request)
    form = await form_of(request)
    wanted, slots = form.get("gate", ""), form.get("slots", "").strip()
    spec = await desk.ground.call(_known, desk, actor, name)
    if not has_gate(spec, wanted) or not touches(actor, wanted, await desk.ground.call(desk.store.specs)):
        raise absent(f"gate {wanted}")
    if slots and not (slots.isascii() and slots.isdigit() and len(slots) < 10):
        raise Invalid("slots", "they are not a number", "write a number of slots, or leave it empty")
    limit = int(slots) if slots else None
    await record_act(desk.ground, actor, "gate", f"gate {wanted}", queue=name, slots=limit)
    await desk.ground.call(desk.store.set_gate, wanted, limit)
    desk.spoil()
    return back(link("queues", name))


def _known(desk: Desk, actor: Actor, name: str) -> QueueSpec:
    """The queue's spec, when the queue is there for this actor."""
    whole(actor)
    spec = desk.specs(actor).get(name)
    if (spec is not None and spec.is_log) or (spec is None and desk.backlog(actor, name) is None):
        raise absent(f"queue {name}")
    return spec or QueueSpec(name=name)
