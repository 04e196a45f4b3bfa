"""Single jobs as an operator sees them: reading, what holds them, cancelling, and what becomes of the dead."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.instant import Instant
from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.limits import MAX_AHEAD
from forebay.store.protocol import CancelAnswer, Hold, Page, Query
from forebay.store.redis.row import jobs_of, packed, sid, sids
from forebay.store.redis.session import Session, refuse
from forebay.store.states import STATES

_CANCELLED: Final = (CancelAnswer.GONE, CancelAnswer.CANCELLED, CancelAnswer.REQUESTED)
_PROBES: Final = 5_000
"""How many jobs one page looks at, found or not: a page is never a long read."""

_MAX_ID: Final = 10**16 - 1


class Jobs:
    """Jobs by their ids and by what they are."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        known = sids(ids)
        reply = self._session.call("get", packed(known)) if known else ()
        found: dict[int, Job | None] = {job.id: job for job in jobs_of(reply, results=True)}
        self._add_progress(found)
        return [found.get(job_id) for job_id in ids]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        wanted = {name: getattr(query, name) for name in ("queue", "kind", "tenant", "subject", "suspect")}
        wanted["state"] = None if query.state is None else STATES.index(query.state)
        given = {name: value for name, value in wanted.items() if value is not None}
        start = sid(max(0, min(after, _MAX_ID)))
        last, *found = self._session.call("browse", start, limit, _PROBES, packed(given))
        return Page(list(jobs_of(found, results=True)), int(last) if last else None)

    def hold(self, job_id: int) -> Hold | None:
        found = self._session.call("hold", *sids([job_id]), MAX_AHEAD) if sids([job_id]) else ()
        if not found:
            return None
        gate, slots, used, before, head, opens_at = found
        at = opens_at if isinstance(opens_at, int) else None
        return Hold(gate.decode(), slots, used, before, int(head) if head else None, at)

    def ahead(self, job_id: int) -> int | None:
        place = self._session.call("ahead", *sids([job_id]), MAX_AHEAD) if sids([job_id]) else -1
        return None if place < 0 else min(place, MAX_AHEAD)

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        known = sids(ids)
        answers = iter(self._session.call("cancel", packed(known), tokened=True) if known else ())
        return [_CANCELLED[next(answers)] if sids([job_id]) else CancelAnswer.GONE for job_id in ids]

    def redrive(self, ids: Sequence[int]) -> list[int]:
        reply: Sequence[Any] = self._session.call("redrive", packed(sids(ids)), tokened=True)
        if reply[0] != b"ok":
            refuse(reply)
        return [int(each) for each in reply[1:]]

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        purged: int = self._session.call("purge", STATES.index(state), before, limit, queue or "", tokened=True)
        return purged

    def discard(self, ids: Sequence[int]) -> list[int]:
        return [int(each) for each in self._session.call("discard", packed(sids(ids)), tokened=True)]

    def _add_progress(self, found: dict[int, Job | None]) -> None:
        """Running jobs show what was reported of their delivery."""
        session = self._session
        running = [job_id for job_id, job in found.items() if job is not None and job.state is State.RUNNING]
        reports = session.command("HMGET", session.key("progress"), *sids(running)) if running else ()
        for job_id, report in zip(running, reports, strict=True):
            if report is not None:
                delivery, portion, note, at = msgspec.msgpack.decode(report)
                found[job_id] = with_progress(found[job_id], delivery, Progress(portion, note, int(at)))
