"""Actions on many jobs: the dry run, the word to go, the progress, the brake."""

from copy import copy
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.patch import parse_patch, patched
from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import answer, desk_of
from forebay.serve.dashboard.moves import CHOSEN_MOST, RATE_MOST, Act, Move
from forebay.serve.dashboard.pages.jobs import filter_of
from forebay.serve.dashboard.pages.route import Operator, back, pages
from forebay.serve.dashboard.render import Sheet, html, link
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.sessions import form_of

router = pages()

RATE: Final = 50
"""Jobs a second, where nobody says."""

_TITLES: Final[dict[Act, str]] = {
    "cancel": "Cancel jobs",
    "redrive": "Redrive dead letters",
    "purge": "Purge dead letters",
}


class Words(Struct, frozen=True):
    """How a page speaks of an action: `verb` on its button, `done` of jobs, `sort` of the button."""

    verb: str
    done: str
    sort: str
    about: str


WORDS: Final[dict[Act, Words]] = {
    "cancel": Words("Cancel", "cancelled", "danger", "Jobs that have not ended"),
    "redrive": Words("Redrive", "redriven", "main", "Dead letters"),
    "purge": Words("Purge", "purged", "danger", "Dead letters"),
}


@router.get("/ui/moves/new")
async def new(request: Request, actor: Operator) -> Response:
    """The form, filled with the filter that it was opened with."""
    given = request.query_params
    wanted = filter_of(given)
    act = _act(given.get("act", "redrive" if wanted.state is State.DEAD else "cancel"))
    if wanted.state in (State.DONE, State.CANCELLED):
        raise Invalid("state", f"{wanted.state} jobs have ended for good", "choose jobs that are dead, or not ended")
    values = {"wanted": wanted, "act": act, "rate": RATE, "most": CHOSEN_MOST, "words": WORDS[act]}
    return await html(request, actor, Sheet("move_new.html", _TITLES[act], values, _nav(act)))


@router.post("/ui/moves")
async def begin(request: Request, actor: Operator) -> Response:
    """The dry run."""
    desk, form = desk_of(request), await form_of(request)
    wanted = filter_of(form)
    act = _act(form.get("act", "cancel"))
    if act != "cancel":
        wanted = msgspec.structs.replace(wanted, state=State.DEAD)
    limit = int(_number("limit", form.get("limit", ""), CHOSEN_MOST, CHOSEN_MOST))
    rate = _number("rate", form.get("rate", ""), RATE, RATE_MOST)
    patch = parse_patch(form.get("patch", "")) if act == "redrive" else None
    move = Move(actor, act, wanted, limit, rate, patch)
    desk.moves.begin(move)
    return back(link("moves", move.id))


@router.get("/ui/moves/{move_id}")
async def move(request: Request, move_id: str, actor: Operator) -> Response:
    desk = desk_of(request)
    return await answer(request, actor, partial(_sheet, _mine(desk, actor, move_id)))


async def _sheet(move: Move) -> Sheet:
    # As it is now: the page is written later, when it may have gone on.
    found = copy(move)
    previews = [(job, patched(job.payload, found.patch) if found.patch else None) for job in found.sample]
    values = {"move": found, "previews": previews, "words": WORDS[found.act]}
    return Sheet("move.html", _TITLES[found.act], values, _nav(found.act), live=True)


@router.post("/ui/moves/{move_id}/go")
async def go(request: Request, move_id: str, actor: Operator) -> Response:
    desk = desk_of(request)
    found = _mine(desk, actor, move_id)
    desk.moves.check_chosen(found)
    await record_act(desk.ground, actor, f"{found.act} many", _about(found), **_facts(found))
    desk.moves.go(found, desk.spoil)
    return back(link("moves", move_id))


@router.post("/ui/moves/{move_id}/stop")
async def stop(request: Request, move_id: str, actor: Operator) -> Response:
    desk = desk_of(request)
    found = _mine(desk, actor, move_id)
    await record_act(desk.ground, actor, f"stop {found.act} many", _about(found), moved=found.moved)
    desk.moves.stop(found)
    desk.spoil()
    return back(link("moves", move_id))


def _act(text: str) -> Act:
    for act in _TITLES:
        if act == text:
            return act
    raise Invalid("act", "it is not one", f"use {', '.join(_TITLES)}")


def _nav(act: Act) -> str:
    return "jobs" if act == "cancel" else "dead"


def _mine(desk: Desk, actor: Actor, move_id: str) -> Move:
    found = desk.moves.find(move_id, actor)
    if found is None:
        raise absent(f"move {move_id}")
    return found


def _about(found: Move) -> str:
    return f"{len(found.ids)} jobs"


def _facts(found: Move) -> dict[str, Any]:
    wanted = {name: value for name, value in msgspec.to_builtins(found.wanted).items() if value is not None}
    return {"filter": wanted, "rate": found.rate, "patch": found.patch}


def _number(field: str, text: str, usual: float, most: float) -> float:
    if not text.strip():
        return usual
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise Invalid(field, "it is not a number that fits", f"write one above 0, at most {most:g}")
    return value
