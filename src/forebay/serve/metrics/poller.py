"""Polling the store: how many jobs each queue holds, how old they are, and whether they are claimed.

A scrape makes no store call: it returns the last poll and its age. A slow poll, such as one over millions of rows, is
made less often, so that polling takes at most a twentieth of the time. What costs more or changes slowly (age of dead
letters, groups of logs, gates, the state of the server behind the store) is polled every ten seconds. Only the deepest
queues are read one by one; the others are added up.

A queue is stalled while it has ready jobs, is not paused, and none is claimed. A claim shows in the ledger, or as more
jobs running, more done, or a younger oldest job; one of them is enough.
"""

from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Final

from msgspec import Struct

from forebay.core.errors import StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.job import State
from forebay.core.limits import MAX_BATCH
from forebay.core.names import is_reserved
from forebay.core.presence import unhandled_kinds
from forebay.serve.metrics.gates import GateSums, sum_gates
from forebay.serve.metrics.tally import EventTally
from forebay.store.log import Standing
from forebay.store.protocol import Backlog, Cellular, Inspecting, Query, Store, Totals, Vitals

_EVERY: Final = 1.0
_SLOWLY: Final = 10.0
_SHARE: Final = 20
_MAX_SHARE: Final = 300.0
_MAX_DEAD_QUEUES: Final = 20
_MAX_DEAD_PAGES: Final = 3
_MAX_GROUPS: Final = 50
_MAX_UNHANDLED: Final = 100
_MAX_LOGS: Final = 200
_HEAD_MOVED: Final[Duration] = 50_000


class Snapshot(Struct, frozen=True):
    """One poll: `totals` of all queues, `backlogs` of the deepest.

    `stalled`: by queue with ready jobs, seconds without a claim.
    """

    at: float
    took: float
    now: Instant
    backlogs: Sequence[Backlog]
    stalled: dict[str, float]
    totals: Totals

    @property
    def age(self) -> float:
        return monotonic() - self.at


class Stalls:
    """Since when a queue with ready jobs has had no claim."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[Instant, int, int, Instant]] = {}
        self._since: dict[str, float] = {}

    def update(
        self, backlogs: Sequence[Backlog], claimed: dict[str, Instant], now: Instant, at: float
    ) -> dict[str, float]:
        """By queue with ready jobs: seconds without a claim."""
        open_ = {each.queue: each for each in backlogs if each.ready and each.paused_until is None}
        for queue in [queue for queue in self._since if queue not in open_]:
            del self._since[queue], self._marks[queue]
        for queue, each in open_.items():
            mark = (claimed.get(queue, 0), each.running, each.done, now - each.oldest_age)
            if queue not in self._since or _moved(self._marks[queue], mark):
                self._since[queue] = at
            self._marks[queue] = mark
        return {queue: at - since for queue, since in self._since.items()}


def _moved(before: tuple[Instant, int, int, Instant], after: tuple[Instant, int, int, Instant]) -> bool:
    return any(new > old for old, new in zip(before[:3], after[:3], strict=True)) or after[3] > before[3] + _HEAD_MOVED


def _totals(cell: Store) -> Totals | None:
    try:
        return cell.totals(1)
    except StoreFailed:
        return None


class StorePoller:
    """A role (`forebay.work.role`). `snapshot` is the last poll, None before the first; `every` the poll interval.

    configured  queues and logs that have a spec
    dead_age    by queue: microseconds since its first dead letter died
    standings   by log: the positions of its first groups
    gates       the sums of gates in use
    unhandled   queue and kind of jobs that workers release, because none has a handler
    vitals      of the server behind the store, where there is one
    cells       by cell, where the store has some: its totals; None: it is down
    """

    name = "poller"

    def __init__(self, store: Store, tally: EventTally) -> None:
        self._store = store
        self._tally = tally
        self._stalls = Stalls()
        self._guard = Lock()
        self._slow_at = float("-inf")
        self.every = _EVERY
        self.snapshot: Snapshot | None = None
        self.configured: frozenset[str] = frozenset()
        self.dead_age: dict[str, Duration] = {}
        self.standings: dict[str, list[Standing]] = {}
        self.vitals: Vitals | None = None
        self.unhandled: list[tuple[str, str]] = []
        self.gates = GateSums()
        self.cells: dict[str, Totals | None] = {}

    def step(self) -> float:
        started = monotonic()
        slowly = started - self._slow_at >= _SLOWLY
        self.poll(slowly=slowly)
        if slowly:
            self._slow_at = started
        self.every = min(_MAX_SHARE, max(_EVERY, _SHARE * (monotonic() - started)))
        return self.every

    def poll(self, *, slowly: bool) -> None:
        """Poll now, from any thread; `slowly`: also what costs more."""
        with self._guard:
            started = monotonic()
            if slowly and isinstance(self._store, Inspecting):
                # First: a server that refuses writes may also refuse the rest.
                self.vitals = self._store.vitals()
            if isinstance(self._store, Cellular):
                self.cells = {name: _totals(cell) for name, cell in self._store.cells().items()}
            totals = self._store.totals(MAX_BATCH)
            backlogs = [each for each in totals.deepest if not is_reserved(each.queue)]
            now = self._store.now()
            claimed = {each.queue: self._tally.claimed_at(each.queue) for each in backlogs}
            at = monotonic()
            self.snapshot = Snapshot(
                at, at - started, now, backlogs, self._stalls.update(backlogs, claimed, now, at), totals
            )
            if slowly:
                self.unhandled = unhandled_kinds(self._store.workers("", MAX_BATCH))[:_MAX_UNHANDLED]
                self.dead_age = self._dead_ages(backlogs, now)
                specs = self._store.specs()
                self.configured = frozenset(spec.name for spec in specs)
                logs = [spec.name for spec in specs if spec.is_log and not is_reserved(spec.name)]
                self.standings = {log: self._store.groups(log, "", _MAX_GROUPS) for log in sorted(logs)[:_MAX_LOGS]}
                self.gates = sum_gates(self._store)

    def _dead_ages(self, backlogs: Sequence[Backlog], now: Instant) -> dict[str, Duration]:
        """Of the queues with the most dead letters, by the one with the smallest id, which needs no sort."""
        ages: dict[str, Duration] = {}
        for backlog in sorted(backlogs, key=lambda each: -each.dead)[:_MAX_DEAD_QUEUES]:
            after: int | None = 0 if backlog.dead else None
            for _ in range(_MAX_DEAD_PAGES):
                if after is None or backlog.queue in ages:
                    break
                page = self._store.browse(Query(queue=backlog.queue, state=State.DEAD), after, 1)
                for job in page.jobs:
                    ages[backlog.queue] = max(0, now - (job.finished_at or now))
                after = page.next
        return ages
