"""Everything that the in-process store must not lose, by table; `changes.apply` is the one way to change it.

Facts know no heaps, gates or waiters: those are derived (`index.py`) and rebuilt from the rows.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from forebay.core.entries import Ingested
from forebay.core.instant import Instant, micros
from forebay.core.job import State
from forebay.core.limits import MAX_INSTANT, SOURCE_KEPT
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.engine.intake import KeyFact
from forebay.engine.settle import Mark
from forebay.store.memory.deadlines import Deadlines
from forebay.store.memory.ledger_state import LedgerState
from forebay.store.memory.logs import Logs
from forebay.store.memory.row import Row

SETTLE_MEMORY: Final = 65_536
_SOURCE_KEPT: Final = micros(SOURCE_KEPT)

KeyName = tuple[str, str]
"""A queue and an idempotency key."""


class Facts:
    """The durable state of one store."""

    def __init__(self) -> None:
        self.next_id = 1
        self.last_at: Instant = 0
        self.rows: dict[int, Row] = {}
        self.keys: dict[KeyName, KeyFact] = {}
        self.specs: dict[str, QueueSpec] = {}
        self.paused: dict[str, Instant] = {}
        self.gate_limits: dict[str, int] = {}
        self.tats: dict[str, Instant] = {}
        self.schedules: dict[str, Schedule] = {}
        self.last_ticks: dict[str, Instant] = {}
        self.logs = Logs()
        self.ledger = LedgerState()
        self.feeds: dict[str, tuple[Ingested, Instant]] = {}
        self.removed: dict[int, Mark] = {}
        self._removed_order: deque[int] = deque()
        self._key_ends: Deadlines[KeyName] = Deadlines(1_000_000)
        self._keys_by_state: dict[KeyName, None] = {}

    def spec(self, queue: str) -> QueueSpec:
        """The queue's spec; a queue nobody configured has the default one."""
        spec = self.specs.get(queue)
        return QueueSpec(name=queue) if spec is None else spec

    def state(self, job_id: int) -> State | None:
        """Where a job is; None: it is gone."""
        row = self.rows.get(job_id)
        return None if row is None else row.state

    def sweep_keys(self, now: Instant, limit: int) -> None:
        """Forget keys whose window has passed, and some whose job is gone; not a change, because they mean nothing."""
        for name in self._key_ends.due(now, limit):
            self._key_ends.remove(self.keys.pop(name).until, name)
        for name in list(islice(self._keys_by_state, limit)):
            del self._keys_by_state[name]
            if self.keys[name].job_id in self.rows:
                self._keys_by_state[name] = None
            else:
                del self.keys[name]

    def remember_key(self, name: KeyName, fact: KeyFact) -> None:
        known = self.keys.get(name)
        if known is not None:
            self._key_ends.remove(known.until, name)
            self._keys_by_state.pop(name, None)
        self.keys[name] = fact
        if fact.until < MAX_INSTANT:
            self._key_ends.add(fact.until, name)
        else:
            self._keys_by_state[name] = None

    def remember_removed(self, job_id: int, mark: Mark) -> None:
        self.removed[job_id] = mark
        self._removed_order.append(job_id)
        if len(self._removed_order) > SETTLE_MEMORY:
            del self.removed[self._removed_order.popleft()]

    def removed_in_order(self) -> Iterator[tuple[int, Mark]]:
        return ((job_id, self.removed[job_id]) for job_id in self._removed_order)

    def remember_feed(self, fed: Ingested, at: Instant) -> None:
        """How far a source has come; those that nobody has heard of for long are forgotten."""
        self.feeds.pop(fed.source, None)
        self.feeds[fed.source] = (fed, at)
        for source in [name for name, (_, last) in islice(self.feeds.items(), 2) if last < at - _SOURCE_KEPT]:
            del self.feeds[source]
