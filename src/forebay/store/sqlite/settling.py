"""The commit point and the other endings: settle, cancel, redrive, purge.

The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's. The last settle is
remembered, on the row or, once the job is gone, in the tables of removed jobs: a repeated one is answered alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.lease import Fence, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.outcome import Ack, Verdict
from forebay.engine.intake import check_capacity
from forebay.engine.settle import (
    VERDICT_CODES,
    Mark,
    attempts_after,
    plan_cancel,
    plan_settle,
    rank_after,
    transition,
)
from forebay.store.protocol import CancelAnswer
from forebay.store.sqlite.intake import Tables
from forebay.store.sqlite.session import Session
from forebay.store.sqlite.tables import Row, failed, id_list, rows_of, statement
from forebay.store.sqlite.unit_of_work import LineHead, UnitOfWork, died, forget, lay_down, maintain
from forebay.store.states import CANCELLED, DEAD, READY, RUNNING, STATES, WAITING

_ACK: Final = statement("ack")
_HELD: Final = statement("held")
_MOVE: Final = statement("move")
_REMOVED: Final = statement("removed")
_KEEP: Final = statement("keep")
_WAIT_AGAIN: Final = statement("wait_again")
_ASK: Final = statement("ask_to_cancel")
_REDRIVE: Final = statement("redrive")
_DEAD_OF: Final = statement("dead_of")
_FINISHED: Final = statement("finished")
_FINISHED_IN: Final = statement("finished_in")


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


class Settling:
    """How jobs end."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        return self._session.write(lambda unit: _settle(unit, settlements))

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._session.write(lambda unit: _cancel(unit, ids))

    def redrive(self, ids: Sequence[int]) -> list[int]:
        return self._session.write(lambda unit: _redrive(unit, ids))

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return self._session.write(lambda unit: _purge(unit, STATES.index(state), before, limit, queue))

    def discard(self, ids: Sequence[int]) -> list[int]:
        return self._session.write(lambda unit: _discard(unit, ids))


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
            unit.remember([(job_id, delivery, VERDICT_CODES[Ack]) for job_id in gone])
            unit.queues.moved(queue, "", RUNNING, None, len(rows))
            unit.topics.update(gone)
            acked.update([(job_id, delivery) for job_id in gone])
            if unit.builder is not None:
                unit.builder.set_verb("settle")
                unit.builder.leased(Change.ACKED, rows, 0)
            _let_go(unit, queue, rows, gated=stamper.gated)
    return acked


def _let_go(unit: UnitOfWork, queue: str, rows: Sequence[_Acked], *, gated: bool) -> None:
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
        if unit.builder is not None:
            unit.builder.set_verb("settle")
        # Jobs that were settled together are mostly neighbours: the record is by ids.
        endings = [_end(unit, *ending) for ending in sorted(plan.endings, key=lambda ending: ending[0].id)]
        lines = {row.line: None for row, *_ in plan.endings if row.line is not None}
        if lines:
            unit.expose(lines)
        if State.WAITING in endings:
            maintain(unit)
    return plan.answers


def _end(unit: UnitOfWork, row: Row, verdict: Verdict, mark: Mark) -> State | None:
    """The state that a job ends in, or waits in again; None: it is gone."""
    change, state, until, error, keep_rank = transition(verdict, unit.queue(row.queue).known.stamper, unit.now)
    lies_in, errors = row.queue, failed(row, error, unit.now)
    match state:
        case State.WAITING:
            again = (rank_after(row, keep_rank, until, unit.now), attempts_after(change, row.attempt))
            unit.connection.execute(_WAIT_AGAIN, (row.id, until, *again, errors, *mark))
        case State.DEAD:
            lies_in = lay_down(unit, row.id, row.queue, errors, mark)
        case None:
            unit.remove([row.id], [(row.id, *mark)])
        case _:
            result = verdict.result if isinstance(verdict, Ack) else None
            unit.connection.execute(_KEEP, (row.id, STATES.index(state), unit.now, until, result, *mark))
    if state is not State.WAITING:
        unit.topics.add(row.id)
    if state is State.DEAD:
        died(unit, row.queue, row.lane, RUNNING, lies_in)
    else:
        unit.queues.moved(row.queue, row.lane, RUNNING, None if state is None else STATES.index(state))
    unit.give_back(row.queue, row.lane, row.cost)
    if unit.builder is not None:
        unit.builder.held(change, row, until, error)
    return state


def _found(unit: UnitOfWork, ids: Sequence[int]) -> Mapping[int, Row]:
    return {row.id: row for row in rows_of(unit.connection.execute(_MOVE, (id_list(ids),)))}


def _cancel(unit: UnitOfWork, ids: Sequence[int]) -> list[CancelAnswer]:
    found = _found(unit, ids)
    plan = plan_cancel(ids, {row.id: STATES[row.state] for row in found.values()})
    ended = {job_id: _dismiss(unit, found[job_id]) for job_id in plan.ended}
    asked = [job_id for job_id in plan.asked if not found[job_id].cancel_requested]
    unit.topics.update(ended)
    lines = {row.line: None for job_id in ended if (row := found[job_id]).line is not None and not row.behind}
    if lines:
        unit.expose(lines)
    if asked:
        unit.topics.update(owner for (owner,) in unit.connection.execute(_ASK, (id_list(asked),)))
    if ended or asked:
        _tell_cancelled(unit, found, ended, asked)
    return plan.answers


def _tell_cancelled(
    unit: UnitOfWork, found: Mapping[int, Row], ended: Mapping[int, Instant], asked: Iterable[int]
) -> None:
    if unit.builder is None:
        return
    unit.builder.set_verb("cancel")
    for job_id, kept_until in ended.items():
        row = found[job_id]
        unit.builder.job(Change.CANCELLED, job_id, row.queue, row.kind, 0, 0, 0, 0, 0, 0, kept_until)
    for job_id in asked:
        unit.builder.held(Change.ASKED, found[job_id], 0)


def _dismiss(unit: UnitOfWork, row: Row) -> Instant:
    """A job that nobody holds will not run; until when it can be read."""
    kept_until = unit.queue(row.queue).known.stamper.kept_until(unit.now)
    if kept_until:
        unit.connection.execute(_KEEP, (row.id, CANCELLED, unit.now, kept_until, None, *row.mark))
    else:
        unit.remove([row.id], [(row.id, *row.mark)] if row.settled_delivery else [])
    unit.queues.moved(row.queue, row.lane, row.state, CANCELLED if kept_until else None)
    if row.state == READY:
        unit.lanes.left(row.queue, row.lane)
    return kept_until


def _redrive(unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
    found = _found(unit, ids)
    dead = {job_id: found[job_id] for job_id in ids if job_id in found and found[job_id].state == DEAD}
    check_capacity(Tables(unit), Counter(row.home for row in dead.values()))
    first: dict[str, int] = {}
    for row in dead.values():
        if row.line is not None:
            first[row.line] = min(first.get(row.line, row.id), row.id)
    heads = unit.heads(first)
    for row in dead.values():
        unit.connection.execute(_REDRIVE, (row.id, unit.now))
        unit.queues.moved(row.queue, "", DEAD, None)
        unit.queues.moved(row.home, row.lane, None, WAITING)
        if unit.builder is not None:
            unit.builder.job(Change.REDRIVEN, row.id, row.home, row.kind, 0, 0, 0, 0, 0, 0, unit.now)
    for line, job_id in first.items():
        _lead_again(unit, line, job_id, heads.get(line))
    if dead:
        if unit.builder is not None:
            unit.builder.set_verb("redrive")
        maintain(unit)
    return list(dead)


def _lead_again(unit: UnitOfWork, line: str, job_id: int, head: LineHead | None) -> None:
    """A job came back to life in a line that had this head; if it is first now, it is exposed instead."""
    if head is None or head.state == DEAD:
        unit.expose_if_free([line])
    elif head.state < RUNNING and not head.behind and job_id < head.id:
        unit.step_back(head)
        unit.expose([line])


def _purge(unit: UnitOfWork, state: int, before: Instant, limit: int, queue: str | None) -> int:
    if queue is None:
        found = unit.connection.execute(_FINISHED, (state, before, limit))
    else:
        found = unit.connection.execute(_FINISHED_IN, (state, before, limit, queue))
    finished = rows_of(found)
    if finished:
        forget(unit, finished)
        if unit.builder is not None:
            unit.builder.set_verb("purge")
    return len(finished)


def _discard(unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
    dead = {row.id: row for row in rows_of(unit.connection.execute(_DEAD_OF, (id_list(ids),)))}
    if dead:
        forget(unit, list(dead.values()))
        if unit.builder is not None:
            unit.builder.set_verb("purge")
    return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]
