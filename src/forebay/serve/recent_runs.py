"""Attempts and run times of recently ended jobs, by queue.

They come from the tail of each ledger, its last `TAIL` records or `MAX_RANGES` job ranges, read at most every few
seconds. Where the ledger is off, they come from a bounded sample of the stored jobs; `source` names it.
"""

from collections import Counter
from collections.abc import Iterable
from math import ceil
from threading import Lock
from time import monotonic
from typing import Final

from forebay.core.ledger import Change
from forebay.core.limits import MAX_BATCH
from forebay.ledger_reader import of_each_ledger
from forebay.store.protocol import Query, Store

TAIL: Final = MAX_BATCH
MAX_RANGES: Final = 20_000
"""One record may hold a thousand ranges; reading ends at the page that reaches this."""

_PAGE: Final = 50
_EVERY: Final = 2.0
_ENDED: Final = frozenset({Change.ACKED.value, Change.DIED.value})


class RecentRuns:
    """By queue: `attempts` of ended jobs, and in `ran` their number and total microseconds."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._read_at = float("-inf")
        self.source = ""
        self.attempts: dict[str, Counter[int]] = {}
        self.ran: dict[str, tuple[int, int]] = {}

    def refresh(self, store: Store) -> "RecentRuns":
        """Read again when the last read is older than `_EVERY` seconds; blocking."""
        with self._guard:
            if monotonic() - self._read_at > _EVERY:
                self.attempts, self.ran = {}, {}
                if any(of_each_ledger(store, lambda _, ledger: ledger.ledger_rule().on).values()):
                    read = sum(of_each_ledger(store, lambda _, ledger: self._from_ledger(ledger)).values())
                    self.source = f"the last {read} records of the ledger"
                else:
                    self._from_jobs(store)
                self._read_at = monotonic()
        return self

    def _from_ledger(self, store: Store) -> int:
        """How many records were read; `TAIL` if there are no more."""
        first, end = store.ledger_extent()
        read = ranges = 0
        while end > first and read < TAIL and ranges < MAX_RANGES:
            begin = max(first, end - _PAGE)
            for entry in store.ledger(begin - 1, end - begin):
                ranges += len(entry.record.ranges)
                for job_range in entry.record.ranges:
                    if job_range.change in _ENDED:
                        self._ended(job_range.queue, job_range.attempt, job_range.n)
                        if job_range.claimed_at:
                            count, total = self.ran.get(job_range.queue, (0, 0))
                            took = (entry.record.at - job_range.claimed_at) * job_range.n
                            self.ran[job_range.queue] = (count + job_range.n, total + took)
            read, end = read + end - begin, begin
        return TAIL if end <= first else read

    def _from_jobs(self, store: Store) -> None:
        self.source = f"a sample of {MAX_BATCH} stored jobs: the ledger is off"
        for job in store.browse(Query(), 0, MAX_BATCH).jobs:
            if job.attempt:
                self._ended(job.queue, job.attempt, 1)

    def _ended(self, queue: str, attempt: int, count: int) -> None:
        self.attempts.setdefault(queue, Counter())[attempt] += count


def p99(attempts: Iterable[Counter[int]]) -> int | None:
    """The 99th percentile of attempts; None without jobs."""
    total: Counter[int] = Counter()
    for each in attempts:
        total.update(each)
    left = ceil(total.total() * 0.99)
    for attempt, count in sorted(total.items()):
        left -= count
        if left <= 0:
            return attempt
    return None
