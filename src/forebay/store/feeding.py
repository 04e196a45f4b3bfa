"""What a store may have besides, for those who move millions in and out of it and may be stopped on the way.

`Feeding`: drafts from a source that repeats itself, such as a task that is tried again or a query that starts anew. The
store keeps the source's place and moves it on in the transaction that takes the drafts, so each is taken once, however
often it comes and however late. One small row a source, kept while it is used and `FEED_KEPT` beyond.

`Mending`: a dead job whose payload was wrong gives way to a new one, in one step.

`Exporting`: all jobs of a range of ids as one snapshot has them, in the store's own form, quicker than page by page.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.job import Draft, Job
from forebay.core.limits import BATCH_MOST
from forebay.core.names import check_text
from forebay.store.protocol import Query, Receipt, Tally

FEED_KEPT: Final = timedelta(days=90)
FEED_MOST: Final = 32 * BATCH_MOST
"""Drafts in one call of `feed`."""


class Place(Struct, frozen=True):
    """How far a source has come: `taken` drafts of its `batch`, and a digest of them in their order."""

    batch: int
    taken: int
    digest: bytes


@runtime_checkable
class Feeding(Protocol):
    """Exactly once, from a source that repeats itself."""

    def fed(self, source: str) -> Place | None:
        """How far the source has come; None: nothing of it is known."""

    def feed(self, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
        """Take up to `FEED_MOST` drafts and move the source on, both or neither. None: its place is not `before`.

        `BatchTooLarge`: their bytes are more than one record of a journal holds, where the store has one.
        """


def check_feed(source: str, drafts: Sequence[Draft]) -> str:
    """What every store checks before it takes from a source; the source's name."""
    if len(drafts) > FEED_MOST:
        raise BatchTooLarge("feed", len(drafts), FEED_MOST)
    if any(type(draft) is not Draft for draft in drafts):
        raise Invalid("draft", "not all of them are Drafts", "build a Draft(kind, payload, …)")
    return check_text("source", source)


@runtime_checkable
class Mending(Protocol):
    """Dead jobs with another payload."""

    def mend(self, pairs: Sequence[tuple[int, Draft]]) -> list[Receipt | None]:
        """Each dead job is gone and its draft is in, both or neither. None: there is no such dead job (any more)."""


def successor(job: Job, body: bytes) -> Draft:
    """A job like the dead one, with another payload; it waits for nothing any more."""
    return Draft(
        job.kind,
        body=body,
        queue=job.home or job.queue,
        priority=job.priority,
        deadline=job.deadline,
        tenant=job.tenant,
        subject=job.subject,
        max_attempts=job.max_attempts,
        meta={**(job.meta or {}), "redriven_from": str(job.id)},
        cost=job.cost,
    )


@runtime_checkable
class Exporting(Protocol):
    """Many jobs at once."""

    def id_extent(self) -> tuple[int, int]:
        """The first and the last id that may exist; (1, 0) where there is none."""

    def export(self, query: Query, first: int, last: int) -> Iterator[tuple[str, list[str], bytes]]:
        """Blocks of whole CSV rows: whether of "runs" or "ended", their columns, the rows. One snapshot for all.

        Rows may hold jobs outside of the range, and jobs that do not match by kind, tenant or subject.
        """
