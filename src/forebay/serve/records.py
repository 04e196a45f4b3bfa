"""Reading a ledger of any length in few steps: a place by its time, a stretch up to a bound.

Records stand in the order of commits. Their instants follow the same order but for the time a transaction took, so what
looks for a moment looks `SLACK` around it.
"""

from collections.abc import Iterator
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

from forebay.core.errors import OffsetGone
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import BATCH_MOST
from forebay.store.protocol import Store

SLACK: Final = 2_000_000
_PAGE_LEAST: Final = 1
_QUICK_SECONDS: Final = 0.005
_KNOWN_MOST: Final = 10_000
_KNOWN: Final[WeakKeyDictionary[Store, dict[int, Instant]]] = WeakKeyDictionary()
"""By store and offset: when a record was written."""


def place_of(store: Store, at: Instant, extent: tuple[int, int] | None = None) -> int:
    """The first offset whose record is of this instant or later, by halving; the ledger's end when there is none.

    When the record of an offset was written never changes, so what was asked once is remembered.
    """
    low, high = extent or store.ledger_extent()
    known = _KNOWN.setdefault(store, {})
    if len(known) > _KNOWN_MOST:
        known.clear()
    while low < high:
        middle = (low + high) // 2
        written = known.get(middle)
        if written is None:
            try:
                found = store.ledger(middle - 1, 1)
            except OffsetGone as gone:
                low = max(middle + 1, gone.first)
                continue
            if not found:
                high = middle
                continue
            written = known[middle] = found[0].record.at
        if written >= at:
            high = middle
        else:
            low = middle + 1
    return low


def stretch(store: Store, first: int, most: int) -> Iterator[LedgerEntry]:
    """Up to `most` entries from an offset on; what is trimmed meanwhile is left out.

    A record may tell of one job or of tens of thousands, so pages begin small, grow while they are quick and are single
    records again as soon as one was slow: whoever is short of time can stop in time.
    """
    after, left, size = first - 1, most, _PAGE_LEAST
    while left > 0:
        began = monotonic()
        try:
            page = store.ledger(after, min(left, size))
        except OffsetGone as gone:
            left -= gone.first - 1 - after
            after = gone.first - 1
            continue
        if not page:
            return
        size = min(BATCH_MOST, size * 2) if monotonic() - began < _QUICK_SECONDS else _PAGE_LEAST
        yield from page
        after, left = page[-1].offset, left - len(page)
