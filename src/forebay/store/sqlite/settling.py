"""The commit point and the other endings: settle, cancel, redrive, purge.

The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's. The last settle is
remembered, on the row or, once the job is gone, in the tables of removed jobs: a repeated one is answered alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from forebay.core.instant import Instant, Span
from forebay.core.job import State
from forebay.core.lease import Lease, Settled, Settlement, outlived
from forebay.core.ledger import Change, Trait
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.rank import rank_at, rank_back
from forebay.store.protocol import CancelAnswer
from forebay.store.sqlite.claims import Claims
from forebay.store.sqlite.graves import Mark, died, failed, lay_down
from forebay.store.sqlite.intake import check_capacity
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import Row, id_list, rows_of
from forebay.store.sqlite.tend import forget, tend
from forebay.store.sqlite.turn import LineHead, Turn
from forebay.store.states import CANCELLED, DEAD, DONE, READY, RUNNING, STATES, WAITING

_CODES: Final[dict[type, str]] = {Ack: "a", Retry: "r", DeadLetter: "d", Release: "l", Cancel: "c"}
_ACK: Final = statement("ack")
_DELIVERY: Final = attrgetter("kind", "attempt", "enqueued_at", "due_at", "claimed_at")
_HELD: Final = statement("held")
_MOVE: Final = statement("move")
_REMOVED: Final = statement("removed")
_KEEP: Final = statement("keep")
_WAIT_AGAIN: Final = statement("wait_again")
_ASK: Final = statement("ask_to_cancel")
_REDRIVE: Final = statement("redrive")
_FINISHED: Final = statement("finished")
_FINISHED_IN: Final = statement("finished_in")


class _Acked(NamedTuple):
    """A job that is done and gone."""

    id: int
    kind: str
    attempt: int
    enqueued_at: Instant
    due_at: Instant
    claimed_at: Instant
    lane: str
    cost: int
    line: str | None


class Settling(Claims):
    """How jobs end."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        return self._write(lambda turn: _settle(turn, settlements))

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._write(lambda turn: _cancel(turn, ids))

    def redrive(self, ids: Sequence[int]) -> list[int]:
        return self._write(lambda turn: _redrive(turn, ids))

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return self._write(lambda turn: _purge(turn, STATES.index(state), before, limit, queue))


def _settle(turn: Turn, settlements: Sequence[Settlement]) -> list[Settled]:
    acked = _acknowledge(turn, settlements)
    if len(acked) == len(settlements):
        return [Settled.APPLIED] * len(settlements)
    fast = [(lease.job.id, lease.job.delivery) in acked for lease, _ in settlements]
    others = iter(_Settlement(turn).settle([each for each, done in zip(settlements, fast, strict=True) if not done]))
    return [Settled.APPLIED if done else next(others) for done in fast]


def _acknowledge(turn: Turn, settlements: Sequence[Settlement]) -> set[tuple[int, int]]:
    """The common case at half the cost: plain jobs whose leases are held are done and go. The others are untouched."""
    groups: dict[tuple[str, int], list[int]] = {}
    for lease, verdict in settlements:
        if type(verdict) is not Ack or verdict.keep_for:
            return set()
        groups.setdefault((lease.job.queue, lease.job.delivery), []).append(lease.job.id)
    acked: set[tuple[int, int]] = set()
    for (queue, delivery), ids in groups.items():
        known = turn.queue(queue).known
        if not known.stamper.kept_until(turn.now):
            rows = [_Acked(*columns) for columns in turn.connection.execute(_ACK, (id_list(ids), delivery, queue))]
            if rows:
                turn.remember([(row.id, delivery, "a") for row in rows])
                turn.tally.moved(queue, "", RUNNING, None, len(rows))
                acked.update((row.id, delivery) for row in rows)
                turn.topics.update(row.id for row in rows)
                _tell_acked(turn, queue, delivery, rows)
                _let_go(turn, queue, rows, gated=known.stamper.gated)
    return acked


def _let_go(turn: Turn, queue: str, rows: Sequence[_Acked], *, gated: bool) -> None:
    """Give the slots of jobs that are done back, and expose the next jobs of their lines."""
    if gated:
        costs = Counter[str]()
        for row in rows:
            costs[row.lane] += row.cost
        for lane, cost in costs.items():
            turn.give_back(queue, lane, cost)
    if lines := {row.line: None for row in rows if row.line is not None}:
        turn.expose(lines)


def _tell_acked(turn: Turn, queue: str, delivery: int, rows: list[_Acked]) -> None:
    if turn.scribe is not None:
        turn.scribe.tell("settle")
        rows.sort()
        for (kind, attempt, *instants), alike in groupby(rows, _DELIVERY):
            turn.scribe.jobs(Change.ACKED, [row.id for row in alike], queue, kind, delivery, attempt, 0, *instants)


class _Settlement:
    """One call of settle."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._rows: dict[int, Row] = {}
        self._marks: dict[int, Mark] = {}
        self._gone: list[tuple[int, int, str]] = []
        self._moves: Counter[tuple[str, str, int | None, str]] = Counter()
        self._lines: dict[str, None] = {}
        self._ended: list[tuple[int, Change, Row, Instant, Failure | None]] = []
        self._waiting = False

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        turn = self._turn
        ids = id_list({lease.job.id for lease, _ in settlements})
        self._rows = {row.id: row for row in rows_of(turn.connection.execute(_HELD, (ids,)))}
        missing = [lease.job.id for lease, _ in settlements if lease.job.id not in self._rows]
        if missing:
            for job_id, delivery, code in turn.connection.execute(_REMOVED, (id_list(missing),)):
                if delivery > self._marks.get(job_id, (0, ""))[0]:
                    self._marks[job_id] = (delivery, code)
        answers = [self._one(lease, verdict) for lease, verdict in settlements]
        for (queue, lane, to, lies_in), count in self._moves.items():
            if to == DEAD:
                died(turn, queue, lane, RUNNING, lies_in, count)
            else:
                turn.tally.moved(queue, lane, RUNNING, to, count)
        if self._gone:
            turn.remove([job_id for job_id, _, _ in self._gone], self._gone)
        if self._lines:
            turn.expose(self._lines)
        self._tell()
        if self._waiting:
            tend(turn)
        return answers

    def _one(self, lease: Lease, verdict: Verdict) -> Settled:
        job_id, mark = lease.job.id, (lease.job.delivery, _CODES[type(verdict)])
        last, row = self._marks.get(job_id), self._rows.get(job_id)
        if last is None and row is not None:
            held = row.state == RUNNING and row.delivery == lease.job.delivery
            if held and not outlived(lease, verdict, row.lease_until):
                self._marks[job_id] = mark
                self._end(row, verdict, mark)
                return Settled.APPLIED
            last = (row.settled_delivery, row.settled_code)
        return Settled.APPLIED if last == mark else Settled.STALE

    def _end(self, row: Row, verdict: Verdict, mark: Mark) -> None:
        turn, now = self._turn, self._turn.now
        job_id, queue = row.id, row.queue
        to: int | None
        until: Instant = 0
        change: Change
        failure: Failure | None = None
        lies_in = queue
        match verdict:
            case Ack(result, keep_for):
                change, until = Change.ACKED, self._kept_until(queue, keep_for)
                to = self._finish(job_id, DONE, until, mark, result)
            case Cancel(keep_for):
                change, until = Change.DISMISSED, self._kept_until(queue, keep_for)
                to = self._finish(job_id, CANCELLED, until, mark, None)
            case Retry(after, error, keep_rank):
                to, change, until, failure = WAITING, Change.RETRIED, now + after, error
                back = rank_back(row.rank, row.rank_timed)
                rank = back if keep_rank else rank_at(row.rank_base, row.rank_timed, until, now)
                errors = failed(row.errors, error, now, row.attempt)
                turn.connection.execute(_WAIT_AGAIN, (job_id, until, rank, row.attempt, errors, *mark))
            case Release(after, error):
                to, change, until, failure = WAITING, Change.RELEASED, now + after, error
                rank = rank_back(row.rank, row.rank_timed)
                kept = row.errors if error is None else failed(row.errors, error, now, row.attempt)
                turn.connection.execute(_WAIT_AGAIN, (job_id, until, rank, row.attempt - 1, kept, *mark))
            case DeadLetter(error):
                to, change, failure = DEAD, Change.DIED, error
                lies_in = lay_down(turn, job_id, queue, failed(row.errors, error, now, row.attempt), mark)
        self._ended.append((job_id, change, row, until, failure))
        self._waiting |= to == WAITING
        if to != WAITING:
            turn.topics.add(job_id)
        self._moves[queue, row.lane, to, lies_in] += 1
        turn.give_back(queue, row.lane, row.cost)
        if row.line is not None:
            self._lines[row.line] = None

    def _tell(self) -> None:
        """What the verdicts did, by ids: jobs that were settled together are mostly neighbours."""
        scribe = self._turn.scribe
        if scribe is None or not self._ended:
            return
        scribe.tell("settle")
        for job_id, change, row, until, failure in sorted(self._ended, key=itemgetter(0)):
            scribe.job(
                change,
                job_id,
                row.queue,
                row.kind,
                row.delivery,
                row.attempt,
                0,
                row.enqueued_at,
                row.due_at,
                row.claimed_at,
                until,
                trait=None if failure is None else Trait(error_kind=failure.kind, error=failure.message),
            )

    def _kept_until(self, queue: str, keep_for: Span) -> Instant:
        return self._turn.queue(queue).known.stamper.kept_until(self._turn.now, keep_for)

    def _finish(self, job_id: int, state: int, kept_until: Instant, mark: Mark, result: bytes | None) -> int | None:
        if not kept_until:
            self._gone.append((job_id, *mark))
            return None
        self._turn.connection.execute(_KEEP, (job_id, state, self._turn.now, kept_until, result, *mark))
        return state


def _found(turn: Turn, ids: Sequence[int]) -> Mapping[int, Row]:
    return {row.id: row for row in rows_of(turn.connection.execute(_MOVE, (id_list(ids),)))}


def _cancel(turn: Turn, ids: Sequence[int]) -> list[CancelAnswer]:
    found = _found(turn, ids)
    ended: dict[int, Instant] = {}
    asked: dict[int, None] = {}
    answers = []
    for job_id in ids:
        row = found.get(job_id)
        if row is None or row.state > RUNNING or job_id in ended:
            answers.append(CancelAnswer.GONE)
        elif row.state == RUNNING:
            if not row.cancel_requested:
                asked[job_id] = None
            answers.append(CancelAnswer.REQUESTED)
        else:
            ended[job_id] = _dismiss(turn, row)
            turn.topics.add(job_id)
            answers.append(CancelAnswer.CANCELLED)
    lines = {row.line: None for job_id in ended if (row := found[job_id]).line is not None and not row.behind}
    if lines:
        turn.expose(lines)
    if asked:
        turn.topics.update(owner for (owner,) in turn.connection.execute(_ASK, (id_list(asked),)))
    if ended or asked:
        _tell_cancelled(turn, found, ended, asked)
    return answers


def _tell_cancelled(turn: Turn, found: Mapping[int, Row], ended: Mapping[int, Instant], asked: Iterable[int]) -> None:
    if turn.scribe is None:
        return
    turn.scribe.tell("cancel")
    for job_id, kept_until in ended.items():
        row = found[job_id]
        turn.scribe.job(Change.CANCELLED, job_id, row.queue, row.kind, 0, 0, 0, 0, 0, 0, kept_until)
    for job_id in asked:
        row = found[job_id]
        instants = (row.enqueued_at, row.due_at, row.claimed_at)
        turn.scribe.job(Change.ASKED, job_id, row.queue, row.kind, row.delivery, row.attempt, 0, *instants)


def _dismiss(turn: Turn, row: Row) -> Instant:
    """A job that nobody holds will not run; until when it can be read."""
    kept_until = turn.queue(row.queue).known.stamper.kept_until(turn.now)
    mark = (row.settled_delivery, row.settled_code)
    if kept_until:
        turn.connection.execute(_KEEP, (row.id, CANCELLED, turn.now, kept_until, None, *mark))
    else:
        turn.remove([row.id], [(row.id, *mark)] if mark[0] else [])
    turn.tally.moved(row.queue, row.lane, row.state, CANCELLED if kept_until else None)
    if row.state == READY:
        turn.lanes.left(row.queue, row.lane)
    return kept_until


def _redrive(turn: Turn, ids: Sequence[int]) -> list[int]:
    found = _found(turn, ids)
    dead = {job_id: found[job_id] for job_id in ids if job_id in found and found[job_id].state == DEAD}
    check_capacity(turn, Counter(row.home for row in dead.values()))
    first: dict[str, int] = {}
    for row in dead.values():
        if row.line is not None:
            first[row.line] = min(first.get(row.line, row.id), row.id)
    heads = turn.heads(first)
    for row in dead.values():
        turn.connection.execute(_REDRIVE, (row.id, turn.now))
        turn.tally.moved(row.queue, "", DEAD, None)
        turn.tally.moved(row.home, row.lane, None, WAITING)
        if turn.scribe is not None:
            turn.scribe.job(Change.REDRIVEN, row.id, row.home, row.kind, 0, 0, 0, 0, 0, 0, turn.now)
    for line, job_id in first.items():
        _lead_again(turn, line, job_id, heads.get(line))
    if dead:
        if turn.scribe is not None:
            turn.scribe.tell("redrive")
        tend(turn)
    return list(dead)


def _lead_again(turn: Turn, line: str, job_id: int, head: LineHead | None) -> None:
    """A job came back to life in a line that had this head; if it is first now, it is exposed instead."""
    if head is None or head.state == DEAD:
        turn.expose_if_free([line])
    elif head.state < RUNNING and not head.behind and job_id < head.id:
        turn.step_back(head)
        turn.expose([line])


def _purge(turn: Turn, state: int, before: Instant, limit: int, queue: str | None) -> int:
    if queue is None:
        found = turn.connection.execute(_FINISHED, (state, before, limit))
    else:
        found = turn.connection.execute(_FINISHED_IN, (state, before, limit, queue))
    finished = rows_of(found)
    if finished:
        forget(turn, finished)
        if turn.scribe is not None:
            turn.scribe.tell("purge")
    return len(finished)
