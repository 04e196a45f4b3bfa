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
from forebay.core.instant import Instant, Span
from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.ledger import Change
from forebay.core.limits import INSTANT_MOST, INTEGER_LEAST
from forebay.engine.lanes import closed_of
from forebay.store.protocol import Promotion, Want
from forebay.store.sqlite.fronts import LoadedLanes, QueueFront, workable_at
from forebay.store.sqlite.intake import Intake
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list, lease_of, picture
from forebay.store.sqlite.tally import QueueCounters
from forebay.store.sqlite.tend import TEND_LIMIT, sweep_idle, sweep_keys, tend
from forebay.store.sqlite.turn import Turn
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


class Claims(Intake):
    """From waiting to running, and leases."""

    def promote(self, limit: int) -> Promotion:
        return self._write(lambda turn: _promote(turn, limit))

    def claim(self, wants: Sequence[Want], owner: str, span: Span) -> list[Lease]:
        total = sum(want.count for want in wants)
        return self._write(lambda turn: _claim(turn, wants, owner, turn.now + span, total))

    def extend(self, leases: Sequence[Lease], span: Span) -> list[Lease]:
        return self._write(lambda turn: _extend(turn, leases, turn.now + span))

    def overdue(self, limit: int) -> list[Lease]:
        with self._read() as (reader, now):
            return [lease_of(columns) for columns in reader.execute(_OVERDUE, (now, limit))]


def _promote(turn: Turn, limit: int) -> Promotion:
    tend(turn, limit, limit)
    sweep_keys(turn, limit)
    sweep_idle(turn, limit)
    turn.trim_ledger(limit)
    turn.lanes.write()
    turn.gates.write()
    instants = [turn.connection.execute(each).fetchone() for each in (_NEXT_DUE, _NEXT_OPENING)]
    opens = [_opens_at(turn, name) for (name,) in turn.connection.execute(_PACED, (limit,)).fetchall()]
    due = [found[0] for found in instants if found is not None and found[0] is not None]
    return Promotion(turn.exposed, min([*due, *(at for at in opens if turn.now < at < INSTANT_MOST)], default=None))


def _opens_at(turn: Turn, name: str) -> Instant:
    return workable_at(turn.connection, turn.gates, turn.queue(name), turn.now)


def _claim(turn: Turn, wants: Sequence[Want], owner: str, until: Instant, total: int) -> list[Lease]:
    if not tend(turn, total + TEND_LIMIT):
        return []
    turn.lanes.write()
    claim = _Claim(turn, owner, until)
    leases: list[Lease] = []
    for want in wants:
        queue = turn.queue(want.queue)
        if queue.counts[READY] and (queue.paused_until or 0) <= turn.now:
            leases += [Lease(picture(columns), owner, until) for columns in claim.take(queue, want)]
    claim.write()
    if leases and turn.scribe is not None:
        turn.scribe.tell("claim", owner=owner)
        turn.scribe.leased(Change.CLAIMED, [lease.job for lease in leases], until)
    return leases


class _Claim:
    """One call of claim."""

    def __init__(self, turn: Turn, owner: str, until: Instant) -> None:
        self._turn = turn
        self._lease = (owner, turn.now, until)
        self._rules = LoadedLanes(turn.gates, turn.now)
        self._fronts: dict[str, QueueFront] = {}

    def take(self, queue: QueueCounters, want: Want) -> list[Columns]:
        """The next jobs of a queue that its gates admit, in order."""
        if queue.spec.share is None and not queue.laned and want.queue not in self._fronts:
            return self._take_plain(queue, want.count) if not want.cls else []
        front = self._fronts.get(want.queue)
        if front is None:
            front = self._fronts[want.queue] = QueueFront(self._turn.connection, self._rules, queue, want.count)
        jobs = front.take(want.count, want.cls).jobs
        if not jobs:
            return []
        found = self._turn.connection.execute(_CLAIM_THESE, (*self._lease, id_list(job.id for job in jobs)))
        rows = {columns[0]: columns for columns in found}
        for lane, count in Counter(job.lane for job in jobs).items():
            self._turn.tally.moved(queue.name, lane, READY, RUNNING, count)
        return [rows[job.id] for job in jobs]

    def write(self) -> None:
        for front in self._fronts.values():
            front.write(self._turn.lanes)

    def _take_plain(self, queue: QueueCounters, count: int) -> list[Columns]:
        whole = queue.known.stamper.whole
        if whole:
            count = self._admitted(queue, whole, count)
        if not count:
            return []
        execute = self._turn.connection.execute
        rows: list[Columns] = execute(_CLAIM, (*self._lease, queue.name, "", count)).fetchall()
        if rows:
            rows.sort(key=_place)
            self._turn.tally.moved(queue.name, "", READY, RUNNING, len(rows))
        return rows

    def _admitted(self, queue: QueueCounters, whole: Sequence[Gate], count: int) -> int:
        """How many of the next jobs the gates of the queue have room for; nothing passes one that costs too much."""
        turn = self._turn
        turn.gates.load(gate.name for gate in whole)
        states = [(gate, turn.gates.state(gate.name)) for gate in whole]
        found = turn.connection.execute(_NEXT_OF_LANE, (queue.name, "", INTEGER_LEAST, 0, count)).fetchall()
        for number, (_, _, cost) in enumerate(found):
            if closed_of(states, cost, turn.now) is not None:
                return number
            for gate, state in states:
                state.take(queue.name, gate, cost, turn.now)
        return len(found)


def _extend(turn: Turn, leases: Sequence[Lease], until: Instant) -> list[Lease]:
    asked = {lease.job.id: lease.job.delivery for lease in leases}
    fences = dict(turn.connection.execute(_FENCES, (id_list(asked),)).fetchall())
    held = {lease.job.id: None for lease in leases if fences.get(lease.job.id) == lease.job.delivery}
    if not held:
        return []
    ids = id_list(held)
    turn.connection.execute(_EXTEND, (ids, until))
    found = {columns[0]: lease_of(columns) for columns in turn.connection.execute(_PICTURES, (ids,))}
    survivors = [found[job_id] for job_id in held]
    if turn.scribe is not None:
        turn.scribe.tell("extend")
        turn.scribe.leased(Change.EXTENDED, [lease.job for lease in survivors], until)
    return survivors
