"""Jobs: a list with filters, and one job with its timeline, its errors and the reason for its state."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import Request
from msgspec.structs import replace

from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.explain import QueuePosition, position_of, reasons, with_cell
from forebay.serve.actor import Actor
from forebay.serve.dashboard.charts import life
from forebay.serve.dashboard.pages.routing import (
    MAX_ID,
    Before,
    Cache,
    OperatorActor,
    ViewerActor,
    decode_fields,
    pages,
    parse_id,
)
from forebay.serve.dashboard.render import HtmlPage, link
from forebay.serve.dashboard.view_cache import ViewCache
from forebay.serve.dashboard.views.search import Filter, find_newest
from forebay.serve.dashboard.views.timeline import (
    ENDED,
    FORGOTTEN,
    Timeline,
    timeline_of,
    timeline_of_gone,
    was_given,
    without_owners,
)
from forebay.serve.problems import Problem, not_found
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.redact import redact_job, redact_text, secrets_of
from forebay.serve.security.visibility import hide_owner, sees_job

router = pages()

_QUEUES_PROPOSED: Final = 500


@router.get("/ui/jobs")
def jobs(request: Request, cache: Cache, actor: ViewerActor, before: Before, text: str = "") -> HtmlPage | str:
    """An invalid filter is shown as it was typed, beside what is wrong with it."""
    given = request.query_params
    if number := parse_id(text):
        return link("jobs", number)
    typed = {name: given.get(name, "") for name in Filter.__struct_fields__}
    values: dict[str, Any] = {"given": typed, "wrong": "", "found": None}
    try:
        wanted = decode_fields(given, Filter)
        newest = cache.newest.find() + 1 if before is None else before
        values["found"] = find_newest(cache.store, actor, wanted, newest)
    except Problem as error:
        wanted, values["wrong"] = Filter(), error.detail
    values |= {"wanted": wanted, "states": list(State), "first": before is None}
    counted = cache.totals_soon(actor)
    names = [] if counted is None else sorted(each.queue for each in counted.deepest)
    values["queues"] = names[:_QUEUES_PROPOSED]
    return HtmlPage("jobs.html", "Jobs", values, "jobs", status=422 if values["wrong"] else 200)


@router.get("/ui/jobs/{job_id}")
def job(cache: Cache, job_id: int, actor: ViewerActor, did: str = "") -> HtmlPage:
    if not 0 < job_id <= MAX_ID:
        raise not_found(f"job {job_id}")
    found = cache.store.get([job_id])[0]
    if found is None:
        return _gone(cache, actor, job_id, did)
    if not sees_job(actor, found):
        raise not_found(f"job {job_id}")
    timeline, now = _without_secrets(_seen(actor, timeline_of(cache.store, found)), found), cache.store.now()
    shown = redact_job(hide_owner(actor, found))
    values = {
        "job": shown,
        "timeline": timeline,
        "stretches": life(timeline.moments, now, found.state is State.RUNNING),
        "why": _why(cache, actor, shown, now),
        "errors": shown.errors[::-1],
        "notice": _NOTICES.get(did, ""),
    }
    return HtmlPage("job.html", f"Job {job_id}", values, "jobs", live=True)


def _why(cache: ViewCache, actor: Actor, found: Job, now: Instant) -> list[str]:
    """The reasons for its state; a tenant is not shown how many other jobs there are."""
    backlog = cache.backlog(actor, found.queue)
    if backlog is None:
        return []
    position = position_of(cache.store, found) if actor.tenant is None else QueuePosition()
    sentences = reasons(found, backlog, now, position, cache.workers(), others=actor.tenant is None)
    if actor.tenant is None:
        sentences = with_cell(cache.store, found, sentences)
    return [redact_text(each) for each in sentences[1:] if not each.startswith("attempt ")]


_NOTICES: Final = {
    "cancelled": "It was cancelled and will not run.",
    "requested": "It is running; its worker was notified.",
    "gone": "Nothing was done: the job has already ended.",
    "redriven": "It was redriven and has all its attempts again.",
    "alive": "Nothing was done: the job is no longer dead.",
    "purged": "It was purged.",
    "enqueued": "It was enqueued just now, outside of its schedule.",
}


def _seen(actor: Actor, timeline: Timeline) -> Timeline:
    return timeline if actor.tenant is None else without_owners(timeline)


def _without_secrets(timeline: Timeline, job: Job) -> Timeline:
    """The timeline with its errors redacted: the ledger has them as they were settled."""
    known = secrets_of(job)
    moments = [
        moment if moment.error is None else replace(moment, error=redact_text(moment.error, known))
        for moment in timeline.moments
    ]
    return replace(timeline, moments=moments)


def _gone(cache: ViewCache, actor: Actor, job_id: int, did: str) -> HtmlPage:
    """The page of a job that was done and removed, or purged: from the ledger, else from its schedule.

    Where neither has a record, an actor that may see every job gets a page that says so, if its id was ever assigned.
    """
    timeline = timeline_of_gone(cache.store, job_id) or _of_schedule(cache, job_id)
    if timeline is None and actor.queues == ("*",) and actor.tenant is None and was_given(cache.store, job_id):
        timeline = Timeline([], FORGOTTEN)
    elif timeline is None or timeline.queue is None or not actor.sees(timeline.queue, timeline.tenant):
        raise not_found(f"job {job_id}")
    ended = timeline.moments[-1].at if timeline.moments else 0
    values = {
        "job_id": job_id,
        "timeline": _seen(actor, timeline),
        "stretches": life(timeline.moments, ended, running=False),
        "ended": ENDED.get(timeline.moments[-1].change, "") if timeline.moments else "",
        "notice": _NOTICES.get(did, ""),
    }
    return HtmlPage("gone.html", f"Job {job_id}", values, "jobs")


def _of_schedule(cache: ViewCache, job_id: int) -> Timeline | None:
    for schedule in cache.store.schedules():
        if schedule.last_job == job_id:
            draft = schedule.draft
            cut = f"It was enqueued by the schedule {schedule.name}. The ledger has no record of how it ended."
            return Timeline([], cut, draft.queue, draft.kind, draft.tenant)
    return None


@router.post("/ui/jobs/{job_id}/cancel")
def cancel(cache: Cache, job_id: int, actor: OperatorActor) -> str:
    return _change(cache, actor, job_id, "cancel", lambda ids: cache.store.cancel(ids)[0].value)


@router.post("/ui/jobs/{job_id}/redrive")
def redrive(cache: Cache, job_id: int, actor: OperatorActor) -> str:
    return _change(cache, actor, job_id, "dlq redrive", lambda ids: "redriven" if cache.store.redrive(ids) else "alive")


@router.post("/ui/jobs/{job_id}/purge")
def purge(cache: Cache, job_id: int, actor: OperatorActor) -> str:
    return _change(cache, actor, job_id, "dlq purge", lambda ids: "purged" if cache.store.purge_dead(ids) else "alive")


def _change(cache: ViewCache, actor: Actor, job_id: int, action: str, verb: Callable[[list[int]], str]) -> str:
    """Record the action, apply the verb, and show the job with the notice that the verb returns."""
    found = cache.store.get([job_id])[0] if 0 < job_id <= MAX_ID else None
    if found is None or not sees_job(actor, found):
        raise not_found(f"job {job_id}")
    record_action(cache.store, actor.name, action, f"job {job_id}", queue=found.queue)
    did = verb([job_id])
    cache.invalidate()
    return link("jobs", job_id, did=did)
