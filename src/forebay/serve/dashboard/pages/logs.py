"""Retained logs: extents, lag of the groups, newest entries; replay by rewinding a group."""

from typing import Annotated

from fastapi import Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.core.names import check_name
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.api.requests import Name, Offset
from forebay.serve.dashboard.live import view_cache
from forebay.serve.dashboard.pages.routing import Operator, Viewer, back, form_of_type, pages, require_all_tenants
from forebay.serve.dashboard.render import HtmlPage, link, render_page
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.logs import LogDetail, log_view, logs_view
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import record_action

router = pages()


class RewindForm(Struct, frozen=True):
    """The group reads again what follows this offset; -1 is everything that is kept."""

    group: Name
    partition: int
    offset: Offset


@router.get("/ui/logs")
async def logs(request: Request, actor: Viewer) -> Response:
    require_all_tenants(actor)
    cache = view_cache(request)
    specs = list((await cache.context.call(cache.specs, actor)).values())
    values = {"logs": await cache.context.call(logs_view, cache.store, specs)}
    return await render_page(request, actor, HtmlPage("logs.html", "Logs", values, "logs"))


@router.get("/ui/logs/{name}")
async def log(request: Request, name: str, actor: Viewer, group: str = "", partition: int = 0) -> Response:
    cache = view_cache(request)
    view = await cache.context.call(_view, cache, actor, name, group, partition)
    return await render_page(request, actor, HtmlPage("log.html", name, {"view": view}, "logs"))


@router.post("/ui/logs/{name}/rewind")
async def rewind(
    request: Request, name: str, actor: Operator, form: Annotated[RewindForm, form_of_type(RewindForm)]
) -> Response:
    """Move a group's position."""
    cache = view_cache(request)
    group, partition, offset = form.group, form.partition, form.offset
    spec = await cache.context.call(_known, cache, actor, name)
    if not 0 <= partition < len(await cache.context.call(cache.store.extent, spec.name)):
        raise not_found(f"partition {partition}")
    await record_action(cache.context, actor, "rewind", f"log {name}", group=group, partition=partition, offset=offset)
    await cache.context.call(lambda: cache.store.commit(name, group, partition, offset, rewind=True))
    return back(link("logs", name, group=group, partition=partition))


def _known(cache: ViewCache, actor: Actor, name: str) -> QueueSpec:
    require_all_tenants(actor)
    spec = cache.specs(actor).get(name)
    if spec is None or not spec.is_log:
        raise not_found(f"log {name}")
    return spec


def _view(cache: ViewCache, actor: Actor, name: str, group: str, partition: int) -> LogDetail:
    spec = _known(cache, actor, name)
    if not 0 <= partition < len(cache.store.extent(name)):
        raise not_found(f"partition {partition}")
    return log_view(cache.store, spec, check_name("group", group) if group else None, partition)
