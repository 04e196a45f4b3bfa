"""Following a store's ledger: one thread, bounded pages, from the head or from the first kept record.

It reads once a second. While it catches up it pauses as long as each read takes, so that it uses at most half of one
reader's time. Records that were trimmed before they were read are skipped and counted as a gap: the counters are then
too low, and `forebay_ledger_gap_records_total` shows by how much.
"""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

from forebay.core.errors import OffsetGone
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.serve.metrics.tally import EventTally
from forebay.store.protocol import Store

_EVERY: Final = 1.0
_RULE_EVERY: Final = 10.0


class LedgerFollower:
    """A role (`forebay.work.role`). A failed step is repeated from the end of the last one.

    gap      records trimmed before they were counted;  behind: records still to be counted
    written  whether the store writes records: its ledger may be off
    """

    def __init__(
        self,
        store: Store,
        tally: EventTally,
        *,
        whole: bool = False,
        also: Callable[[list[LedgerEntry]], object] = lambda _: None,
        cell: str = "",
    ) -> None:
        """`whole`: start at the first kept record, else at the next one. `also` is called with each page.

        `cell` is the cell whose ledger it is, where the store has several.
        """
        self.cell: Final = cell
        self.name: Final = f"follower {cell}" if cell else "follower"
        self._store = store
        self._tally = tally
        self._whole = whole
        self._also = also
        self._after: int | None = None
        self._guard = Lock()
        self._ruled_at = float("-inf")
        self.gap = 0
        self.behind = 0
        self.written = True

    @property
    def offset(self) -> int:
        """The next record to read; -1 before the first step."""
        return -1 if self._after is None else self._after + 1

    def step(self) -> float:
        """Count a page. Safe from any thread: each record is counted once."""
        with self._guard:
            return self._count()

    def _count(self) -> float:
        if self._after is None:
            first, following = self._store.ledger_extent()
            self._after = (first if self._whole else following) - 1
        started = monotonic()
        if started - self._ruled_at >= _RULE_EVERY:
            self.written = self._store.ledger_rule().on
            self._ruled_at = started
        try:
            page = self._store.ledger(self._after, MAX_BATCH)
        except OffsetGone as gone:
            self.gap += gone.first - self._after - 1
            self._after = gone.first - 1
            return 0.0
        if page:
            self._tally.take(page)
            self._also(page)
            self._after = page[-1].offset
        if len(page) < MAX_BATCH:
            self.behind = 0
            return _EVERY
        self.behind = max(0, self._store.ledger_extent()[1] - self.offset)
        return monotonic() - started
