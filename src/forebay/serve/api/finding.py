"""Looking through jobs for an actor: page by page, bounded in what is read and in what is given, whatever matches.

Payloads may be large and filters may pass over nearly everything, so a look ends after so many jobs or bytes and says
where to go on. It blocks: it is for `ground.call`, as is what makes pictures of many jobs.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from forebay.core.job import Job
from forebay.serve.actor import Actor
from forebay.serve.api.exchange import sees
from forebay.store.protocol import Query, Store

LOOKED_MOST: Final = 10_000
BYTES_MOST: Final = 8 * 1024 * 1024
_STEP: Final = 100

Found = tuple[list[Job], int, int | None]
"""Jobs, how many were looked at, and where to go on; None: that was all."""


def narrowed(actor: Actor, query: Query) -> Query | None:
    """The query within what this actor sees; None: nothing of it."""
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
    looked_at = size = 0
    place: int | None = after if wanted is not None else None
    while wanted is not None and place is not None:
        page = store.browse(wanted, place, min(_STEP, limit))
        for job in page.jobs:
            looked_at += 1
            if sees(actor, job) and fits(job):
                found.append(job)
                size += len(job.body) + len(job.result_body or b"")
            if len(found) == limit or looked_at == LOOKED_MOST or size >= BYTES_MOST:
                return found, looked_at, page.next if job is page.jobs[-1] else job.id
        place = page.next
    return found, looked_at, None
