"""Finding jobs by a filter in bounded time: what is found, how many were looked at, and where to go on.

A store hands out jobs in the order of their ids, so a rare one may be far away. A look ends with a full page, at the
end of the store, or when its time is up; in the last case it says so, and the reader decides whether to go on.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from msgspec import Struct

from forebay.core.fingerprint import fingerprint_of
from forebay.core.job import Job, State
from forebay.core.limits import BATCH_MOST
from forebay.serve.actor import Actor
from forebay.store.protocol import Query, Store

PAGE: Final = 50
LOOK_SECONDS: Final = 0.15


class Filter(Struct, frozen=True):
    """What somebody looks for. `text`: a key or a subject, as it is; `cause`: a fingerprint of `census`."""

    queue: str | None = None
    state: State | None = None
    kind: str | None = None
    tenant: str | None = None
    text: str | None = None
    cause: str | None = None

    def query(self, actor: Actor) -> Query:
        """What the store can tell apart; the rest is `fits`."""
        return Query(self.queue, self.state, self.kind, actor.tenant or self.tenant)

    def fits(self, job: Job, actor: Actor) -> bool:
        return (
            actor.sees(job.home or job.queue, job.tenant)
            and self.tenant in (None, job.tenant)
            and (self.text is None or self.text in (job.key, job.subject))
            and (self.cause is None or self.cause == fingerprint_of(job))
        )

    @property
    def empty(self) -> bool:
        return self == Filter()


class Found(Struct, frozen=True):
    """One page. `next`: go on after this id; None: that was all. `early`: the time was up before the page was full."""

    jobs: list[Job]
    next: int | None
    early: bool = False


def find(
    store: Store,
    actor: Actor,
    wanted: Filter,
    after: int = 0,
    limit: int = PAGE,
    seconds: float = LOOK_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> Found:
    """The next jobs that fit, in the order of their ids."""
    until = clock() + seconds
    jobs: list[Job] = []
    query = wanted.query(actor)
    plain = wanted.text is None and wanted.cause is None and actor.queues == ("*",)
    following: int | None = after
    while following is not None:
        page = store.browse(query, following, min(BATCH_MOST, limit + 1) if plain else BATCH_MOST)
        jobs += [job for job in page.jobs if wanted.fits(job, actor)]
        if len(jobs) > limit:
            return Found(jobs[:limit], jobs[limit - 1].id)
        following = page.next
        if clock() >= until:
            return Found(jobs, following, early=following is not None)
    return Found(jobs, None)


def some(store: Store, query: Query, count: int, seconds: float) -> tuple[list[Job], bool]:
    """About `count` jobs, or as many as are found in the time of a look, and whether that ended it early."""
    until = monotonic() + seconds
    jobs: list[Job] = []
    following: int | None = 0
    while following is not None and len(jobs) < count:
        page = store.browse(query, following, BATCH_MOST)
        jobs += page.jobs
        following = page.next
        if monotonic() >= until:
            break
    return jobs, following is not None and len(jobs) < count
