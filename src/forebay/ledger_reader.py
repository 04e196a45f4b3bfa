"""Reading a ledger of any length in few steps: an offset by its time, a range up to a bound.

Records are in the order of commits. Their instants follow that order up to the duration of a transaction, so a search
for an instant covers `SLACK` around it. Several cells have a ledger each: `ledgers` has them all.
"""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from forebay.core.errors import OffsetGone, StoreFailed
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.store.protocol import Cellular, Store

T = TypeVar("T")

SLACK: Final = 2_000_000
_MIN_PAGE: Final = 1
_FAST_SECONDS: Final = 0.005
_MAX_KNOWN: Final = 10_000
_KNOWN: Final[WeakKeyDictionary[Store, dict[int, Instant]]] = WeakKeyDictionary()
"""By store and offset: when the record was written."""


def ledgers(store: Store) -> dict[str, Store]:
    """Stores with one ledger each, by the name of the cell; "" for a store that has one itself."""
    return store.cells() if isinstance(store, Cellular) else {"": store}


def of_each_ledger(store: Store, call: Callable[[str, Store], T]) -> dict[str, T]:
    """The result for each ledger. A cell that does not answer is left out; the error is raised if none does."""
    found: dict[str, T] = {}
    failure: StoreFailed | None = None
    for name, ledger in ledgers(store).items():
        try:
            found[name] = call(name, ledger)
        except StoreFailed as error:
            failure = error
    if failure is not None and not found:
        raise failure
    return found


def ledger_of(store: Store, job_id: int) -> Store:
    """The store whose ledger has the records of a job."""
    return (store.home(job_id) or store) if isinstance(store, Cellular) else store


def offset_at(store: Store, at: Instant, extent: tuple[int, int] | None = None) -> int:
    """The first offset whose record was written at this instant or later, by bisection; else the ledger's end.

    The instant of a record never changes, so it is cached.
    """
    low, high = extent or store.ledger_extent()
    known = _KNOWN.setdefault(store, {})
    if len(known) > _MAX_KNOWN:
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


def read_range(store: Store, first: int, limit: int) -> Iterator[LedgerEntry]:
    """Up to `limit` entries from an offset on, without those that are trimmed meanwhile.

    A record may cover one job or tens of thousands. Pages therefore start at one record, double while reads are fast,
    and drop back to one after a slow read, so that a caller with a deadline can stop in time.
    """
    after, left, size = first - 1, limit, _MIN_PAGE
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
        size = min(MAX_BATCH, size * 2) if monotonic() - began < _FAST_SECONDS else _MIN_PAGE
        yield from page
        after, left = page[-1].offset, left - len(page)
