"""Searching jobs by a filter in bounded time.

A store returns jobs by id, so a rare one may be far away. A search ends with a full page, at the end of the store, or
when its time is up; in the last case it says so, and the reader may continue. Newest first is the same search in
windows of ids, from the newest id down; after a window with few matches the next one is larger.
"""

from collections.abc import Callable
from time import monotonic
from typing import Annotated, Final

from msgspec import Meta, Struct

from forebay.core.content import Conditions, parse_condition
from forebay.core.fingerprint import fingerprint_of
from forebay.core.job import Job, State
from forebay.core.limits import MAX_BATCH, TEXT_LENGTH
from forebay.serve.actor import Actor
from forebay.serve.api.requests import Name, Text
from forebay.serve.security.visibility import carries
from forebay.store.protocol import Query, Store

PAGE: Final = 50
SEARCH_SECONDS: Final = 0.15
_WINDOW_PAGES: Final = 4

Condition = Annotated[str, Meta(max_length=2 * TEXT_LENGTH, pattern=r"\A[^=\x00]+=[^\x00]*\Z")]


class Filter(Struct, frozen=True):
    """What to search for. `text`: an exact key or subject; `cause`: a fingerprint of `causes`.

    `meta`, `payload`: a condition such as `customer.id=7`.
    """

    queue: Name | None = None
    state: State | None = None
    kind: Name | None = None
    tenant: Name | None = None
    text: Text | None = None
    cause: str | None = None
    meta: Condition | None = None
    payload: Condition | None = None

    def query(self, actor: Actor) -> Query:
        """The part of the filter that the store applies; `fits` applies the rest, as the actor sees the job."""
        content = _conditions("meta", self.meta), _conditions("payload", self.payload)
        return Query(self.queue, self.state, self.kind, actor.tenant or self.tenant, None, None, *content)

    def fits(self, job: Job, actor: Actor) -> bool:
        return (
            actor.sees(job.home or job.queue, job.tenant)
            and self.tenant in (None, job.tenant)
            and (self.text is None or self.text in (job.key, job.subject))
            and (self.cause is None or self.cause == fingerprint_of(job))
            and self._carried(job, actor)
        )

    def _carried(self, job: Job, actor: Actor) -> bool:
        if self.meta is None and self.payload is None:
            return True
        return carries(actor, _conditions("meta", self.meta), _conditions("payload", self.payload), job)

    @property
    def empty(self) -> bool:
        return self == Filter()


def _conditions(field: str, text: str | None) -> Conditions:
    return () if text is None else (parse_condition(field, text),)


class SearchPage(Struct, frozen=True):
    """One page. `next`: the id to continue after; None at the end. `early`: the time was up first."""

    jobs: list[Job]
    next: int | None
    early: bool = False


def find(
    store: Store,
    actor: Actor,
    wanted: Filter,
    after: int = 0,
    limit: int = PAGE,
    seconds: float = SEARCH_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> SearchPage:
    """The next jobs that match, by id."""
    until = clock() + seconds
    jobs: list[Job] = []
    query = wanted.query(actor)
    special = (wanted.text, wanted.cause, wanted.meta, wanted.payload)
    plain = all(each is None for each in special) and actor.queues == ("*",)
    following: int | None = after
    while following is not None:
        page = store.browse(query, following, min(MAX_BATCH, limit + 1) if plain else MAX_BATCH)
        jobs += [job for job in page.jobs if wanted.fits(job, actor)]
        if len(jobs) > limit:
            return SearchPage(jobs[:limit], jobs[limit - 1].id)
        following = page.next
        if clock() >= until:
            return SearchPage(jobs, following, early=following is not None)
    return SearchPage(jobs, None)


class NewestId:
    """The largest id that a store has assigned, or a little more; cached, because it only grows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = 0

    def find(self) -> int:
        low, step = self._known, 1
        while self._any_after(low + step):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._any_after(middle) else (low, middle)
        self._known = low
        return high

    def _any_after(self, job_id: int) -> bool:
        page = self._store.browse(Query(), job_id, 1)
        return bool(page.jobs) or page.next is not None


def find_newest(
    store: Store,
    actor: Actor,
    wanted: Filter,
    before: int,
    limit: int = PAGE,
    seconds: float = SEARCH_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> SearchPage:
    """The next jobs that match, of those with smaller ids than `before`, newest first."""
    until = clock() + seconds
    jobs: list[Job] = []
    size = 2 * limit
    while before > 1:
        low = max(0, before - 1 - size)
        some, pages = _between(store, actor, wanted, low, before)
        if some is None:
            size = max(2 * limit, size // 16)
            continue
        jobs += reversed(some)
        if len(jobs) > limit:
            return SearchPage(jobs[:limit], jobs[limit - 1].id)
        before = low + 1
        size = size * 4 if pages == 1 else size
        if before > 1 and clock() >= until:
            return SearchPage(jobs, before, early=True)
    return SearchPage(jobs, None)


def _between(store: Store, actor: Actor, wanted: Filter, low: int, before: int) -> tuple[list[Job] | None, int]:
    """All matches between two ids, and how many store pages that took; None when it takes too many."""
    query, found = wanted.query(actor), list[Job]()
    after = low
    for pages in range(1, _WINDOW_PAGES + 1):
        page = store.browse(query, after, MAX_BATCH)
        found += [job for job in page.jobs if job.id < before and wanted.fits(job, actor)]
        if page.next is None or page.next >= before - 1:
            return found, pages
        after = page.next
    return None, _WINDOW_PAGES


def find_some(store: Store, query: Query, count: int, seconds: float) -> tuple[list[Job], bool]:
    """About `count` jobs, or as many as are found in time, and whether the time was up first."""
    until = monotonic() + seconds
    jobs: list[Job] = []
    following: int | None = 0
    while following is not None and len(jobs) < count:
        page = store.browse(query, following, MAX_BATCH)
        jobs += page.jobs
        following = page.next
        if monotonic() >= until:
            break
    return jobs, following is not None and len(jobs) < count
