"""Drafts from a source that repeats itself, such as a task that is tried again or a query that starts anew.

The store keeps the source's place and moves it on in the transaction that takes the drafts, so each is taken once,
however often it comes and however late. One small row a source, kept while it is used and `FEED_KEPT` beyond.

`successor`: what `mend` puts in the place of a dead job whose payload was wrong.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from msgspec import Struct

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.job import Draft, Job
from forebay.core.limits import MAX_BATCH
from forebay.core.names import check_text

FEED_KEPT: Final = timedelta(days=90)
MAX_FEED: Final = 32 * MAX_BATCH
"""Drafts in one call of `feed`."""


class Place(Struct, frozen=True):
    """How far a source has come: `taken` drafts of its `batch`, and a digest of them in their order."""

    batch: int
    taken: int
    digest: bytes


def check_feed(source: str, drafts: Sequence[Draft]) -> str:
    """What every store checks before it takes from a source; the source's name."""
    if len(drafts) > MAX_FEED:
        raise BatchTooLarge("feed", len(drafts), MAX_FEED)
    if any(type(draft) is not Draft for draft in drafts):
        raise Invalid("draft", "not all of them are Drafts", "build a Draft(kind, payload, …)")
    return check_text("source", source)


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
