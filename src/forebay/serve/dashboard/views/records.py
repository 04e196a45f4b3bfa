"""Reading a ledger of any length in few steps: a place by its time, a stretch up to a bound.

Records stand in the order of commits. Their instants follow the same order but for the time a transaction took, so what
looks for a moment looks `SLACK` around it.
"""

from collections.abc import Iterator
from typing import Final

from forebay.core.errors import OffsetGone
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerEntry
from forebay.store.protocol import Ledgered

SLACK: Final = 2_000_000
_PAGE: Final = 128
"""A record may tell of a thousand jobs: small pages, so that whoever is short of time can stop between them."""


def place_of(store: Ledgered, at: Instant) -> int:
    """The first offset whose record is of this instant or later, by halving; the ledger's end when there is none."""
    low, high = store.ledger_extent()
    while low < high:
        middle = (low + high) // 2
        try:
            found = store.ledger(middle - 1, 1)
        except OffsetGone as gone:
            low = max(middle + 1, gone.first)
            continue
        if not found or found[0].record.at >= at:
            high = middle
        else:
            low = middle + 1
    return low


def stretch(store: Ledgered, first: int, most: int) -> Iterator[LedgerEntry]:
    """Up to `most` entries from an offset on; what is trimmed meanwhile is left out."""
    after, left = first - 1, most
    while left > 0:
        try:
            page = store.ledger(after, min(left, _PAGE))
        except OffsetGone as gone:
            left -= gone.first - 1 - after
            after = gone.first - 1
            continue
        if not page:
            return
        yield from page
        after, left = page[-1].offset, left - len(page)
