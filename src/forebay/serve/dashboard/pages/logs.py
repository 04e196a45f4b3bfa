"""Retained logs: extents, the lag of a group of readers, the newest entries; replay by moving a group back."""

from fastapi import Request
from fastapi.responses import Response

from forebay.core.errors import Invalid
from forebay.core.names import check_name
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import desk_of
from forebay.serve.dashboard.pages.route import Operator, Viewer, back, pages, whole
from forebay.serve.dashboard.render import Sheet, html, link
from forebay.serve.dashboard.views.logs import LogView, log_view, logs_view
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.sessions import form_of

router = pages()


@router.get("/ui/logs")
async def logs(request: Request, actor: Viewer) -> Response:
    whole(actor)
    desk = desk_of(request)
    specs = list((await desk.ground.call(desk.specs, actor)).values())
    values = {"logs": await desk.ground.call(logs_view, desk.store, specs)}
    return await html(request, actor, Sheet("logs.html", "Logs", values, "logs"))


@router.get("/ui/logs/{name}")
async def log(request: Request, name: str, actor: Viewer, group: str = "", partition: int = 0) -> Response:
    desk = desk_of(request)
    view = await desk.ground.call(_view, desk, actor, name, group, partition)
    return await html(request, actor, Sheet("log.html", name, {"view": view}, "logs"))


@router.post("/ui/logs/{name}/rewind")
async def rewind(request: Request, name: str, actor: Operator) -> Response:
    """A group reads again what comes after this offset; -1 is all that is kept."""
    desk, form = desk_of(request), await form_of(request)
    group = check_name("group", form.get("group", ""))
    partition, offset = _whole("partition", form.get("partition", "")), _whole("offset", form.get("offset", ""))
    spec = await desk.ground.call(_known, desk, actor, name)
    if not 0 <= partition < len(await desk.ground.call(desk.store.extent, spec.name)):
        raise absent(f"partition {partition}")
    await record_act(desk.ground, actor, "rewind", f"log {name}", group=group, partition=partition, offset=offset)
    await desk.ground.call(lambda: desk.store.commit(name, group, partition, offset, rewind=True))
    return back(link("logs", name, group=group, partition=partition))


def _whole(field: str, text: str) -> int:
    if not (text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 19):
        raise Invalid(field, "it is not a whole number", "write one, such as 0")
    return int(text)


def _known(desk: Desk, actor: Actor, name: str) -> QueueSpec:
    whole(actor)
    spec = desk.specs(actor).get(name)
    if spec is None or not spec.is_log:
        raise absent(f"log {name}")
    return spec


def _view(desk: Desk, actor: Actor, name: str, group: str, partition: int) -> LogView:
    spec = _known(desk, actor, name)
    if not 0 <= partition < len(desk.store.extent(name)):
        raise absent(f"partition {partition}")
    return log_view(desk.store, spec, check_name("group", group) if group else None, partition)
