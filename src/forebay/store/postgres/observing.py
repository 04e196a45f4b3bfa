"""Reads of jobs, queues and gates, page by page, and waits for their changes.

Reads take no locks: they wait for no writer, and no writer waits for them. What one page reads is bounded in rows and
in jobs, matching or not. Jobs are in four places: runs of many jobs, runs of one, packs, and ended jobs. All are read
in one snapshot, since jobs move between them. Each place is read up to some id, and the page ends at the smallest of
these. The server filters by queue and state; all other conditions are checked here, since they may differ within a run.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from forebay.core.gate import Gate
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, Progress, State, with_progress
from forebay.core.lease import Fence
from forebay.core.limits import MAX_AHEAD, MAX_BATCH, MAX_ID, MAX_INSTANT
from forebay.core.spec import QueueSpec
from forebay.engine.lanes import GateState, gate_hold
from forebay.engine.lines import line_hold
from forebay.store.checks import LAST
from forebay.store.postgres.claims import Claims, Holder, unfinished
from forebay.store.postgres.connect import Connection, Rows, Server, array_literal
from forebay.store.postgres.intake import empty_inbox
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import BEHIND, LATER, READY, EndedRow, RunRow, jobs_of_run
from forebay.store.postgres.session import Session
from forebay.store.postgres.waiting import ending_of, requests_to
from forebay.store.protocol import Backlog, GateUse, Hold, Page, Query, Totals
from forebay.store.states import STATES

_RUNS_END: Final = statement("runs_end")
_PAGE_RUNS: Final = statement("page_runs")
_PAGE_HELD: Final = statement("page_held")
_ENDED_END: Final = statement("ended_end")
_PAGE_ENDED: Final = statement("page_ended")
_DEAD_END: Final = statement("dead_end")
_PAGE_DEAD: Final = statement("page_dead")
_ENDED: Final = statement("ended")
_BACKLOG: Final = statement("backlog")
_BACKLOGS: Final = statement("backlogs")
_QUEUE_NAMES: Final = statement("queue_names")
_TOTALS: Final = statement("totals")
_SUMS: Final = 7
_WORK_AT: Final = statement("work_at")
_GATES: Final = statement("gates")
_GATE_STATES: Final = statement("gate_states")
_DUE_JOB: Final = statement("due_job")
_LANE_HEAD: Final = statement("lane_head")
_LINE_HEAD: Final = statement("line_head")
_LINE_BEFORE: Final = statement("line_before")
_AHEAD: Final = statement("ahead")
_UNFINISHED: Final = statement("unfinished")
_PROGRESS: Final = statement("progress")
_CHANGES: Final = "SELECT changes FROM forebay.holder WHERE id = %s"
_SPECS: Final = "SELECT spec FROM forebay.queue WHERE spec IS NOT NULL ORDER BY name"

_HAS_INDEX: Final = (
    "SELECT FROM pg_index WHERE indrelid = 'forebay.ended'::regclass AND indisvalid "
    "AND right(pg_get_indexdef(indexrelid), length(%s::text)) = %s::text"
)
_PATH: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)

_PROBES: Final = 2_000
"""Rows that one page reads in each place, at most."""

_SPARE: Final = 2
"""Rows may be inserted between the two statements of a place; at most so many times as many are read."""

_OPEN: Final = {State.WAITING: [BEHIND, LATER], State.READY: [READY]}


class Observing:
    """The reading verbs. `claims` has the leases and the cursors of this process."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session = session
        self._claims = claims

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        known = [job_id for job_id in ids if 0 < job_id <= MAX_ID]
        empty_inbox(self._session, known)
        found = unfinished(self._session, known)
        missing = [job_id for job_id in known if job_id not in found]
        if missing:
            rows = self._session.server.query(_ENDED, (missing, self._session.now()))
            found |= {row.id: row.job() for row in map(EndedRow._make, rows)}
        # A standby has no unlogged tables.
        shown = {} if self._session.server.standby else found
        running = [job.id for job in shown.values() if job.state is State.RUNNING]
        jobs: dict[int, Job | None] = dict(found)
        for job_id, delivery, *rest in self._session.server.query(_PROGRESS, (running,)) if running else ():
            jobs[job_id] = with_progress(found[job_id], delivery, Progress(*rest))
        return [jobs.get(job_id) for job_id in ids]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        """One page reads a bounded number of jobs, matching or not."""
        empty_inbox(self._session)
        return browse(self._session.server, query, after, limit, self._session.now())

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        empty_inbox(self._session)
        now = self._session.now()
        names = None if queues is None else list(queues)
        which = (
            (_BACKLOGS, (now,) * 3) if names is None else (_BACKLOG, (now, names, names, names, names, now, names, now))
        )
        found = {row[0]: row for row in self._session.server.query(*which)}
        return [_backlog(found[name], now) for name in (found if names is None else names)]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        empty_inbox(self._session)
        page = self._session.server.query(_QUEUE_NAMES, (self._session.now(), after, prefix, prefix + LAST, limit))
        return [name for (name,) in page]

    def totals(self, limit: int) -> Totals:
        empty_inbox(self._session)
        now = self._session.now()
        rows = self._session.server.query(_TOTALS, (now, limit, now, now))
        counts = [int(count) for count in rows[0][:_SUMS]] if rows else [0] * _SUMS
        return Totals([_backlog(row[_SUMS:], now) for row in rows], *counts)

    def specs(self) -> list[QueueSpec]:
        return [QueueSpec.from_json(text) for (text,) in self._session.server.query(_SPECS)]

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        page = (after, prefix, prefix + LAST)
        return [
            GateUse(*row)
            for row in self._session.server.query(_GATES, (*page, self._session.now(), limit, *page, limit, limit))
        ]

    def hold(self, job_id: int) -> Hold | None:
        empty_inbox(self._session)
        found = self._session.server.query(_DUE_JOB, (job_id,)) if 0 < job_id <= MAX_ID else []
        if not found:
            return None
        _, queue, state, lane, line, gates, _, due_at = found[0]
        now = self._session.now()
        if state == READY:
            return self._held_at_gate(job_id, queue, lane, gates or (), now)
        return self._held_in_line(job_id, line) if state == BEHIND and due_at <= now else None

    def ahead(self, job_id: int) -> int | None:
        empty_inbox(self._session)
        found = (
            self._session.server.query(_AHEAD, (MAX_AHEAD, MAX_AHEAD, job_id, job_id)) if 0 < job_id <= MAX_ID else []
        )
        return int(found[0][0]) if found else None

    def _held_at_gate(self, job_id: int, queue: str, lane: str, names: Any, now: Instant) -> Hold | None:
        """The first gate of the whole queue or of the lane that is closed for the first job of the lane."""
        self._session.specs.reload([queue])
        stamper = self._session.specs.of(queue).stamper
        stamped = [gate for name in names if (gate := stamper.gate(name)) is not None]
        gates: list[Gate] = [*stamper.whole, *stamped]
        head = self._session.server.query(_LANE_HEAD, (queue, lane, now)) if gates else []
        if not head:
            return None
        rows = self._session.server.query(_GATE_STATES, ([gate.name for gate in gates],))
        states = {name: GateState(name, *rest) for name, *rest in rows}
        numbered = [(gate, states[gate.name]) for gate in gates]
        ((cost, *_),) = head
        return gate_hold(numbered, cost, now, lambda: self.ahead(job_id) or 0)

    def _held_in_line(self, job_id: int, line: str) -> Hold | None:
        query = self._session.server.query
        found = query(_LINE_HEAD, (line,))
        if not found:
            return None
        head, is_running = found[0]
        return line_hold(
            line, head, is_running, job_id, lambda: query(_LINE_BEFORE, (line, head, job_id, MAX_AHEAD))[0][0]
        )

    def wait(self, queues: Sequence[str], duration: Duration) -> bool:
        # Where gates may hold jobs, a notification is only a reason to poll.
        hints = [queue for queue in queues if not self._session.specs.of(queue).lock_keys]
        return self._session.waiters.until_work(
            queues, self._session.now() + duration, lambda: self._work_at(queues), hints
        )

    def _work_at(self, queues: Sequence[str]) -> Instant:
        """When a claim or a reaper may next find something, if nothing changes."""
        cursors = [self._claims.cursors.get(queue) for queue in queues]
        floors = [(None, None) if cursor is None else cursor.floors for cursor in cursors]
        leads, others = (array_literal(column) for column in zip(*floors, strict=True)) if floors else ("{}", "{}")
        arguments = (self._session.at, list(queues), leads, others, *self._claims.lease_cursor.floors())
        *instants, maintain = self._session.server.query(_WORK_AT, arguments)[0]
        if maintain:
            return 0
        known = [at for at in instants if at is not None]
        return min(known, default=MAX_INSTANT)

    def wait_ended(self, ids: Sequence[int], duration: Duration) -> list[int]:
        def ended() -> list[int]:
            running = {job_id for (job_id,) in self._session.server.query(_UNFINISHED, (list(ids),) * 3)}
            return [job_id for job_id in ids if job_id not in running]

        end = self._session.now() + duration
        return self._session.waiters.until_found([ending_of(job_id) for job_id in ids], end, ended)

    def wait_cancel_requests(self, owner: str, duration: Duration, known: Collection[Fence]) -> list[Fence]:
        holder = self._claims.holders.get(owner)

        def requested() -> list[Fence]:
            found = [] if holder is None else self._cancel_requests(holder)
            return [fence for fence in found if fence not in known]

        topics = [] if holder is None else [requests_to(holder.id)]
        return self._session.waiters.until_found(topics, self._session.now() + duration, requested)

    def _cancel_requests(self, holder: Holder) -> list[Fence]:
        """Which of its jobs are to be cancelled. They are read only when another process has changed some of them."""
        held = holder.jobs()
        changes = self._session.server.query(_CHANGES, (holder.id,)) if held else []
        if changes and changes[0][0] != holder.checked_changes:
            running = self._claims.running_jobs([job_id for job_id, _ in held])
            holder.cancel_requests = [job.fence for job in running if job.cancel_requested]
            holder.checked_changes = changes[0][0]
        return [fence for fence in holder.cancel_requests if fence in held]


def _backlog(row: Sequence[Any], now: Instant) -> Backlog:
    name, waiting, ready, running, done, dead, cancelled, oldest, paused_until, keys, held, blocked = row
    age = 0 if oldest is None else max(0, now - oldest)
    paused = paused_until if paused_until is not None and paused_until > now else None
    counts = (int(waiting), int(ready), int(running), done, dead, cancelled)
    return Backlog(name, *counts, age, paused, keys, int(held), blocked)


class _Part(NamedTuple):
    """The jobs of one place. `end`: the id up to which it was read; None: to its end."""

    jobs: list[Job]
    end: int | None


class _PageReader(NamedTuple):
    """Reads one page of a query. `wanted`: how many jobs of each place suffice."""

    connection: Connection
    query: Query
    after: int
    wanted: int
    now: Instant

    def page(self, limit: int) -> Page:
        parts = self._parts()
        ends = [part.end for part in parts if part.end is not None]
        end = min(ends) if ends else None
        found = sorted((job for part in parts for job in part.jobs), key=lambda job: job.id)
        jobs = [job for job in found if end is None or job.id <= end]
        matching = [job for job in jobs if job.id > self.after and self.query.admits(job)]
        return Page(matching, end) if len(matching) <= limit else Page(matching[:limit], matching[limit - 1].id)

    def _parts(self) -> list[_Part]:
        state = self.query.state
        if state is not None and state.terminal:
            return [self._ended()]
        if state is State.RUNNING:
            return [self._held(None)]
        parts = [self._runs(single) for single in (False, True)]
        if state is None:
            parts.append(self._ended())
            parts.append(self._held(min((part.end for part in parts if part.end is not None), default=None)))
        return parts

    def _runs(self, single: bool) -> _Part:
        probes = _PROBES if self._filters else self.wanted
        last = self._last(_RUNS_END, single, self.after, probes - 1)
        states = _OPEN.get(self.query.state) if self.query.state else None
        ids = (single, self.after, MAX_ID if last is None else last, _SPARE * probes)
        filters = (states, states, self.query.queue, self.query.queue)
        return self._part(self._fetch(_PAGE_RUNS, (*ids, *filters, self.wanted, self.wanted)), last)

    def _held(self, last: int | None) -> _Part:
        """Members overlap: one job of a run may be in a pack, and its neighbours in another one."""
        after, queue = self.after, self.query.queue
        arguments = (after, last, after, queue, queue, after, self.wanted - 1, MAX_ID)
        jobs = [job for row in self._fetch(_PAGE_HELD, arguments) for job in jobs_of_run(RunRow._make(row))]
        ids = sorted(job.id for job in jobs if job.id > after)
        return _Part(jobs, ids[self.wanted - 1] if len(ids) >= self.wanted else None)

    def _part(self, rows: Sequence[Sequence[Any]], last: int | None) -> _Part:
        """The jobs of these runs; if they are as many as were wanted, more may follow."""
        runs = [RunRow._make(row) for row in rows]
        jobs = [job for run in runs for job in jobs_of_run(run)]
        return _Part(jobs, runs[-1].last_id if sum(run.n for run in runs) >= self.wanted else last)

    def _ended(self) -> _Part:
        query = self.query
        if (lookup := self._lookup()) is not None:
            found = [job_id for (job_id,) in self._fetch(*lookup)]
            jobs = [EndedRow._make(row).job() for row in self._fetch(_ENDED, (found, self.now))] if found else []
            return _Part(jobs, found[-1] if len(found) >= self.wanted else None)
        end, page = (_DEAD_END, _PAGE_DEAD) if query.state is State.DEAD else (_ENDED_END, _PAGE_ENDED)
        probes = _PROBES if self._filters else self.wanted
        last = self._last(end, self.after, probes - 1)
        state = None if query.state is None else STATES.index(query.state)
        ids = (self.after, MAX_ID if last is None else last, _SPARE * probes)
        filters = (state, state, query.queue, query.queue, query.kind, query.kind)
        jobs = [EndedRow._make(row).job() for row in self._fetch(page, (*ids, self.now, *filters, self.wanted))]
        return _Part(jobs, jobs[-1].id if len(jobs) >= self.wanted else last)

    def _lookup(self) -> tuple[str, tuple[object, ...]] | None:
        """The next ids by the first condition that has an index of the user (docs/guides/search.md)."""
        wanted = [(f"body #>> '{{{','.join(path.split('.'))}}}'", path, text) for path, text in self.query.payload]
        wanted += [(f"facts #>> '{{meta,{name}}}'", name, text) for name, text in self.query.meta]
        for expression, path, text in wanted:
            ending = f"(({expression}::text[])), id)"
            if _PATH.fullmatch(path) and text != "null" and self._fetch(_HAS_INDEX, (ending, ending)):
                ids = f"SELECT id FROM forebay.ended WHERE ({expression}) = %s AND id > %s ORDER BY id LIMIT %s"
                return ids, (text, self.after, self.wanted)
        return None

    @property
    def _filters(self) -> bool:
        """Whether the server filters, and so may read more than it returns."""
        return self.query.queue is not None or self.query.state is not None or self.query.kind is not None

    def _fetch(self, statement: str, values: Sequence[Any]) -> Rows:
        return self.connection.execute(statement, values).fetchall()

    def _last(self, end: str, *values: object) -> int | None:
        """The id up to which the place is read; None: to its end."""
        found = self._fetch(end, values)
        return found[0][0] if found else None


def browse(server: Server, query: Query, after: int, limit: int, now: Instant) -> Page:
    plain = query.kind is None and query.tenant is None and query.subject is None and query.suspect is None
    wanted = limit + 1 if plain else MAX_BATCH

    def read(connection: Connection) -> Page:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _PageReader(connection, query, max(0, min(after, MAX_ID)), wanted, now).page(limit)

    # Under an old snapshot a page may scan many dead rows.
    return server.transact(read, marked=False, within=server.long_timeout)
