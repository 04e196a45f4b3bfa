"""The statements of `*.sql` by name.

`{run}`, `{running}` and `{ended}` are the columns from which jobs are decoded. `{open}`, `{held}`, `{finished}` are the
counts of runs, packs and finished jobs in a queue, `{backlog}` the columns that combine them. `{taken}`: the key `k` is
taken, if by the state of its job.
"""

from typing import Final

from forebay.core.limits import MAX_AHEAD, MAX_BLOCKED
from forebay.store.sql_files import Statements

_RUN: Final = (
    "r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at, r.enqueued_at, r.delivery, r.attempt, r.max_attempts, "
    "r.expires_at, r.errors, r.facts, r.bodies, CASE WHEN r.cancel_requested THEN '1' END, NULL::text, NULL::bigint, "
    "NULL::bigint, NULL::text, NULL::boolean, NULL::bigint, NULL::integer, NULL::integer, NULL::integer"
)
_RUNNING: Final = (
    "r.last_id, r.n, r.size, 2::smallint, r.queue, r.kind, r.due_at, r.enqueued_at, r.delivery, r.attempt, "
    "r.max_attempts, r.expires_at, r.errors, r.facts, r.bodies, r.cancel_requested::text, r.settled::text, "
    "r.claimed_at, forebay.leased_until(r.by_heartbeat, r.lease_until, r.holder), "
    "(SELECT h.owner FROM forebay.holder AS h WHERE h.id = r.holder), r.by_heartbeat, r.pack, r.jobs, r.number, r.base"
)
_ENDED: Final = (
    "e.id, e.state, e.queue, e.kind, e.due_at, e.enqueued_at, e.delivery, e.attempt, e.max_attempts, e.expires_at, "
    "e.finished_at, e.cancel_requested, e.errors, e.facts, e.body, e.result, e.home"
)
_OPEN: Final = (
    "queue, sum(n) FILTER (WHERE state IN (0, 3)) AS waiting, sum(n) FILTER (WHERE state = 1) AS ready, "
    "min(due_at) FILTER (WHERE state = 1) AS oldest"
)
_HELD: Final = "queue, sum(n - coalesce(bit_count(settled), 0)) AS running"
_FINISHED: Final = (
    "queue, count(*) FILTER (WHERE state = 3) AS done, count(*) FILTER (WHERE state = 4) AS dead, "
    "count(*) FILTER (WHERE state = 5) AS cancelled"
)
_BACKLOG: Final = (
    "u.name, coalesce(r.waiting, 0), coalesce(r.ready, 0), coalesce(p.running, 0), coalesce(e.done, 0), "
    "coalesce(e.dead, 0), coalesce(e.cancelled, 0), r.oldest, q.paused_until, coalesce(k.keys, 0), "
    "CASE WHEN r.ready > 0 AND (q.laned OR q.whole <> '[]') "
    f"THEN forebay.held_jobs(%s, u.name, {MAX_AHEAD}) ELSE 0 END, "
    f"forebay.blocked_lines(u.name, {MAX_BLOCKED})"
)
_TAKEN: Final = (
    "(k.until < 7258118400000000 OR forebay.in_states(k.job_id, "
    "coalesce((SELECT q.unique_states FROM forebay.queue AS q WHERE q.name = k.queue), 7)))"
)
_PARTS: Final = {
    "run": _RUN,
    "running": _RUNNING,
    "held": _HELD,
    "ended": _ENDED,
    "open": _OPEN,
    "finished": _FINISHED,
    "backlog": _BACKLOG,
    "taken": _TAKEN,
}

SQL: Final = Statements("forebay.store.postgres", ("jobs.sql", "queues.sql", "logs.sql"), _PARTS)
