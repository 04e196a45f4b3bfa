"""Handing out: promote, claim, extend, overdue.

A claim of a plain queue takes the smallest (rank, id) straight from one index; gates of the whole queue only bound how
many it takes. Where jobs have lanes, `engine.lanes` chooses among what `fronts` loads. What fell due is promoted, and
what expired is buried, before anything is handed out.
"""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from forebay.core.gate import Gate
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.ledger import Change
from forebay.core.limits import MAX_INSTANT, MIN_INTEGER
from forebay.engine.lanes import closed_of
from forebay.store.protocol import Promotion, Want
from forebay.store.sqlite.fronts import LoadedLanes, QueueFront, workable_at
from forebay.store.sqlite.session import Session
from forebay.store.sqlite.tables import QueueCounters, id_list, lease_of, picture, statement
from forebay.store.sqlite.unit_of_work import MAINTAINED, UnitOfWork, maintain, sweep_idle, sweep_keys
from forebay.store.states import READY, RUNNING

_CLAIM: Final = statement("claim")
_CLAIM_THESE: Final = statement("claim_these")
_NEXT_DUE: Final = statement("next_due")
_NEXT_OPENING: Final = statement("next_opening")
_OVERDUE: Final = statement("overdue")
_FENCES: Final = statement("fences")
_EXTEND: Final = statement("extend")
_PICTURES: Final = statement("pictures")
_PACED: Final = statement("paced")
_NEXT_OF_LANE: Final = statement("next_of_lane")
_place: Final = itemgetter(Job.__struct_fields__.index("progress"), 0)

Columns = tuple[Any, ...]


class Claims:
    """From waiting to running, and leases."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def promote(self, limit: int) -> Promotion:
        return self._session.write(lambda unit: _promote(unit, limit))

    def claim(self, wants: Sequence[Want], owner: str, span: Duration) -> list[Lease]:
        total = sum(want.count for want in wants)
        return self._session.write(lambda unit: _claim(unit, wants, owner, unit.now + span, total))

    def extend(self, leases: Sequence[Lease], span: Duration) -> list[Lease]:
        return self._session.write(lambda unit: _extend(unit, leases, unit.now + span))

    def overdue(self, limit: int) -> list[Lease]:
        with self._session.read() as (reader, now):
            return [lease_of(columns) for columns in reader.execute(_OVERDUE, (now, limit))]


def _promote(unit: UnitOfWork, limit: int) -> Promotion:
    maintain(unit, limit, limit)
    sweep_keys(unit, limit)
    sweep_idle(unit, limit)
    unit.trim_ledger(limit)
    unit.write_lanes()
    instants = [unit.connection.execute(each).fetchone() for each in (_NEXT_DUE, _NEXT_OPENING)]
    opens = [_opens_at(unit, name) for (name,) in unit.connection.execute(_PACED, (limit,)).fetchall()]
    due = [found[0] for found in instants if found is not None and found[0] is not None]
    return Promotion(unit.exposed, min([*due, *(at for at in opens if unit.now < at < MAX_INSTANT)], default=None))


def _opens_at(unit: UnitOfWork, name: str) -> Instant:
    return workable_at(unit.connection, unit.gates, unit.queue(name), unit.now)


def _claim(unit: UnitOfWork, wants: Sequence[Want], owner: str, until: Instant, total: int) -> list[Lease]:
    if not maintain(unit, total + MAINTAINED):
        return []
    unit.write_lanes()
    claim = _Claim(unit, owner, until)
    leases: list[Lease] = []
    for want in wants:
        queue = unit.queue(want.queue)
        if queue.counts[READY] and (queue.paused_until or 0) <= unit.now:
            leases += [Lease(picture(columns), owner, until) for columns in claim.take(queue, want)]
    claim.write()
    if leases and unit.builder is not None:
        unit.builder.set_verb("claim", owner=owner)
        unit.builder.leased(Change.CLAIMED, [lease.job for lease in leases], until)
    return leases


class _Claim:
    """One call of claim."""

    def __init__(self, unit: UnitOfWork, owner: str, until: Instant) -> None:
        self._unit = unit
        self._lease = (owner, unit.now, until)
        self._rules: LoadedLanes | None = None
        self._fronts: dict[str, QueueFront] = {}

    def take(self, queue: QueueCounters, want: Want) -> list[Columns]:
        """The next jobs of a queue that its gates admit, in order."""
        if queue.spec.share is None and not queue.laned and want.queue not in self._fronts:
            return self._take_plain(queue, want.count) if not want.cls else []
        front = self._fronts.get(want.queue)
        if front is None:
            rules = self._rules = self._rules or LoadedLanes(self._unit.gates, self._unit.now)
            front = self._fronts[want.queue] = QueueFront(self._unit.connection, rules, queue, want.count)
        jobs = front.take(want.count, want.cls).jobs
        if not jobs:
            return []
        found = self._unit.connection.execute(_CLAIM_THESE, (*self._lease, id_list(job.id for job in jobs)))
        rows = {columns[0]: columns for columns in found}
        for lane, count in Counter(job.lane for job in jobs).items():
            self._unit.queues.moved(queue.name, lane, READY, RUNNING, count)
        return [rows[job.id] for job in jobs]

    def write(self) -> None:
        for front in self._fronts.values():
            front.write(self._unit.lanes)

    def _take_plain(self, queue: QueueCounters, count: int) -> list[Columns]:
        whole = queue.known.stamper.whole
        if whole:
            count = self._admitted(queue, whole, count)
        if not count:
            return []
        execute = self._unit.connection.execute
        rows: list[Columns] = execute(_CLAIM, (*self._lease, queue.name, "", count)).fetchall()
        if rows:
            rows.sort(key=_place)
            self._unit.queues.moved(queue.name, "", READY, RUNNING, len(rows))
        return rows

    def _admitted(self, queue: QueueCounters, whole: Sequence[Gate], count: int) -> int:
        """How many of the next jobs the gates of the queue have room for; nothing passes one that costs too much."""
        unit = self._unit
        unit.gates.load(gate.name for gate in whole)
        states = [(gate, unit.gates.state(gate.name)) for gate in whole]
        found = unit.connection.execute(_NEXT_OF_LANE, (queue.name, "", MIN_INTEGER, 0, count)).fetchall()
        for number, (_, _, cost) in enumerate(found):
            if closed_of(states, cost, unit.now) is not None:
                return number
            for gate, state in states:
                state.take(queue.name, gate, cost, unit.now)
        return len(found)


def _extend(unit: UnitOfWork, leases: Sequence[Lease], until: Instant) -> list[Lease]:
    asked = {lease.job.id: lease.job.delivery for lease in leases}
    fences = dict(unit.connection.execute(_FENCES, (id_list(asked),)).fetchall())
    held = {lease.job.id: None for lease in leases if fences.get(lease.job.id) == lease.job.delivery}
    if not held:
        return []
    ids = id_list(held)
    unit.connection.execute(_EXTEND, (ids, until))
    found = {columns[0]: lease_of(columns) for columns in unit.connection.execute(_PICTURES, (ids,))}
    survivors = [found[job_id] for job_id in held]
    if unit.builder is not None:
        unit.builder.set_verb("extend")
        unit.builder.leased(Change.EXTENDED, [lease.job for lease in survivors], until)
    return survivors
