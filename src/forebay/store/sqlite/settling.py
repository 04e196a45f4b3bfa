"""The commit point and the other endings: settle, cancel, redrive, purge.

The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's. The last settle is
remembered, on the row or, once the job is gone, in the tables of removed jobs: a repeated one is answered alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, Span
from forebay.core.job import State
from forebay.core.lease import Lease, Settled, Settlement, outlived
from forebay.core.ledger import Change, Trait
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.rank import rank_at, rank_back
from forebay.store.checks import check_batch, check_bytes, check_ids, check_purge
from forebay.store.places import Row
from forebay.store.protocol import CancelAnswer
from forebay.store.sqlite.claims import Claims
from forebay.store.sqlite.graves import Mark, died, failed, lay_down
from forebay.store.sqlite.intake import check_capacity
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list
from forebay.store.sqlite.tend import forget, tend
from forebay.store.sqlite.turn import Turn
from forebay.store.states import CANCELLED, DEAD, DONE, READY, RUNNING, STATES, WAITING

_CODES: Final[dict[type, str]] = {Ack: "a", Retry: "r", DeadLetter: "d", Release: "l", Cancel: "c"}
_ACK: Final = statement("ack")
_ACKED: Final = itemgetter(1, 2, 3, 4, 5)
_HELD: Final = statement("held")
_MOVE: Final = statement("move")
_REMOVED: Final = statement("removed")
_KEEP: Final = statement("keep")
_WAIT_AGAIN: Final = statement("wait_again")
_ASK: Final = statement("ask_to_cancel")
_REDRIVE: Final = statement("redrive")
_FINISHED: Final = statement("finished")
_FINISHED_IN: Final = statement("finished_in")


class Settling(Claims):
    """How jobs end."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        check_batch("settle", len(settlements))
        check_bytes("settle", [verdict.result if type(verdict) is Ack else None for _, verdict in settlements])
        for _, verdict in settlements:
            if type(verdict) not in _CODES:
                raise Invalid("verdict", f"{type(verdict).__name__} is not one", "use what decide() returns")
        if not settlements:
            return []
        return self._write(lambda turn: _settle(turn, settlements))

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        check_ids("cancel", ids)
        return self._write(lambda turn: _cancel(turn, ids))

    def redrive(self, ids: Sequence[int]) -> list[int]:
        check_ids("redrive", ids)
        return self._write(lambda turn: _redrive(turn, ids))

    def purge(self, state: State, before: Instant, limit: int, queue: str | None = None) -> int:
        check_purge(state, before, limit, queue)
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
        if not turn.line(queue).known.stamper.kept_until(turn.now):
            rows = turn.connection.execute(_ACK, (id_list(ids), delivery, queue)).fetchall()
            if rows:
                turn.remember([(row[0], delivery, "a") for row in rows])
                turn.tally.moved(queue, "", RUNNING, None, len(rows))
                acked.update((row[0], delivery) for row in rows)
                turn.topics.update(row[0] for row in rows)
                _tell_acked(turn, queue, delivery, rows)
    return acked


def _tell_acked(turn: Turn, queue: str, delivery: int, rows: list[Any]) -> None:
    if turn.scribe is not None:
        turn.scribe.tell("settle")
        rows.sort()
        for (kind, attempt, *instants), alike in groupby(rows, _ACKED):
            turn.scribe.jobs(Change.ACKED, [row[0] for row in alike], queue, kind, delivery, attempt, 0, *instants)


class _Settlement:
    """One call of settle."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._rows: dict[int, Sequence[Any]] = {}
        self._marks: dict[int, Mark] = {}
        self._gone: list[tuple[int, int, str]] = []
        self._moves: dict[tuple[str, str, int | None, str], int] = {}
        self._ended: list[tuple[int, Change, Sequence[Any], Instant, Failure | None]] = []
        self._waiting = False

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        turn = self._turn
        ids = id_list({lease.job.id for lease, _ in settlements})
        self._rows = {columns[0]: columns for columns in turn.connection.execute(_HELD, (ids,))}
        missing = [lease.job.id for lease, _ in settlements if lease.job.id not in self._rows]
        if missing:
            for job_id, delivery, code in turn.connection.execute(_REMOVED, (id_list(missing),)):
                if delivery > self._marks.get(job_id, (0, ""))[0]:
                    self._marks[job_id] = (delivery, code)
        answers = [self._one(lease, verdict) for lease, verdict in settlements]
        for (queue, cls, to, lies_in), count in self._moves.items():
            if to == DEAD:
                died(turn, queue, cls, RUNNING, lies_in, count)
            else:
                turn.tally.moved(queue, cls, RUNNING, to, count)
        if self._gone:
            turn.remove([job_id for job_id, _, _ in self._gone], self._gone)
        self._tell()
        if self._waiting or turn.gated:
            tend(turn)
        return answers

    def _one(self, lease: Lease, verdict: Verdict) -> Settled:
        job_id, mark = lease.job.id, (lease.job.delivery, _CODES[type(verdict)])
        last, columns = self._marks.get(job_id), self._rows.get(job_id)
        if last is None and columns is not None:
            held = columns[3] == RUNNING and columns[10] == lease.job.delivery
            if held and not outlived(lease, verdict, columns[15]):
                self._marks[job_id] = mark
                self._end(columns, verdict, mark)
                return Settled.APPLIED
            last = (columns[8], columns[9])
        return Settled.APPLIED if last == mark else Settled.STALE

    def _end(self, columns: Sequence[Any], verdict: Verdict, mark: Mark) -> None:
        turn, now = self._turn, self._turn.now
        job_id, queue, cls = columns[:3]
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
                back = rank_back(columns[4], columns[14])
                rank = back if keep_rank else rank_at(columns[13], columns[14], until, now)
                errors = failed(columns[12], error, now, columns[11])
                turn.connection.execute(_WAIT_AGAIN, (job_id, until, rank, columns[11], errors, *mark))
            case Release(after, error):
                to, change, until, failure = WAITING, Change.RELEASED, now + after, error
                rank = rank_back(columns[4], columns[14])
                errors = columns[12] if error is None else failed(columns[12], error, now, columns[11])
                again = (job_id, until, rank, columns[11] - 1, errors, *mark)
                turn.connection.execute(_WAIT_AGAIN, again)
            case DeadLetter(error):
                to, change, failure = DEAD, Change.DIED, error
                lies_in = lay_down(turn, job_id, queue, failed(columns[12], error, now, columns[11]), mark)
        self._ended.append((job_id, change, columns, until, failure))
        self._waiting |= to == WAITING
        if to != WAITING:
            turn.topics.add(job_id)
        move = (queue, cls, to, lies_in)
        self._moves[move] = self._moves.get(move, 0) + 1
        if columns[6]:
            row = Row.of(columns)
            turn.gates.release(row)
            if to != WAITING:
                turn.gates.end(row, DONE if to is None else to)

    def _tell(self) -> None:
        """What the verdicts did, by ids: jobs that were settled together are mostly neighbours."""
        scribe = self._turn.scribe
        if scribe is None or not self._ended:
            return
        scribe.tell("settle")
        for job_id, change, columns, until, failure in sorted(self._ended, key=itemgetter(0)):
            scribe.job(
                change,
                job_id,
                columns[1],
                columns[16],
                columns[10],
                columns[11],
                0,
                columns[17],
                columns[5],
                columns[18],
                until,
                trait=None if failure is None else Trait(error_kind=failure.kind, error=failure.message),
            )

    def _kept_until(self, queue: str, keep_for: Span) -> Instant:
        return self._turn.line(queue).known.stamper.kept_until(self._turn.now, keep_for)

    def _finish(self, job_id: int, state: int, kept_until: Instant, mark: Mark, result: bytes | None) -> int | None:
        if not kept_until:
            self._gone.append((job_id, *mark))
            return None
        self._turn.connection.execute(_KEEP, (job_id, state, self._turn.now, kept_until, result, *mark))
        return state


class _Found(NamedTuple):
    """A job that is to be ended or revived from outside, and its last settle."""

    row: Row
    mark: Mark
    kind: str
    delivery: int
    attempt: int
    enqueued_at: Instant
    claimed_at: Instant
    asked: int
    home: str


def _found(turn: Turn, ids: Sequence[int]) -> Mapping[int, _Found]:
    rows = turn.connection.execute(_MOVE, (id_list(ids),)).fetchall()
    return {columns[0]: _Found(Row.of(columns), (columns[8], columns[9]), *columns[10:]) for columns in rows}


def _cancel(turn: Turn, ids: Sequence[int]) -> list[CancelAnswer]:
    found = _found(turn, ids)
    ended: dict[int, Instant] = {}
    asked: dict[int, None] = {}
    answers = []
    for job_id in ids:
        job = found.get(job_id)
        if job is None or job.row.state > RUNNING or job_id in ended:
            answers.append(CancelAnswer.GONE)
        elif job.row.state == RUNNING:
            if not job.asked:
                asked[job_id] = None
            answers.append(CancelAnswer.REQUESTED)
        else:
            ended[job_id] = _dismiss(turn, job.row, job.mark)
            turn.topics.add(job_id)
            answers.append(CancelAnswer.CANCELLED)
    if asked:
        turn.topics.update(owner for (owner,) in turn.connection.execute(_ASK, (id_list(asked),)))
    if ended or asked:
        _tell_cancelled(turn, found, ended, asked)
    if turn.gated:
        tend(turn)
    return answers


def _tell_cancelled(
    turn: Turn, found: Mapping[int, _Found], ended: Mapping[int, Instant], asked: Iterable[int]
) -> None:
    if turn.scribe is None:
        return
    turn.scribe.tell("cancel")
    for job_id, kept_until in ended.items():
        job = found[job_id]
        turn.scribe.job(Change.CANCELLED, job_id, job.row.queue, job.kind, 0, 0, 0, 0, 0, 0, kept_until)
    for job_id in asked:
        row, _, kind, delivery, attempt, enqueued_at, claimed_at, *_ = found[job_id]
        turn.scribe.job(
            Change.ASKED, job_id, row.queue, kind, delivery, attempt, 0, enqueued_at, row.due_at, claimed_at
        )


def _dismiss(turn: Turn, row: Row, mark: Mark) -> Instant:
    """A job that nobody holds will not run; until when it can be read."""
    kept_until = turn.line(row.queue).known.stamper.kept_until(turn.now)
    if kept_until:
        turn.connection.execute(_KEEP, (row.id, CANCELLED, turn.now, kept_until, None, *mark))
    else:
        turn.remove([row.id], [(row.id, *mark)] if mark[0] else [])
    turn.tally.moved(row.queue, row.cls, row.state, CANCELLED if kept_until else None)
    if row.gates:
        if row.state == READY:
            turn.gates.release(row)
        turn.gates.end(row, CANCELLED)
    return kept_until


def _redrive(turn: Turn, ids: Sequence[int]) -> list[int]:
    found = _found(turn, ids)
    dead = {job_id: found[job_id] for job_id in ids if job_id in found and found[job_id].row.state == DEAD}
    arrivals: dict[str, int] = {}
    for job in dead.values():
        arrivals[job.home] = arrivals.get(job.home, 0) + 1
    check_capacity(turn, arrivals)
    for row, _, kind, *_, home in dead.values():
        turn.connection.execute(_REDRIVE, (row.id, turn.now))
        turn.tally.moved(row.queue, "", DEAD, None)
        turn.tally.moved(home, row.cls, None, WAITING)
        if row.gates:
            turn.gates.rejoin(row)
        if turn.scribe is not None:
            turn.scribe.job(Change.REDRIVEN, row.id, home, kind, 0, 0, 0, 0, 0, 0, turn.now)
    if dead:
        if turn.scribe is not None:
            turn.scribe.tell("redrive")
        tend(turn)
    return list(dead)


def _purge(turn: Turn, state: int, before: Instant, limit: int, queue: str | None) -> int:
    if queue is None:
        finished = turn.connection.execute(_FINISHED, (state, before, limit)).fetchall()
    else:
        finished = turn.connection.execute(_FINISHED_IN, (state, before, limit, queue)).fetchall()
    if finished:
        forget(turn, finished)
        if turn.scribe is not None:
            turn.scribe.tell("purge")
    if turn.gated:
        tend(turn)
    return len(finished)
