"""Looking through jobs, a page at a time: what one page reads is bounded, in rows and in jobs, found or not.

Jobs lie in three places: in runs, on their own, and among those that ended. Each place is looked at up to some id, and
the page ends where the first of them ended early. What a place can tell apart, queue and state, is left out by the
server; the rest is looked at here, as it may differ within a run.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.limits import BATCH_MOST, ID_MOST
from forebay.store.postgres.connect import Rows, Server
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import BEHIND, LATER, READY, ended_job, jobs_of_run
from forebay.store.protocol import Page, Query
from forebay.store.states import STATES

_RUNS_END: Final = statement("runs_end")
_PAGE_RUNS: Final = statement("page_runs")
_PAGE_HELD: Final = statement("page_held")
_ENDED_END: Final = statement("ended_end")
_PAGE_ENDED: Final = statement("page_ended")
_DEAD_END: Final = statement("dead_end")
_PAGE_DEAD: Final = statement("page_dead")

_PROBES: Final = 2_000
"""Rows that one page looks at in each place, at most."""

_SPARE: Final = 2
"""Rows may come in between while a page is made; not so many times as many."""

_OPEN: Final = {State.WAITING: [BEHIND, LATER], State.READY: [READY]}
_N: Final = 2
"""Where the columns of a run tell how many jobs it has."""


class _Part(NamedTuple):
    """What one place has. `end`: it was looked at up to this id; None: to its end."""

    jobs: list[Job]
    end: int | None


class Look(NamedTuple):
    """One page of one query. `wanted`: so many jobs of each place are enough."""

    server: Server
    query: Query
    after: int
    wanted: int
    now: Instant

    def page(self, limit: int) -> Page:
        parts = self._parts()
        ends = [part.end for part in parts if part.end is not None]
        end = min(ends) if ends else None
        # Whoever moves meanwhile may be seen in two places: the later look is the newer one.
        found = {job.id: job for part in parts for job in part.jobs}
        jobs = [found[job_id] for job_id in sorted(found) if end is None or job_id <= end]
        matching = [job for job in jobs if job.id > self.after and matches(job, self.query)]
        return Page(matching, end) if len(matching) <= limit else Page(matching[:limit], matching[limit - 1].id)

    def _parts(self) -> list[_Part]:
        state = self.query.state
        if state is not None and state.terminal:
            return [self._ended()]
        if state is State.RUNNING:
            return [self._held(single) for single in (False, True)]
        open_ = [self._runs(single) for single in (False, True)]
        return [*open_, self._ended()] if state is None else open_

    def _runs(self, single: bool) -> _Part:
        probes = _PROBES if self._picks else self.wanted
        last = self._last(_RUNS_END, single, self.after, probes - 1)
        states = _OPEN.get(self.query.state) if self.query.state else None
        place = (single, self.after, ID_MOST if last is None else last, _SPARE * probes)
        picked = (states, states, self.query.queue, self.query.queue)
        return self._part(self._fetch(_PAGE_RUNS, (*place, *picked, self.wanted, self.wanted)), last)

    def _held(self, single: bool) -> _Part:
        queue = self.query.queue
        values = (single, self.after, queue, queue, self.wanted, single, self.wanted)
        return self._part(self._fetch(_PAGE_HELD, values), None)

    def _part(self, rows: Sequence[Sequence[Any]], last: int | None) -> _Part:
        """The jobs of these runs. As many as were wanted: there may be more after the last one."""
        jobs = [job for row in rows for job, _ in jobs_of_run(row)]
        return _Part(jobs, rows[-1][1] if sum(row[_N] for row in rows) >= self.wanted else last)

    def _ended(self) -> _Part:
        query = self.query
        end, page = (_DEAD_END, _PAGE_DEAD) if query.state is State.DEAD else (_ENDED_END, _PAGE_ENDED)
        probes = _PROBES if self._picks else self.wanted
        last = self._last(end, self.after, probes - 1)
        state = None if query.state is None else STATES.index(query.state)
        place = (self.after, ID_MOST if last is None else last, _SPARE * probes)
        picked = (state, state, query.queue, query.queue, query.kind, query.kind)
        rows = self._fetch(page, (*place, self.now, *picked, self.wanted))
        return _Part([ended_job(row) for row in rows], rows[-1][0] if len(rows) >= self.wanted else last)

    @property
    def _picks(self) -> bool:
        """Whether the server leaves some out, and so may look at more than it gives."""
        return self.query.queue is not None or self.query.state is not None or self.query.kind is not None

    def _fetch(self, statement: str, values: Sequence[Any]) -> Rows:
        """Under an old snapshot a page may walk over much that is gone."""
        return self.server.query(statement, values, within=self.server.long)

    def _last(self, end: str, *values: object) -> int | None:
        """The id up to which it is looked at; None: to the end."""
        found = self._fetch(end, values)
        return found[0][0] if found else None


def browse(server: Server, query: Query, after: int, limit: int, now: Instant) -> Page:
    plain = query.kind is None and query.tenant is None and query.subject is None and query.suspect is None
    return Look(server, query, max(0, min(after, ID_MOST)), limit + 1 if plain else BATCH_MOST, now).page(limit)


def matches(job: Job, query: Query) -> bool:
    return all(
        wanted is None or wanted == found
        for wanted, found in (
            (query.queue, job.queue),
            (query.state, job.state),
            (query.kind, job.kind),
            (query.tenant, job.tenant),
            (query.subject, job.subject),
            (query.suspect, job.suspect),
        )
    )
