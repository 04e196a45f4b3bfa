"""Bulk actions: dry run, confirmation, progress, stop."""

from copy import copy
from typing import Annotated, Any, Final

import msgspec
from fastapi import Request
from msgspec import Meta, Struct

from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.payload import parse_patch, patched
from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.bulk_actions import MAX_CHOSEN, MAX_RATE, ActionKind, BulkAction
from forebay.serve.dashboard.pages.routing import Cache, OperatorActor, decode_fields, form_of_type, pages
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.search import Filter
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.sessions import require_session

router = pages()

RATE: Final = 50
"""The default rate in jobs per second."""

_TITLES: Final[dict[ActionKind, str]] = {
    "cancel": "Cancel jobs",
    "redrive": "Redrive dead letters",
    "purge": "Purge dead letters",
}


class ProposedAction(Filter, frozen=True):
    """The action that a page proposes for the jobs of its filter."""

    act: ActionKind | None = None

    def filter(self) -> Filter:
        return msgspec.convert(self, Filter, from_attributes=True)


class BulkActionForm(ProposedAction, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_CHOSEN)] = MAX_CHOSEN
    rate: Annotated[float, Meta(gt=0, le=MAX_RATE)] = RATE
    patch: str = ""


class ActionTexts(Struct, frozen=True):
    """The texts of an action: `verb` on its button, `done` for its jobs, `sort` of the button."""

    verb: str
    done: str
    sort: str
    about: str


TEXTS: Final[dict[ActionKind, ActionTexts]] = {
    "cancel": ActionTexts("Cancel", "cancelled", "danger", "Jobs that have not ended"),
    "redrive": ActionTexts("Redrive", "redriven", "main", "Dead letters"),
    "purge": ActionTexts("Purge", "purged", "danger", "Dead letters"),
}


@router.get("/ui/bulk/new", dependencies=[require_session(Role.OPERATOR)])
async def new(request: Request) -> HtmlPage:
    """The form, filled with the filter of the page that opened it."""
    given = decode_fields(request.query_params, ProposedAction)
    wanted = given.filter()
    act = given.act or ("redrive" if wanted.state is State.DEAD else "cancel")
    if wanted.state in (State.DONE, State.CANCELLED):
        raise Invalid("state", f"{wanted.state} jobs have ended for good", "choose jobs that are dead, or not ended")
    values = {"wanted": wanted, "act": act, "rate": RATE, "most": MAX_CHOSEN, "texts": TEXTS[act]}
    return HtmlPage("bulk_action_new.html", _TITLES[act], values, _nav(act))


@router.post("/ui/bulk")
async def begin(
    cache: Cache, actor: OperatorActor, form: Annotated[BulkActionForm, form_of_type(BulkActionForm)]
) -> str:
    """Start the dry run."""
    wanted, act = form.filter(), form.act or "cancel"
    if act != "cancel":
        wanted = msgspec.structs.replace(wanted, state=State.DEAD)
    patch = parse_patch(form.patch) if act == "redrive" else None
    action = BulkAction(actor, act, wanted, form.limit, form.rate, patch)
    cache.bulk_actions.dry_run(action)
    return link("bulk", action.id)


@router.get("/ui/bulk/{action_id}")
async def action(cache: Cache, action_id: str, actor: OperatorActor) -> HtmlPage:
    # A copy: the page is rendered later, when the action may have progressed.
    found = copy(_mine(cache, actor, action_id))
    previews = [(job, patched(job.payload, found.patch) if found.patch else None) for job in found.sample]
    values = {"action": found, "previews": previews, "texts": TEXTS[found.act]}
    return HtmlPage("bulk_action.html", _TITLES[found.act], values, _nav(found.act), live=True)


@router.post("/ui/bulk/{action_id}/start")
async def start(cache: Cache, action_id: str, actor: OperatorActor) -> str:
    found = _mine(cache, actor, action_id)
    cache.bulk_actions.check_chosen(found)
    await _record(cache, found, f"{found.act} many", **_facts(found))
    cache.bulk_actions.start(found, cache.invalidate)
    return link("bulk", action_id)


@router.post("/ui/bulk/{action_id}/stop")
async def stop(cache: Cache, action_id: str, actor: OperatorActor) -> str:
    found = _mine(cache, actor, action_id)
    await _record(cache, found, f"stop {found.act} many", moved=found.moved)
    cache.bulk_actions.stop(found)
    cache.invalidate()
    return link("bulk", action_id)


def _nav(act: ActionKind) -> str:
    return "jobs" if act == "cancel" else "dead"


def _mine(cache: ViewCache, actor: Actor, action_id: str) -> BulkAction:
    found = cache.bulk_actions.find(action_id, actor)
    if found is None:
        raise not_found(f"action {action_id}")
    return found


async def _record(cache: ViewCache, found: BulkAction, action: str, **facts: Any) -> None:
    about = f"{len(found.ids)} jobs"
    await cache.context.call(record_action, cache.store, found.actor.name, action, about, **facts)


def _facts(found: BulkAction) -> dict[str, Any]:
    wanted = {name: value for name, value in msgspec.to_builtins(found.wanted).items() if value is not None}
    return {"filter": wanted, "rate": found.rate, "patch": found.patch}
