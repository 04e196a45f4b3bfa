"""Jobs, queues and gates as they are shown."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any, Final

import msgspec

from forebay.core.instant import Instant
from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.limits import MAX_AHEAD, MAX_BATCH, MAX_PARKED
from forebay.store.protocol import Backlog, GateUse, Hold, Page, Query, Totals
from forebay.store.redis.records import jobs_of, packed, sid, sids
from forebay.store.redis.session import Session
from forebay.store.states import STATES

_PROBES: Final = 5_000
"""How many jobs one page reads, matching or not, so that no page is a long read."""

_MAX_ID: Final = 10**16 - 1


class Observing:
    """Verbs that only read."""

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

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        found = self._session.call("gates", after, limit, prefix, MAX_PARKED)
        return [
            GateUse(name.decode(), slots, used, given[0] if given else None, parked)
            for name, slots, used, parked, *given in found
        ]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        return [name.decode() for name, *_ in self._session.call("queues", after, limit, prefix)]

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        names, every = packed(queues or ()), "all" if queues is None else ""
        now, *found = self._session.call("backlog", names, every, MAX_AHEAD)
        return [_backlog(each, now) for each in found]

    def totals(self, limit: int) -> Totals:
        """In pages, so that no call holds the server up: a queue may have moved while others were counted."""
        counted, after = list[tuple[str, list[int]]](), ""
        while page := self._session.call("queues", after, MAX_BATCH, ""):
            counted += [(name.decode(), [int(count or 0) for count in counts]) for name, *counts in page]
            after = counted[-1][0]
        deepest = nsmallest(limit, counted, key=lambda each: (-sum(each[1][:3]), -each[1][4], each[0]))
        sums = [sum(counts[state] for _, counts in counted) for state in range(len(STATES))]
        return Totals(self.backlog([name for name, _ in deepest]) if deepest else [], len(counted), *sums)

    def _add_progress(self, found: dict[int, Job | None]) -> None:
        """Running jobs show what was reported of their delivery."""
        session = self._session
        running = [job_id for job_id, job in found.items() if job is not None and job.state is State.RUNNING]
        reports = session.command("HMGET", session.key("progress"), *sids(running)) if running else ()
        for job_id, report in zip(running, reports, strict=True):
            if report is not None:
                delivery, portion, note, at = msgspec.msgpack.decode(report)
                found[job_id] = with_progress(found[job_id], delivery, Progress(portion, note, int(at)))


def _backlog(row: Sequence[Any], now: Instant) -> Backlog:
    name, waiting, ready, running, done, dead, cancelled, oldest, paused, keys, held, blocked = row
    return Backlog(
        name.decode(),
        waiting,
        ready,
        running,
        done,
        dead,
        cancelled,
        oldest_age=max(0, now - oldest) if ready else 0,
        paused_until=paused if paused > now else None,
        keys=keys,
        held=held,
        blocked=blocked,
    )
