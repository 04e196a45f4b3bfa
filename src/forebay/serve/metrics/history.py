"""The last 24 hours in steps of five minutes: jobs accepted, done, retried and dead, by queue.

The follower's records are counted as they are read. A completed step is appended to the reserved log
`forebay.history`, whose window is a little longer than a day, so that the history survives a restart and is shared by
all servers of a store: a step that another server has written is not written again. What happened while no server ran
is backfilled from the ledger at start, up to `MAX_BACKFILL` records. A step that is not fully counted is unknown, not
zero. Ledgers of several cells are added up; those of a cell that is down are not waited for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from forebay.core.errors import OffsetGone
from forebay.core.instant import Instant, hours
from forebay.core.ledger import Change, JobRange, LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.ledger_reader import of_each_ledger, offset_at, read_range
from forebay.serve.security.keys import ensure_log
from forebay.store.protocol import Store

HISTORY_LOG: Final = "forebay.history"
STEP: Final = 300_000_000
STEPS: Final = 288
MAX_QUEUES: Final = 100
"""Queues of one step that are counted by name; the others are added up."""

MAX_BACKFILL: Final = 20_000
_WINDOW: Final = hours(25)
_GRACE: Final = 10_000_000
"""Records are read a little later than they were written."""

_EVERY: Final = 5.0
_SOON: Final = 0.2
_OTHERS: Final = ""
"""Queues beyond a limit are added up under this name, which no queue has."""

_ACCEPTED, _DONE, _RETRIED, _DEAD = range(4)

_COLUMNS: Final[dict[str, int]] = {
    Change.ACCEPTED: _ACCEPTED,
    Change.ACKED: _DONE,
    Change.RETRIED: _RETRIED,
    Change.DIED: _DEAD,
    Change.EXPIRED: _DEAD,
    Change.SHED: _DEAD,
}

Counts = dict[str, list[int]]
"""By queue: accepted, done, retried, dead."""

Series = tuple[int | None, ...]
"""A number of each step, oldest first; None: unknown."""


def add_counts(counts: Counts, ranges: Iterable[JobRange], max_queues: int) -> None:
    """Count the changes of a record."""
    for job_range in ranges:
        if (column := _COLUMNS.get(job_range.change)) is not None:
            name = job_range.queue if job_range.queue in counts or len(counts) < max_queues else _OTHERS
            counts.setdefault(name, [0, 0, 0, 0])[column] += job_range.n


def sum_counts(rows: Iterable[list[int]]) -> list[int]:
    """The sums over queues."""
    return [sum(column) for column in zip((0, 0, 0, 0), *rows, strict=True)]


def series_of(steps: Sequence[list[int] | None]) -> tuple[Series, Series, Series]:
    """Accepted, done and failed, of the sums of each step."""
    return (
        tuple(None if row is None else row[_ACCEPTED] for row in steps),
        tuple(None if row is None else row[_DONE] for row in steps),
        tuple(None if row is None else row[_RETRIED] + row[_DEAD] for row in steps),
    )


class HistoryStep(Struct, frozen=True):
    """One entry of the log: `step` counts from 1970."""

    step: int
    queues: Counts


class Day(Struct, frozen=True):
    """Jobs of some queues in each step, and their sums."""

    coming: Series
    going: Series
    failing: Series

    @property
    def known(self) -> int:
        """How many steps are known."""
        return sum(count is not None for count in self.going)

    @property
    def accepted(self) -> int:
        return sum(count or 0 for count in self.coming)

    @property
    def done(self) -> int:
        return sum(count or 0 for count in self.going)

    @property
    def failed(self) -> int:
        return sum(count or 0 for count in self.failing)


class Followed(Protocol):
    """The follower: the offset that is read next, -1 before the first step."""

    @property
    def offset(self) -> int: ...


_decode: Final = msgspec.json.Decoder(HistoryStep).decode
_encode: Final = msgspec.json.Encoder().encode


class RateHistory:
    """A role (`forebay.work.role`). The follower calls `take` with each page; any thread may call `day`."""

    name = "history"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = Lock()
        self._started = monotonic()
        self._first: dict[str, int] = {}
        self._whole_from: Instant | None = None
        self._counted: dict[int, Counts] = {}
        self._written: dict[int, Counts] = {}
        self._after = -1
        self.followed: Mapping[str, Followed] = {}

    def take(self, ledger: str, entries: Iterable[LedgerEntry]) -> None:
        """Count records of one of the ledgers; "": a single store has one."""
        with self._guard:
            for entry in entries:
                self._first.setdefault(ledger, entry.offset)
                self._count(entry)

    def step(self) -> float:
        """Write the completed steps; the first time, backfill what happened before this server started."""
        now = self._store.now()
        self._read_log(now)
        if self._whole_from is None:
            begun = [each.offset >= 0 for each in self.followed.values()]
            if not any(begun) or (not all(begun) and monotonic() < self._started + _EVERY):
                return _SOON
            self._backfill(now)
        assert self._whole_from is not None
        first = max(-(-self._whole_from // STEP), now // STEP - STEPS)
        over = [step for step in range(first, (now - _GRACE) // STEP) if step not in self._written]
        for step in over:
            with self._guard:
                counts = self._counted.pop(step, {})
            self._write(HistoryStep(step, counts))
        self._forget(now)
        return _EVERY

    def day(self, now: Instant, wanted: Callable[[str], bool] | None = None) -> Day:
        """The sums of the wanted queues, or of all; without the current step."""
        with self._guard:
            known = [self._known(step) for step in range(now // STEP - STEPS, now // STEP)]
            sums = [
                None
                if counts is None
                else sum_counts(row for name, row in counts.items() if wanted is None or wanted(name))
                for counts in known
            ]
        return Day(*series_of(sums))

    def _known(self, step: int) -> Counts | None:
        if step in self._written:
            return self._written[step]
        whole = self._whole_from is not None and step * STEP >= self._whole_from
        return self._counted.get(step, {}) if whole else None

    def _count(self, entry: LedgerEntry) -> None:
        add_counts(self._counted.setdefault(entry.record.at // STEP, {}), entry.record.ranges, MAX_QUEUES)

    def _backfill(self, now: Instant) -> None:
        """Count the records before the followers' first ones, from the last step of the log on."""
        since = max((now // STEP - STEPS) * STEP, (max(self._written, default=0) + 1) * STEP)
        whole = of_each_ledger(self._store, lambda name, ledger: self._backfill_from(name, ledger, since))
        self._whole_from = max(now if each is None else each for each in whole.values())

    def _backfill_from(self, name: str, ledger: Store, since: Instant) -> Instant | None:
        """From when on everything in this ledger is counted; None: from now on."""
        with self._guard:
            start = max(0, self._first.get(name, self.followed[name].offset))
        kept, _ = ledger.ledger_extent()
        offset = offset_at(ledger, since)
        first = max(offset, start - MAX_BACKFILL)
        whole_from = since if kept < offset == first else None
        for entry in read_range(ledger, first, max(0, start - first)):
            with self._guard:
                if whole_from is None:
                    # Nothing precedes the first record of a ledger; what precedes a later one is unknown.
                    at = entry.record.at
                    whole_from = at // STEP * STEP if entry.offset == 0 else at + 1
                if entry.record.at >= since:
                    self._count(entry)
        return whole_from

    def _read_log(self, now: Instant) -> None:
        """Read the steps that any server has written since the last call."""
        if all(spec.name != HISTORY_LOG for spec in self._store.specs()):
            return
        oldest = now // STEP - STEPS
        self._after = max(self._after, self._store.extent(HISTORY_LOG)[0][0] - 1)
        try:
            while page := self._store.read(HISTORY_LOG, 0, self._after, MAX_BATCH):
                self._after = page[-1].offset
                found = [_decode(entry.body) for entry in page]
                with self._guard:
                    self._written |= {each.step: each.queues for each in found if each.step >= oldest}
        except OffsetGone as gone:
            self._after = gone.first - 1

    def _write(self, step: HistoryStep) -> None:
        ensure_log(self._store, HISTORY_LOG, _WINDOW)
        self._store.append(HISTORY_LOG, [_encode(step)])
        with self._guard:
            self._written[step.step] = step.queues

    def _forget(self, now: Instant) -> None:
        oldest = now // STEP - STEPS
        with self._guard:
            for known in (self._written, self._counted):
                for step in [step for step in known if step < oldest]:
                    del known[step]
