"""Leases: promote, claim, extend, overdue, and settle, the commit point.

A claim of a plain queue takes the smallest (rank, id) straight from one index; gates of the whole queue only bound how
many it takes. Where jobs have lanes, `engine.lanes` chooses among what `claim_cursor` loads. Due jobs are promoted and
expired ones are dead before anything is claimed.

The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's. The last settle is
kept on the row or, once the job is gone, in the tables of removed jobs: a repeated one is answered alike.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final, NamedTuple

from forebay.core.gate import Gate
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, State
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.limits import MAINTAINED, MAX_INSTANT, MIN_INTEGER
from forebay.core.outcome import Ack, Verdict
from forebay.engine.lanes import start
from forebay.engine.settle import (
    VERDICT_CODES,
    Mark,
    attempts_after,
    plan_settle,
    rank_after,
    transition,
)
from forebay.store.protocol import Promotion, Want
from forebay.store.sqlite.claim_cursor import LaneCursor, LoadedLanes, workable_at
from forebay.store.sqlite.session import Session, verb
from forebay.store.sqlite.tables import JobRow, QueueCounters, failed, id_list, job_of, lease_of, rows_of, statement
from forebay.store.sqlite.unit_of_work import (
    UnitOfWork,
    count_dead,
    maintain,
    sweep_idle,
    sweep_keys,
    write_dead,
)
from forebay.store.states import READY, RUNNING, STATES

_CLAIM: Final = statement("claim")
_CLAIM_THESE: Final = statement("claim_these")
_NEXT_DUE: Final = statement("next_due")
_NEXT_OPENING: Final = statement("next_opening")
_OVERDUE: Final = statement("overdue")
_FENCES: Final = statement("fences")
_EXTEND: Final = statement("extend")
_JOBS_BY_ID: Final = statement("jobs_by_id")
_PACED: Final = statement("paced")
_NEXT_OF_LANE: Final = statement("next_of_lane")
_rank_and_id: Final = itemgetter(Job.__struct_fields__.index("progress"), 0)
Columns = tuple[Any, ...]
_ACK: Final = statement("ack")
_HELD: Final = statement("held")
_REMOVED: Final = statement("removed")
_KEEP: Final = statement("keep")
_WAIT_AGAIN: Final = statement("wait_again")


class _Acked(NamedTuple):
    """A job that is done and gone."""

    id: int
    queue: str
    kind: str
    delivery: int
    attempt: int
    enqueued_at: Instant
    due_at: Instant
    claimed_at: Instant
    lane: str
    cost: int
    line: str | None


class Leases:
    """From waiting to running, and how that ends."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @verb
    def promote(self, unit: UnitOfWork, limit: int) -> Promotion:
        maintain(unit, limit, limit)
        sweep_keys(unit, limit)
        sweep_idle(unit, limit)
        unit.trim_ledger(limit)
        unit.write_lanes()
        instants = [unit.connection.execute(each).fetchone() for each in (_NEXT_DUE, _NEXT_OPENING)]
        opens = [_opens_at(unit, name) for (name,) in unit.connection.execute(_PACED, (limit,)).fetchall()]
        due = [found[0] for found in instants if found is not None and found[0] is not None]
        return Promotion(unit.exposed, min([*due, *(at for at in opens if unit.now < at < MAX_INSTANT)], default=None))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: Duration) -> list[Lease]:
        total = sum(want.count for want in wants)
        return self.session.write(lambda unit: _claim(unit, wants, owner, unit.now + lease_for, total))

    @verb
    def extend(self, unit: UnitOfWork, leases: Sequence[Lease], lease_for: Duration) -> list[Lease]:
        until = unit.now + lease_for
        deliveries = {lease.job.id: lease.job.delivery for lease in leases}
        fences = dict(unit.connection.execute(_FENCES, (id_list(deliveries),)).fetchall())
        held = {lease.job.id: None for lease in leases if fences.get(lease.job.id) == lease.job.delivery}
        if not held:
            return []
        ids = id_list(held)
        unit.connection.execute(_EXTEND, (ids, until))
        found = {columns[0]: lease_of(columns) for columns in unit.connection.execute(_JOBS_BY_ID, (ids,))}
        survivors = [found[job_id] for job_id in held]
        unit.builder.set_verb("extend")
        unit.builder.leased(Change.EXTENDED, [lease.job for lease in survivors], until)
        return survivors

    def overdue(self, limit: int) -> list[Lease]:
        with self.session.read() as (reader, now):
            return [lease_of(columns) for columns in reader.execute(_OVERDUE, (now, limit))]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        return self.session.write(lambda unit: _settle(unit, settlements))

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: Duration
    ) -> tuple[list[Settled], list[Lease]]:
        """Two calls with one commit, and so one sync."""
        total = sum(want.count for want in wants)

        def work(unit: UnitOfWork) -> tuple[list[Settled], list[Lease]]:
            answers = _settle(unit, settlements) if settlements else []
            unit.next_record()
            return answers, _claim(unit, wants, owner, unit.now + lease_for, total)

        return self.session.write(work)


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
            leases += [Lease(job_of(columns), owner, until) for columns in claim.take(queue, want)]
    claim.write()
    if leases:
        unit.builder.set_verb("claim", owner=owner)
        unit.builder.leased(Change.CLAIMED, [lease.job for lease in leases], until)
    return leases


class _Claim:
    """One call of claim."""

    def __init__(self, unit: UnitOfWork, owner: str, until: Instant) -> None:
        self._unit = unit
        self._lease = (owner, unit.now, until)
        self._rules: LoadedLanes | None = None
        self._cursors: dict[str, LaneCursor] = {}

    def take(self, queue: QueueCounters, want: Want) -> list[Columns]:
        """The next jobs of a queue that its gates admit, in order."""
        if queue.spec.share is None and not queue.laned and want.queue not in self._cursors:
            return self._take_plain(queue, want.count) if not want.cls else []
        cursor = self._cursors.get(want.queue)
        if cursor is None:
            rules = self._rules = self._rules or LoadedLanes(self._unit.gates, self._unit.now)
            cursor = self._cursors[want.queue] = LaneCursor(self._unit.connection, rules, queue, want.count)
        jobs = cursor.take(want.count, want.cls).jobs
        if not jobs:
            return []
        found = self._unit.connection.execute(_CLAIM_THESE, (*self._lease, id_list(job.id for job in jobs)))
        rows = {columns[0]: columns for columns in found}
        for lane, count in Counter(job.lane for job in jobs).items():
            self._unit.queues.moved(queue.name, lane, READY, RUNNING, count)
        return [rows[job.id] for job in jobs]

    def write(self) -> None:
        for cursor in self._cursors.values():
            cursor.write(self._unit.lanes)

    def _take_plain(self, queue: QueueCounters, count: int) -> list[Columns]:
        whole = queue.known.stamper.whole
        if whole:
            count = self._admitted(queue, whole, count)
        if not count:
            return []
        execute = self._unit.connection.execute
        rows: list[Columns] = execute(_CLAIM, (*self._lease, queue.name, "", count)).fetchall()
        if rows:
            rows.sort(key=_rank_and_id)
            self._unit.queues.moved(queue.name, "", READY, RUNNING, len(rows))
        return rows

    def _admitted(self, queue: QueueCounters, whole: Sequence[Gate], count: int) -> int:
        """How many of the next jobs the gates of the queue have room for; nothing passes one that costs too much."""
        unit = self._unit
        unit.gates.load(gate.name for gate in whole)
        states = [(gate, unit.gates.state(gate.name)) for gate in whole]
        found = unit.connection.execute(_NEXT_OF_LANE, (queue.name, "", MIN_INTEGER, 0, count)).fetchall()
        return sum(1 for _ in takewhile(lambda job: start(states, queue.name, job[2], unit.now), found))


def _settle(unit: UnitOfWork, settlements: Sequence[Settlement]) -> list[Settled]:
    acked = _acknowledge(unit, settlements)
    if len(acked) == len(settlements):
        return [Settled.APPLIED] * len(settlements)
    fast = [lease.fence in acked for lease, _ in settlements]
    others = iter(_settle_each(unit, [each for each, done in zip(settlements, fast, strict=True) if not done]))
    return [Settled.APPLIED if done else next(others) for done in fast]


def _acknowledge(unit: UnitOfWork, settlements: Sequence[Settlement]) -> set[Fence]:
    """The common case at half the cost: plain jobs whose leases are held are done and go. The others are untouched."""
    plain = [lease.job for lease, verdict in settlements if type(verdict) is Ack and not verdict.keep_for]
    if len(plain) < len(settlements) and len({lease.job.id for lease, _ in settlements}) < len(settlements):
        return set()
    groups: dict[tuple[str, int], list[int]] = {}
    for job in plain:
        groups.setdefault((job.queue, job.delivery), []).append(job.id)
    acked: set[Fence] = set()
    for (queue, delivery), ids in groups.items():
        stamper = unit.queue(queue).known.stamper
        if stamper.kept_until(unit.now):
            continue
        rows = sorted(map(_Acked._make, unit.connection.execute(_ACK, (id_list(ids), delivery, queue))))
        if rows:
            gone = [row.id for row in rows]
            unit.store_settles([(job_id, delivery, VERDICT_CODES[Ack]) for job_id in gone])
            unit.queues.moved(queue, "", RUNNING, None, len(rows))
            unit.topics.update(gone)
            acked.update([(job_id, delivery) for job_id in gone])
            unit.builder.set_verb("settle")
            unit.builder.leased(Change.ACKED, rows, 0)
            _release_slots(unit, queue, rows, gated=stamper.gated)
    return acked


def _release_slots(unit: UnitOfWork, queue: str, rows: Sequence[_Acked], *, gated: bool) -> None:
    """Give the slots of jobs that are done back, and expose the next jobs of their lines."""
    if gated:
        costs = Counter[str]()
        for row in rows:
            costs[row.lane] += row.cost
        for lane, cost in costs.items():
            unit.give_back(queue, lane, cost)
    if lines := {row.line: None for row in rows if row.line is not None}:
        unit.expose(lines)


def _settle_each(unit: UnitOfWork, settlements: Sequence[Settlement]) -> list[Settled]:
    ids = {lease.job.id for lease, _ in settlements}
    rows = {row.id: row for row in rows_of(unit.connection.execute(_HELD, (id_list(ids),)))}
    marks: dict[int, Mark] = {}
    if missing := ids - rows.keys():
        for job_id, delivery, code in unit.connection.execute(_REMOVED, (id_list(missing),)):
            marks[job_id] = max(marks.get(job_id, (0, "")), (delivery, code))
    plan = plan_settle(settlements, rows, marks)
    if plan.endings:
        unit.builder.set_verb("settle")
        # Jobs that were settled together mostly have consecutive ids: the record is by ids.
        endings = [_end(unit, *ending) for ending in sorted(plan.endings, key=lambda ending: ending[0].id)]
        lines = {row.line: None for row, *_ in plan.endings if row.line is not None}
        if lines:
            unit.expose(lines)
        if State.WAITING in endings:
            maintain(unit)
    return plan.answers


def _end(unit: UnitOfWork, row: JobRow, verdict: Verdict, mark: Mark) -> State | None:
    """The state that a job ends in, or waits in again; None: it is gone."""
    change, state, until, error, keep_rank = transition(verdict, unit.queue(row.queue).known.stamper, unit.now)
    letter_queue, errors = row.queue, failed(row, error, unit.now)
    match state:
        case State.WAITING:
            again = (rank_after(row, keep_rank, until, unit.now), attempts_after(change, row.attempt))
            unit.connection.execute(_WAIT_AGAIN, (row.id, until, *again, errors, *mark))
        case State.DEAD:
            letter_queue = write_dead(unit, row.id, row.queue, errors, mark)
        case None:
            unit.remove([row.id], [(row.id, *mark)])
        case _:
            result = verdict.result if isinstance(verdict, Ack) else None
            unit.connection.execute(_KEEP, (row.id, STATES.index(state), unit.now, until, result, *mark))
    if state is not State.WAITING:
        unit.topics.add(row.id)
    if state is State.DEAD:
        count_dead(unit, row.queue, row.lane, RUNNING, letter_queue)
    else:
        unit.queues.moved(row.queue, row.lane, RUNNING, None if state is None else STATES.index(state))
    unit.give_back(row.queue, row.lane, row.cost)
    unit.builder.held(change, row, until, error)
    return state
