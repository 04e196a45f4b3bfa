"""Searching jobs for an actor, page by page, bounded in what is read and in what is returned.

Payloads may be large and a filter may match almost nothing, so a search ends after `MAX_SCANNED` jobs or `MAX_BYTES`
and returns where to continue. It blocks, so it runs in `context.call`.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from forebay.core.job import Job
from forebay.serve.actor import Actor
from forebay.serve.api.messages import sees_job
from forebay.store.protocol import Query, Store

MAX_SCANNED: Final = 10_000
MAX_BYTES: Final = 8 * 1024 * 1024
_STEP: Final = 100

Found = tuple[list[Job], int, int | None]
"""Jobs, how many were scanned, and the id to continue after; None at the end."""


def narrowed(actor: Actor, query: Query) -> Query | None:
    """The query within what this actor sees; None: it sees nothing of it."""
    if query.queue is not None and not actor.reaches(query.queue):
        return None
    if actor.tenant is None:
        return query
    return replace(query, tenant=actor.tenant) if query.tenant in (None, actor.tenant) else None


def find(
    store: Store,
    actor: Actor,
    query: Query,
    after: int,
    limit: int,
    fits: Callable[[Job], bool] = lambda _: True,
) -> Found:
    """Up to `limit` jobs that this actor sees and that fit."""
    wanted = narrowed(actor, query)
    found: list[Job] = []
    scanned = size = 0
    place: int | None = after if wanted is not None else None
    while wanted is not None and place is not None:
        page = store.browse(wanted, place, min(_STEP, limit))
        for job in page.jobs:
            scanned += 1
            if sees_job(actor, job) and fits(job):
                found.append(job)
                size += len(job.body) + len(job.result_body or b"")
            if len(found) == limit or scanned == MAX_SCANNED or size >= MAX_BYTES:
                return found, scanned, page.next if job is page.jobs[-1] else job.id
        place = page.next
    return found, scanned, None
