"""Rates of the last five minutes by queue, from the tail of the ledger.

The tracker keeps its offset, so a refresh costs what happened since the last one. It reads for up to
`READ_SECONDS` and continues with the next refresh; until then the rates lag behind. When more than `MAX_READ` records
are missing, only the newest are counted, and the earlier steps are unknown: a gap in the chart, not a zero. Without a
ledger there are no rates. Those of several cells are added up, without a cell that does not answer.
"""

from collections.abc import Collection
from threading import Lock
from time import monotonic
from typing import Final

from msgspec import Struct

from forebay.core.humanize import SECOND
from forebay.core.instant import Instant
from forebay.core.ledger import Change, LedgerEntry
from forebay.ledger_reader import of_each_ledger, offset_at, read_range
from forebay.serve.metrics.history import Counts, Series, add_counts, series_of, sum_counts
from forebay.store.protocol import Store

STEP: Final = 5 * SECOND
STEPS: Final = 60
MAX_READ: Final = 10_000
READ_SECONDS: Final = 0.06
_MINUTE: Final = 60 * SECOND
_FRESH_SECONDS: Final = 0.5
_MAX_OWNERS: Final = 1_000
_MAX_QUEUES: Final = 1_000
"""Queues of one step that are counted by name; the others are added up."""


class Rates(Struct, frozen=True):
    """For some queues: jobs per second in the last minute, and jobs in each completed step."""

    accepted: float = 0.0
    done: float = 0.0
    retried: float = 0.0
    dead: float = 0.0
    coming: Series = ()
    going: Series = ()
    failing: Series = ()


class RateTracker:
    """The last minutes of one store. Thread-safe: one thread reads at a time, the others use what is there.

    `known`: whether there was a ledger at the last refresh.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = Lock()
        self._after: dict[str, int] = {}
        self._known_from: Instant = 0
        self._steps: dict[int, Counts] = {}
        self._claims: dict[str, tuple[Instant, int]] = {}
        self._now: Instant = 0
        self._read_at = float("-inf")
        self.known = True

    def refresh(self) -> None:
        """Count what happened since the last refresh."""
        if monotonic() - self._read_at < _FRESH_SECONDS or not self._reading.acquire(False):
            return
        try:
            self._read()
            self._read_at = monotonic()
        finally:
            self._reading.release()

    def rates(self, queues: Collection[str] | None = None) -> Rates:
        """The rates of these queues together, or of all."""
        last = self._now // STEP
        steps = [self._sums(step, queues) for step in range(last - STEPS, last)]
        recent = [row for row in steps[-_MINUTE // STEP :] if row is not None]
        seconds = max(1.0, (last * STEP - max(last * STEP - _MINUTE, self._known_from)) / SECOND)
        accepted, done, retried, dead = (count / seconds for count in sum_counts(recent))
        return Rates(accepted, done, retried, dead, *series_of(steps))

    def busy(self) -> dict[str, int]:
        """By queue: how many jobs were accepted or done in the last minute."""
        found: dict[str, int] = {}
        for step in range((self._now - _MINUTE) // STEP, self._now // STEP + 1):
            for queue, (accepted, done, _, _) in self._steps.get(step, {}).items():
                found[queue] = found.get(queue, 0) + accepted + done
        return found

    def claims(self) -> dict[str, tuple[Instant, int]]:
        """By owner: when it last claimed, and how many jobs in the known time."""
        return dict(self._claims)

    def _sums(self, step: int, queues: Collection[str] | None) -> list[int] | None:
        if (step + 1) * STEP <= self._known_from:
            return None
        counts = self._steps.get(step, {})
        if queues is None:
            return sum_counts(counts.values())
        names = queues if len(queues) < len(counts) else counts
        return sum_counts(counts[name] for name in names if name in counts and name in queues)

    def _read(self) -> None:
        now = self._store.now()
        since = now - STEPS * STEP
        if self._now < since:
            self._known_from, self._steps, self._claims, self._after = since, {}, {}, {}
        read = of_each_ledger(self._store, lambda name, ledger: self._read_ledger(name, ledger, now, since))
        self.known = any(known for known, _ in read.values())
        self._now = min(seen for _, seen in read.values())
        for step in [step for step in self._steps if (step + 1) * STEP <= since]:
            del self._steps[step]
        self._claims = {owner: last for owner, last in self._claims.items() if last[0] >= since}

    def _read_ledger(self, name: str, ledger: Store, now: Instant, since: Instant) -> tuple[bool, Instant]:
        """Count the new records of one ledger: whether there is one, and up to when it is counted."""
        _, following = ledger.ledger_extent()
        known = following > 0 or ledger.ledger_rule().on
        if name not in self._after:
            self._after[name] = offset_at(ledger, since) - 1
        cut = following - 1 - self._after[name] > MAX_READ
        if cut:
            self._after[name] = following - 1 - MAX_READ
        until = monotonic() + READ_SECONDS
        for entry in read_range(ledger, self._after[name] + 1, MAX_READ):
            if cut:
                self._known_from, cut = max(self._known_from, entry.record.at), False
            self._after[name] = entry.offset
            self._take(entry)
            if monotonic() >= until and entry.offset + 1 < following:
                return known, min(now, entry.record.at)
        return known, now

    def _take(self, entry: LedgerEntry) -> None:
        record = entry.record
        add_counts(self._steps.setdefault(record.at // STEP, {}), record.ranges, _MAX_QUEUES)
        if (
            record.verb == "claim"
            and record.owner
            and (record.owner in self._claims or len(self._claims) < _MAX_OWNERS)
        ):
            _, before = self._claims.get(record.owner, (0, 0))
            claimed = sum(job_range.n for job_range in record.ranges if job_range.change == Change.CLAIMED)
            self._claims[record.owner] = (record.at, before + claimed)
