"""The first page: rates first, then what is there, then what is wrong."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.serve.actor import Actor
from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.live import answer, desk_of
from forebay.serve.dashboard.pages.route import Viewer, back, pages
from forebay.serve.dashboard.render import Sheet, link
from forebay.serve.dashboard.views.pulse import Rates
from forebay.serve.figures import Figures
from forebay.serve.security.reach import sees_all
from forebay.store.protocol import Backlog

router = pages()

QUEUES_SHOWN: Final = 100
_VERDICT: Final = "verdict.json"
_VERDICT_BYTES: Final = 4 * 1024 * 1024
_SURVEY_SECONDS: Final = 0.02


class Line(Struct, frozen=True):
    """One queue."""

    backlog: Backlog
    rates: Rates
    dead_since: int | None


class LastVerdict(Struct, frozen=True):
    """What the audit said last, as far as the page shows it."""

    answer: str
    at: int = 0
    reasons: list[str] = []


@router.get("/ui/")
async def overview(request: Request, actor: Viewer) -> Response:
    if actor.tenant is not None:
        return back(link("jobs"))
    return await answer(request, actor, partial(_sheet, desk_of(request), actor))


async def _sheet(desk: Desk, actor: Actor) -> Sheet:
    return Sheet("overview.html", "Overview", await desk.ground.call(_values, desk, actor), "overview", live=True)


def _values(desk: Desk, actor: Actor) -> dict[str, Any]:
    desk.pulse.look()
    counted = desk.figures_soon(actor)
    figures = counted or Figures([], 0, 0, 0, 0, 0, 0, 0)
    backlogs = figures.deepest
    survey = desk.survey(actor)
    if survey.due() and figures.dead:
        survey.step(_SURVEY_SECONDS)
    census = survey.census()
    busy, since = desk.pulse.busy(), census.since()
    ranked = sorted(backlogs, key=lambda each: (-busy.get(each.queue, 0), -each.depth, each.queue))
    shown = ranked[:QUEUES_SHOWN]
    lines = [Line(each, desk.pulse.rates([each.queue]), since.get(each.queue)) for each in shown]
    return {
        "known": desk.pulse.known,
        "counting": counted is None,
        "day": desk.ground.metrics.history.day(desk.store.now(), None if sees_all(actor) else actor.reaches),
        "rates": desk.pulse.rates(None if sees_all(actor) else {each.queue for each in backlogs}),
        "lines": lines,
        "unhandled": desk.unhandled(actor),
        "more": max(0, figures.queues - len(shown)),
        "ready": figures.ready,
        "running": figures.running,
        "waiting": figures.waiting,
        "dead": figures.dead,
        "oldest": max((each.oldest_age for each in backlogs), default=0),
        "dead_since": min((since[each.queue] for each in backlogs if each.queue in since), default=None),
        "verdict": _verdict(desk.ground.settings.lake),
    }


def _verdict(lake: str | None) -> LastVerdict | None:
    """None: no lake, or nothing was judged in it yet."""
    if lake is None:
        return None
    try:
        with (Path(lake) / _VERDICT).open("rb") as file:
            return msgspec.json.decode(file.read(_VERDICT_BYTES), type=LastVerdict)
    except (OSError, msgspec.DecodeError):
        return None
