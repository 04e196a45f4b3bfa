"""Who holds what: running jobs by their owners, and those who claimed of late but hold nothing now.

Running jobs are looked for among all jobs in bounded time; a look that ended early says so. What an owner claimed in
the last minutes is the ledger's word (`pulse`).
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.serve.actor import Actor
from forebay.serve.dashboard.views.finding import some
from forebay.store.protocol import Query, Store

LOOK_SECONDS: Final = 0.15
OWNERS_MOST: Final = 200
HELD_SHOWN: Final = 12


class WorkerRow(Struct, frozen=True):
    """One owner. `since`: its oldest lease; `left`: the shortest time that one of its leases has left."""

    owner: str
    held: int
    jobs: list[Job]
    since: Instant | None
    left: int | None
    claimed_at: Instant | None
    claimed: int


class Workers(Struct, frozen=True):
    rows: list[WorkerRow]
    running: int
    seen: int
    early: bool
    more: int


def workers_view(store: Store, actor: Actor, running: int, claims: Mapping[str, tuple[Instant, int]]) -> Workers:
    jobs, early = some(store, Query(state=State.RUNNING), running, LOOK_SECONDS)
    now = store.now()
    held: dict[str, list[Job]] = {}
    for job in jobs:
        if actor.sees(job.queue, job.tenant):
            held.setdefault(job.owner or "", []).append(job)
    rows = [_row(owner, held.get(owner, []), claims.get(owner), now) for owner in {*held, *claims}]
    rows.sort(key=lambda row: (-row.held, -(row.claimed_at or 0), row.owner))
    return Workers(rows[:OWNERS_MOST], running, len(jobs), early, max(0, len(rows) - OWNERS_MOST))


def _row(owner: str, jobs: list[Job], claim: tuple[Instant, int] | None, now: Instant) -> WorkerRow:
    jobs = sorted(jobs, key=lambda job: job.claimed_at or 0)
    return WorkerRow(
        owner,
        len(jobs),
        jobs[:HELD_SHOWN],
        jobs[0].claimed_at if jobs else None,
        min(((job.lease_until or 0) - now for job in jobs), default=None),
        claim[0] if claim else None,
        claim[1] if claim else 0,
    )
