"""Counting the records of a ledger: jobs by change, and durations.

The counts of a tally over a whole ledger equal those of the audit (`forebay.spark`), change by change. A duration is
computed from one record, by the store's clock. A store may extend all leases of an owner by one heartbeat, which names
no job; heartbeats are counted apart.

    wait      due → claimed, for every claim              lateness   the same, for delayed jobs
    run       claimed → the end of the lease              total      accepted → the end of the job

A limited number of names get their own series (`LabelNames`); the rest share the label `other`. A label for every name
that a producer invents would let one producer fill the memory of this process and of its scrapers. The first `queues`
queues and the first `pairs` pairs of queue and kind have their own series; further kinds of a known queue share its
`other`, further queues share one `other`. Sums stay correct: nothing is left out.
"""

from threading import Lock
from typing import Final

from forebay.core.instant import Instant
from forebay.core.ledger import Change, JobRange, LedgerEntry
from forebay.core.outcome import ABANDONED
from forebay.work.metrics import Distribution, Histogram

OTHER: Final = "other"
MAX_QUEUES: Final = 100
MAX_PAIRS: Final = 200
"""Together at most about 20,000 series."""

Pair = tuple[str, str]

RECLAIMED: Final = "reclaimed"
"""A retry or a death because the lease expired: counted besides the change itself."""

COUNTED: Final = (*(change.value for change in Change), RECLAIMED)
LEASED: Final = frozenset((Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED))
"""Changes that end a lease."""

ENDED: Final = frozenset((Change.ACKED, Change.DIED, Change.DISCARDED, Change.CANCELLED, Change.EXPIRED, Change.SHED))
"""Changes that end a job."""

_FAILED: Final = frozenset((Change.RETRIED, Change.DIED))


class LabelNames:
    """First come, first served, for the life of the process: the name behind a series never changes."""

    def __init__(self, queues: int = MAX_QUEUES, pairs: int = MAX_PAIRS) -> None:
        self._max_queues = queues
        self._max_pairs = pairs
        self._queues: set[str] = set()
        self._pairs: set[Pair] = set()

    def queue(self, queue: str) -> str:
        """The label of a queue."""
        if queue in self._queues:
            return queue
        if len(self._queues) >= self._max_queues:
            return OTHER
        self._queues.add(queue)
        return queue

    def pair(self, queue: str, kind: str) -> Pair:
        """The labels of a kind of job in a queue."""
        pair = (queue, kind)
        if pair in self._pairs:
            return pair
        if self.queue(queue) == OTHER:
            return (OTHER, OTHER)
        if len(self._pairs) >= self._max_pairs:
            return (queue, OTHER)
        self._pairs.add(pair)
        return pair


class TallyRow:
    """One queue and kind."""

    __slots__ = ("counts", "run", "wait")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTED, 0)
        self.wait = Histogram()
        self.run = Histogram()


class QueueRow:
    """The measures of a queue as a whole."""

    __slots__ = ("claimed_at", "lateness", "total")

    def __init__(self) -> None:
        self.total = Histogram()
        self.lateness = Histogram()
        self.claimed_at: Instant = 0


class EventTally:
    """One thread calls `take`, any thread the rest; a reader sees whole batches."""

    def __init__(self, names: LabelNames) -> None:
        self._names = names
        self._rows: dict[Pair, TallyRow] = {}
        self._queues: dict[str, QueueRow] = {}
        self._guard = Lock()
        self.records = 0
        self.heartbeats = 0

    def take(self, entries: list[LedgerEntry]) -> None:
        with self._guard:
            for entry in entries:
                self.records += 1
                self.heartbeats += entry.record.verb == "extend" and not entry.record.ranges
                for job_range in entry.record.ranges:
                    self._add_range(job_range, entry.record.at)

    def counts(self) -> dict[Pair, dict[str, int]]:
        """By labels: how many jobs, by change."""
        with self._guard:
            return {pair: dict(row.counts) for pair, row in self._rows.items()}

    def durations(self) -> dict[str, list[tuple[tuple[str, ...], Distribution]]]:
        """By measure: the labels and the distribution."""
        with self._guard:
            return {
                "wait": [(pair, row.wait.snapshot()) for pair, row in self._rows.items()],
                "run": [(pair, row.run.snapshot()) for pair, row in self._rows.items()],
                "total": [((queue,), row.total.snapshot()) for queue, row in self._queues.items()],
                "lateness": [((queue,), row.lateness.snapshot()) for queue, row in self._queues.items()],
            }

    def claimed_at(self, queue: str) -> Instant:
        """When a job of the queue was last claimed; 0: not since the start. Queues without a label share one."""
        with self._guard:
            row = self._queues.get(self._names.queue(queue))
        return 0 if row is None else row.claimed_at

    def _add_range(self, job_range: JobRange, at: Instant) -> None:
        if job_range.traits is None:
            self._jobs(job_range, job_range.kind, job_range.n, at)
            return
        for trait in job_range.traits:
            kind = job_range.kind if trait is None or trait.kind is None else trait.kind
            row = self._jobs(job_range, kind, 1, at)
            if trait is not None and trait.error_kind == ABANDONED and job_range.change in _FAILED:
                row.counts[RECLAIMED] += 1

    def _jobs(self, job_range: JobRange, kind: str, n: int, at: Instant) -> TallyRow:
        """Count `n` jobs of one kind with the same change."""
        queue, kind = self._names.pair(job_range.queue, kind)
        row = self._rows.get((queue, kind))
        if row is None:
            row = self._rows[queue, kind] = TallyRow()
        whole = self._queues.get(queue)
        if whole is None:
            whole = self._queues[queue] = QueueRow()
        change = job_range.change
        if change in row.counts:
            row.counts[change] += n
        if change == Change.CLAIMED:
            whole.claimed_at = max(whole.claimed_at, at)
            row.wait.add(at - job_range.due_at, n)
            if job_range.delivery == 1 and job_range.due_at > job_range.enqueued_at:
                whole.lateness.add(at - job_range.due_at, n)
        elif change in LEASED:
            row.run.add(at - job_range.claimed_at, n)
        if change in ENDED and job_range.enqueued_at:
            whole.total.add(at - job_range.enqueued_at, n)
        return row
