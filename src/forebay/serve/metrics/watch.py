"""Looking at the store again and again: how much lies where, how old it is, and whether anybody takes it.

A scrape never asks the store: it tells what was seen last, and how long ago that was. A look that takes long, as the
backlog of millions of rows may, is made less often, so that looking is at most a twentieth of what the store does.
What costs more or changes slowly (dead letters by age, the readers of logs, gates, the server's own facts) is looked at
every ten seconds. Only the deepest queues are looked at by themselves; the others are counted together.

A queue is stalled while jobs are ready in it and none is claimed, though it is not paused. A claim shows in the ledger,
or in more jobs running, more done, a younger head; one of them is enough.
"""

from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant, Span
from forebay.core.job import State
from forebay.core.limits import BATCH_MOST
from forebay.core.names import is_reserved
from forebay.core.presence import unhandled_kinds
from forebay.serve.metrics.gates import GatesSeen, gates_of
from forebay.serve.metrics.tally import Tally
from forebay.store.log import Standing
from forebay.store.protocol import Backlog, Inspecting, Query, Store, Totals, Vitals

_EVERY: Final = 1.0
_SLOWLY: Final = 10.0
_SHARE: Final = 20
_SHARE_MOST: Final = 300.0
_DEAD_QUEUES_MOST: Final = 20
_DEAD_PAGES_MOST: Final = 3
_GROUPS_MOST: Final = 50
_UNHANDLED_MOST: Final = 100
_LOGS_MOST: Final = 200
_HEAD_MOVED: Final[Span] = 50_000


class Seen(Struct, frozen=True):
    """One look: `totals` of all queues, `backlogs` of the deepest.

    `stalled`: by queue, seconds without a claim though there is work.
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
    """Since when a queue with work has seen no claim."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[Instant, int, int, Instant]] = {}
        self._since: dict[str, float] = {}

    def judge(
        self, backlogs: Sequence[Backlog], claimed: dict[str, Instant], now: Instant, at: float
    ) -> dict[str, float]:
        """By queue with work: seconds without a claim."""
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


class Watch:
    """A role (`forebay.work.role`). `seen` is the last look, None before the first one; `every` how often it looks.

    configured  queues and logs that have a spec
    dead_age  by queue: microseconds since its first dead letter died
    standings by log: how its first groups stand with its partitions
    gates     those in use, summed up
    unhandled queue and kind of jobs that workers return, because none has a handler
    vitals    of the server behind the store, where there is one
    """

    name = "watch"

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        self._tally = tally
        self._stalls = Stalls()
        self._guard = Lock()
        self._slow_at = float("-inf")
        self.every = _EVERY
        self.seen: Seen | None = None
        self.configured: frozenset[str] = frozenset()
        self.dead_age: dict[str, Span] = {}
        self.standings: dict[str, list[Standing]] = {}
        self.vitals: Vitals | None = None
        self.unhandled: list[tuple[str, str]] = []
        self.gates = GatesSeen()

    def step(self) -> float:
        started = monotonic()
        slowly = started - self._slow_at >= _SLOWLY
        self.look(slowly=slowly)
        if slowly:
            self._slow_at = started
        self.every = min(_SHARE_MOST, max(_EVERY, _SHARE * (monotonic() - started)))
        return self.every

    def look(self, *, slowly: bool) -> None:
        """Look now, from any thread; `slowly`: also at what costs more."""
        with self._guard:
            started = monotonic()
            if slowly and isinstance(self._store, Inspecting):
                # First: a server that takes no writes may also refuse the rest.
                self.vitals = self._store.vitals()
            totals = self._store.totals(BATCH_MOST)
            backlogs = [each for each in totals.deepest if not is_reserved(each.queue)]
            now = self._store.now()
            claimed = {each.queue: self._tally.claimed_at(each.queue) for each in backlogs}
            at = monotonic()
            self.seen = Seen(at, at - started, now, backlogs, self._stalls.judge(backlogs, claimed, now, at), totals)
            if slowly:
                self.unhandled = unhandled_kinds(self._store.workers("", BATCH_MOST))[:_UNHANDLED_MOST]
                self.dead_age = self._dead_ages(backlogs, now)
                specs = self._store.specs()
                self.configured = frozenset(spec.name for spec in specs)
                logs = [spec.name for spec in specs if spec.is_log and not is_reserved(spec.name)]
                self.standings = {log: self._store.groups(log, "", _GROUPS_MOST) for log in sorted(logs)[:_LOGS_MOST]}
                self.gates = gates_of(self._store)

    def _dead_ages(self, backlogs: Sequence[Backlog], now: Instant) -> dict[str, Span]:
        """Of the queues with most dead letters; by the one with the smallest id, which is found without a sort."""
        ages: dict[str, Span] = {}
        for backlog in sorted(backlogs, key=lambda each: -each.dead)[:_DEAD_QUEUES_MOST]:
            after: int | None = 0 if backlog.dead else None
            for _ in range(_DEAD_PAGES_MOST):
                if after is None or backlog.queue in ages:
                    break
                page = self._store.browse(Query(queue=backlog.queue, state=State.DEAD), after, 1)
                for job in page.jobs:
                    ages[backlog.queue] = max(0, now - (job.finished_at or now))
                after = page.next
        return ages
