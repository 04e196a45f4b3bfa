"""Everything the in-process store must not lose, and the one way to change it: `apply(event)`.

A live call and a recovery apply the same events through the same code, so a recovered store equals the one that
crashed. Facts know no heaps, gates or waiters: those are derived (`index.py`) and rebuilt from the rows.
`apply` trusts its events: verbs check before they write an event, and recovery reads events that were checked then.
A row that leaves the table is given a final state first: heaps may still hold it and must see that it ended.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.event import (
    Acked,
    Appended,
    Cancelled,
    Claimed,
    Committed,
    Died,
    Dismissed,
    Ending,
    Enqueued,
    Event,
    Extended,
    Fed,
    Fired,
    GateReleased,
    GateSet,
    Grave,
    LedgerRuled,
    LedgerTrimmed,
    PartitionsOwned,
    Paused,
    Promoted,
    Purged,
    Redriven,
    Released,
    Retried,
    ScheduleDropped,
    SchedulePut,
    SettledAll,
    SpecPut,
    Trimmed,
)
from forebay.core.instant import Instant, micros
from forebay.core.job import State
from forebay.core.limits import ERRORS_KEPT, INSTANT_MOST
from forebay.core.outcome import OUT_OF_TIME, Failure
from forebay.core.rank import rank_at
from forebay.core.schedule import Schedule
from forebay.core.shedding import GAVE_WAY
from forebay.core.spec import QueueSpec
from forebay.core.written import Told
from forebay.store.feeding import FEED_KEPT
from forebay.store.memory.deadlines import Deadlines
from forebay.store.memory.ledger_state import LedgerState
from forebay.store.memory.logs import Logs
from forebay.store.memory.row import Row

SETTLE_MEMORY: Final = 65_536
ENDING_CODES: Final[dict[type, str]] = {Acked: "a", Retried: "r", Died: "d", Released: "l", Dismissed: "c"}
_ACKED: Final = ENDING_CODES[Acked]
_WAITING, _READY, _RUNNING, _DONE = State.WAITING, State.READY, State.RUNNING, State.DONE
_SWEEP_PER_ENTRY: Final = 2
_FEED_KEPT: Final = micros(FEED_KEPT)

KeyName = tuple[str, str]
KeyFact = tuple[int, bytes, Instant]
"""Of one idempotency key: the job's id, the digest of its kind and payload, the end of its window."""


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
        self.feeds: dict[str, tuple[Fed, Instant]] = {}
        self.removed: dict[int, tuple[int, str]] = {}
        self._removed_order: deque[int] = deque()
        self._key_ends: Deadlines[KeyName] = Deadlines(1_000_000)
        self._keys_by_state: dict[KeyName, None] = {}
        self._appliers: dict[type, Callable[[Any], None]] = {
            Enqueued: self._enqueued,
            Promoted: self._promoted,
            Claimed: self._claimed,
            Extended: self._extended,
            SettledAll: self._settled,
            Cancelled: self._cancelled,
            Redriven: self._redriven,
            Purged: self._purged,
            SpecPut: self._spec_put,
            Paused: self._paused,
            GateSet: self._gate_set,
            GateReleased: self._gate_released,
            SchedulePut: self._schedule_put,
            ScheduleDropped: self._schedule_dropped,
            Fired: self._fired,
            Appended: self.logs.appended,
            Committed: self.logs.committed,
            Trimmed: self.logs.trimmed,
            PartitionsOwned: self.logs.owned,
            LedgerRuled: self._ledger_ruled,
            LedgerTrimmed: self._ledger_trimmed,
        }
        self._enders: dict[type, Callable[[Instant, Row, Any], None]] = {
            Acked: self._acked,
            Retried: self._retried,
            Died: self._died,
            Released: self._released,
            Dismissed: self._dismissed,
        }

    def apply(self, event: Event, told: Told | None = None) -> None:
        self._appliers[type(event)](event)
        self.last_at = event.at
        if told is not None:
            self.ledger.told(told)

    def spec(self, queue: str) -> QueueSpec:
        """The queue's spec; a queue nobody configured has the default one."""
        spec = self.specs.get(queue)
        return QueueSpec(name=queue) if spec is None else spec

    def state(self, job_id: int) -> State | None:
        """Where a job is; None: it is gone."""
        row = self.rows.get(job_id)
        return None if row is None else row.state

    def sweep_keys(self, now: Instant, limit: int) -> None:
        """Forget keys whose window has passed, and some whose job is gone; not an event, because they mean nothing."""
        for name in self._key_ends.due(now, limit):
            self._key_ends.remove(self.keys.pop(name)[2], name)
        for name in list(islice(self._keys_by_state, limit)):
            del self._keys_by_state[name]
            if self.keys[name][0] in self.rows:
                self._keys_by_state[name] = None
            else:
                del self.keys[name]

    def remember_key(self, name: KeyName, fact: KeyFact) -> None:
        known = self.keys.get(name)
        if known is not None:
            self._key_ends.remove(known[2], name)
            self._keys_by_state.pop(name, None)
        self.keys[name] = fact
        if fact[2] < INSTANT_MOST:
            self._key_ends.add(fact[2], name)
        else:
            self._keys_by_state[name] = None

    def remember_removed(self, job_id: int, settled: tuple[int, str]) -> None:
        self.removed[job_id] = settled
        self._removed_order.append(job_id)
        if len(self._removed_order) > SETTLE_MEMORY:
            del self.removed[self._removed_order.popleft()]

    def removed_in_order(self) -> Iterator[tuple[int, tuple[int, str]]]:
        return ((job_id, self.removed[job_id]) for job_id in self._removed_order)

    def _enqueued(self, event: Enqueued) -> None:
        for job_id in event.mended:
            self._remove(job_id)
        self._accept(event)
        if event.fed is not None:
            self.remember_feed(event.fed, event.at)

    def remember_feed(self, fed: Fed, at: Instant) -> None:
        """How far a source has come; those that nobody has heard of for long are forgotten."""
        self.feeds.pop(fed.source, None)
        self.feeds[fed.source] = (fed, at)
        for source in [name for name, (_, last) in islice(self.feeds.items(), 2) if last < at - _FEED_KEPT]:
            del self.feeds[source]

    def _accept(self, event: Enqueued | Fired) -> None:
        rows, at, entries, merged = self.rows, event.at, event.entries, event.merged
        for entry in entries:
            due_at = entry.due_at
            rank = rank_at(entry.rank_base, entry.rank_timed, due_at, at)
            rows[entry.id] = Row(entry, _READY if entry.ready else _WAITING, at, due_at, rank)
            if entry.key is not None:
                self.remember_key((entry.queue, entry.key), (entry.id, entry.key_digest, entry.key_until))
        for merge in merged:
            row = rows[merge.id]
            row.take_over(merge, at)
            if merge.key is not None:
                self.remember_key((row.entry.queue, merge.key), (merge.id, merge.key_digest, merge.key_until))
        for job_id in event.shed:
            self._bury(rows[job_id], GAVE_WAY, at, event.graves.get(job_id))
        if entries:
            self.next_id = entries[-1].id + 1
        if self.keys:
            self.sweep_keys(at, _SWEEP_PER_ENTRY * (len(entries) + 1))

    def _promoted(self, event: Promoted) -> None:
        for job_id in event.ids:
            self.rows[job_id].state = State.READY
        for job_id in event.expired:
            self._bury(self.rows[job_id], OUT_OF_TIME, event.at, event.graves.get(job_id))

    def _move_tats(self, event: Claimed) -> None:
        """Each new one goes to the end; of those at the front, some that say nothing any more are forgotten."""
        tats = self.tats
        for name, tat in event.tats.items():
            tats.pop(name, None)
            tats[name] = tat
        for name in list(islice(tats, _SWEEP_PER_ENTRY * len(event.tats))):
            if tats[name] > event.at:
                break
            del tats[name]

    def _claimed(self, event: Claimed) -> None:
        if event.tats:
            self._move_tats(event)
        rows, at, until, owner = self.rows, event.at, event.until, event.owner
        for job_id, delivery in zip(event.ids, event.deliveries, strict=True):
            row = rows[job_id]
            row.state = _RUNNING
            row.delivery = delivery
            row.attempt += 1
            row.owner = owner
            row.claimed_at = at
            row.until = until

    def _extended(self, event: Extended) -> None:
        for job_id in event.ids:
            self.rows[job_id].until = event.until

    def _settled(self, event: SettledAll) -> None:
        rows, at, enders = self.rows, event.at, self._enders
        for ending in event.endings:
            enders[type(ending)](at, rows[ending.id], ending)

    def _acked(self, at: Instant, row: Row, ending: Acked) -> None:
        if ending.kept_until:
            row.result = ending.result
            self._settle(row, ending)
            self._finish(row, State.DONE, at, ending.kept_until)
        else:
            row.state = _DONE
            del self.rows[ending.id]
            self.remember_removed(ending.id, (ending.delivery, _ACKED))

    def _retried(self, at: Instant, row: Row, ending: Retried) -> None:
        self._settle(row, ending)
        self._fail(row, ending.error, at)
        row.state = State.WAITING
        if ending.keep_rank:
            row.go_back(ending.due_at)
        else:
            row.restamp(ending.due_at, at)

    def _died(self, at: Instant, row: Row, ending: Died) -> None:
        self._settle(row, ending)
        self._bury(row, ending.error, at, ending.grave)

    def _bury(self, row: Row, error: Failure, at: Instant, grave: Grave | None) -> None:
        """The one way to die: the job lies where its queue sends the dead, for as long as that queue keeps them."""
        self._fail(row, error, at)
        self._finish(row, State.DEAD, at, 0 if grave is None else grave.kept_until)
        if grave is not None and grave.queue is not None:
            row.home = row.entry.queue
            row.entry = replace(row.entry, queue=grave.queue)

    def _released(self, at: Instant, row: Row, ending: Released) -> None:
        self._settle(row, ending)
        if ending.error is not None:
            self._fail(row, ending.error, at)
        row.attempt -= 1
        row.state = State.WAITING
        if ending.leads:
            row.go_back(ending.due_at)
        else:
            row.due_at = ending.due_at

    def _dismissed(self, at: Instant, row: Row, ending: Dismissed) -> None:
        self._settle(row, ending)
        if ending.kept_until:
            self._finish(row, State.CANCELLED, at, ending.kept_until)
        else:
            row.state = State.CANCELLED
            del self.rows[ending.id]
            self.remember_removed(ending.id, row.settled)

    def _settle(self, row: Row, ending: Ending) -> None:
        row.settled = (ending.delivery, ENDING_CODES[type(ending)])
        row.owner = None
        row.claimed_at = None

    def _fail(self, row: Row, error: Failure, at: Instant) -> None:
        row.errors = (*row.errors, replace(error, at=at, attempt=row.attempt))[-ERRORS_KEPT:]

    def _finish(self, row: Row, state: State, at: Instant, kept_until: Instant = 0) -> None:
        row.state = state
        row.finished_at = at
        row.kept_until = kept_until

    def _cancelled(self, event: Cancelled) -> None:
        for job_id, kept_until in zip(event.ids, event.kept_until, strict=True):
            self._finish(self.rows[job_id], State.CANCELLED, event.at, kept_until)
            if not kept_until:
                self._remove(job_id)
        for job_id in event.asked:
            self.rows[job_id].cancel_requested = True

    def _redriven(self, event: Redriven) -> None:
        for job_id in event.ids:
            row = self.rows[job_id]
            row.state = State.WAITING
            row.attempt = 0
            row.finished_at = 0
            row.kept_until = 0
            row.cancel_requested = False
            # Whoever redrives an expired job wants it to run all the same.
            row.entry = replace(row.entry, expires_at=None, queue=row.queue)
            row.home = None
            row.restamp(event.at, event.at)
        for job_id in event.withdrawn:
            self.rows[job_id].state = State.WAITING

    def _purged(self, event: Purged) -> None:
        for job_id in event.ids:
            self._remove(job_id)

    def _remove(self, job_id: int) -> None:
        row = self.rows.pop(job_id)
        row.state = State.CANCELLED
        if row.settled[0]:
            self.remember_removed(job_id, row.settled)

    def _spec_put(self, event: SpecPut) -> None:
        self.specs[event.spec.name] = event.spec
        if event.spec.is_log:
            self.logs.create(event.spec)

    def _paused(self, event: Paused) -> None:
        if event.until is None:
            self.paused.pop(event.queue, None)
        else:
            self.paused[event.queue] = event.until

    def _gate_set(self, event: GateSet) -> None:
        if event.limit is None:
            self.gate_limits.pop(event.name, None)
        else:
            self.gate_limits[event.name] = event.limit

    def _gate_released(self, event: GateReleased) -> None:
        for job_id in event.ids:
            row = self.rows[job_id]
            row.entry = replace(row.entry, gates=tuple(name for name in row.entry.gates if name != event.gate))

    def _schedule_put(self, event: SchedulePut) -> None:
        self.schedules[event.schedule.name] = event.schedule

    def _schedule_dropped(self, event: ScheduleDropped) -> None:
        self.schedules.pop(event.name, None)

    def _ledger_ruled(self, event: LedgerRuled) -> None:
        self.ledger.ruled(event)

    def _ledger_trimmed(self, event: LedgerTrimmed) -> None:
        self.ledger.trimmed(event)

    def _fired(self, event: Fired) -> None:
        self._accept(event)
        self.last_ticks[event.name] = event.tick
        schedule = self.schedules[event.name]
        jobs = [*(entry.id for entry in event.entries), *(merge.id for merge in event.merged), schedule.last_job]
        self.schedules[event.name] = replace(schedule, next_at=event.next_at, last_at=event.tick, last_job=jobs[0])
