"""One queue: its axes as a chart, gates, shares; pausing and resuming it, and setting its gates."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from forebay.core.gate import has_gate
from forebay.core.humanize import SECOND
from forebay.core.limits import MAX_INSTANT, MAX_SLOTS
from forebay.core.spec import QueueSpec
from forebay.explain import cells_of
from forebay.serve.actor import Actor
from forebay.serve.dashboard.charts import star
from forebay.serve.dashboard.pages.routing import (
    Cache,
    OperatorActor,
    ViewerActor,
    form_of_type,
    pages,
    require_all_tenants,
)
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.queue import queue_view
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.visibility import controls_gate

router = pages()

_MAX_MINUTES: Final = 60 * 24 * 365


class PauseForm(Struct, frozen=True):
    """`minutes`: empty is until the queue is resumed."""

    minutes: Annotated[int, Meta(ge=1, le=_MAX_MINUTES)] | None = None


class GateForm(Struct, frozen=True):
    """`slots`: 0 closes the gate, empty restores the number of the queue's spec."""

    gate: str = ""
    slots: Annotated[int, Meta(ge=0, le=MAX_SLOTS)] | None = None


@router.get("/ui/queues/{name}")
def queue(cache: Cache, name: str, actor: ViewerActor) -> HtmlPage:
    require_all_tenants(actor)
    declared = cache.specs(actor).get(name)
    if declared is not None and declared.is_log:
        raise not_found(f"queue {name}")
    backlog = cache.backlog(actor, name)
    if backlog is None:
        raise not_found(f"queue {name}")
    cache.rate_tracker.refresh()
    specs = cache.store.specs()
    spec = declared or QueueSpec(name=name)
    view = queue_view(cache.store, spec, declared is not None, backlog, lambda gate: controls_gate(actor, gate, specs))
    values = {
        "view": view,
        "cells": cells_of(cache.store, name),
        "unhandled": cache.unhandled(actor).get(name, []),
        "star": star(view.axes),
        "known": cache.rate_tracker.known,
        "rates": cache.rate_tracker.rates([name]),
        "day": cache.context.metrics.history.day(cache.store.now(), name.__eq__),
        "forever": MAX_INSTANT,
    }
    return HtmlPage("queue.html", name, values, "overview", live=True)


@router.post("/ui/queues/{name}/pause")
def pause(cache: Cache, name: str, actor: OperatorActor, form: Annotated[PauseForm, form_of_type(PauseForm)]) -> str:
    _known(cache, actor, name)
    until = None if form.minutes is None else cache.store.now() + form.minutes * 60 * SECOND
    record_action(cache.store, actor.name, "pause", name, minutes=form.minutes)
    cache.store.pause(name, until)
    cache.invalidate()
    return link("queues", name)


@router.post("/ui/queues/{name}/resume")
def resume(cache: Cache, name: str, actor: OperatorActor) -> str:
    _known(cache, actor, name)
    record_action(cache.store, actor.name, "resume", name)
    cache.store.resume(name)
    cache.invalidate()
    return link("queues", name)


@router.post("/ui/queues/{name}/gate")
def gate(cache: Cache, name: str, actor: OperatorActor, form: Annotated[GateForm, form_of_type(GateForm)]) -> str:
    """Override the slots of one of the queue's gates."""
    spec, wanted = _known(cache, actor, name), form.gate
    if not has_gate(spec, wanted) or not controls_gate(actor, wanted, cache.store.specs()):
        raise not_found(f"gate {wanted}")
    record_action(cache.store, actor.name, "gates set", wanted, queue=name, slots=form.slots)
    cache.store.set_gate(wanted, form.slots)
    cache.invalidate()
    return link("queues", name)


def _known(cache: ViewCache, actor: Actor, name: str) -> QueueSpec:
    """The queue's spec, if this actor can see the queue."""
    require_all_tenants(actor)
    spec = cache.specs(actor).get(name)
    if (spec is not None and spec.is_log) or (spec is None and cache.backlog(actor, name) is None):
        raise not_found(f"queue {name}")
    return spec or QueueSpec(name=name)
