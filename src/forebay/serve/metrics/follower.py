"""Following a store's ledger: one thread, bounded pages, from the head or from the first record that is kept.

It asks once a second, and while it catches up it rests as long as it reads, so that it is at most half of one reader.
What was trimmed before it was read is counted as a gap and skipped: the counters then tell too little, and say so.
"""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

from forebay.core.errors import OffsetGone
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import BATCH_MOST
from forebay.serve.metrics.tally import Tally
from forebay.store.protocol import Store

_EVERY: Final = 1.0
_RULE_EVERY: Final = 10.0


class Follower:
    """A role (`forebay.work.role`). A step that fails is made again from where the last one ended.

    gap      records that were trimmed before they were counted;  behind: those that are still to be counted
    written  whether the store writes records at all: its ledger may be switched off
    """

    name = "follower"

    def __init__(
        self,
        store: Store,
        tally: Tally,
        *,
        whole: bool = False,
        also: Callable[[list[LedgerEntry]], object] = lambda _: None,
    ) -> None:
        """`whole`: from the first record that is kept; else from what comes next. `also` is given each page, too."""
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
        """The next record to be read; -1 before the first step."""
        return -1 if self._after is None else self._after + 1

    def step(self) -> float:
        """Count a page. Whoever calls, and from how many threads: each record is counted once."""
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
            page = self._store.ledger(self._after, BATCH_MOST)
        except OffsetGone as gone:
            self.gap += gone.first - self._after - 1
            self._after = gone.first - 1
            return 0.0
        if page:
            self._tally.take(page)
            self._also(page)
            self._after = page[-1].offset
        if len(page) < BATCH_MOST:
            self.behind = 0
            return _EVERY
        self.behind = max(0, self._store.ledger_extent()[1] - self.offset)
        return monotonic() - started
