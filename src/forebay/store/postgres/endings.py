"""The endings that come from outside: cancel, redrive, purge. Turns in Python, which may change lanes and lines."""

from collections.abc import Sequence
from typing import Any, Final

from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.store.postgres.base import Turn
from forebay.store.postgres.graves import left
from forebay.store.postgres.intake import check_capacity
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import jobs_of_run, span_kept
from forebay.store.postgres.tend import forget, remember
from forebay.store.postgres.waiting import ending_of, requests_to
from forebay.store.protocol import CancelAnswer
from forebay.store.states import CANCELLED, RUNNING

_TAKE_OUT: Final = "SELECT forebay.take_out(%s, %s)"
_FIND: Final = (
    "SELECT f.id, f.single, f.last_id, r.queue FROM forebay.find(%s::bigint[]) AS f, LATERAL ("
    "SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0) AS r"
)
_FOUND: Final = statement("found")
_MOVE: Final = statement("move")
_BURY: Final = statement("bury")
_DELETE: Final = statement("delete")
_ASK: Final = statement("ask")
_CHANGED: Final = statement("holder_changed")
_DEAD: Final = statement("dead")
_REDRIVE: Final = statement("redrive")
_FINISHED: Final = statement("finished")
_FINISHED_IN: Final = statement("finished_in")


def cancel(turn: Turn, ids: Sequence[int]) -> list[CancelAnswer]:
    rows = turn.fetch(_FIND, (list(ids),))
    turn.hold({queue for *_, queue in rows})
    for job_id, single, last_id, _ in sorted(rows):
        if not single:
            turn.execute(_TAKE_OUT, (last_id, job_id))
    found = {job_id: (single, last_id) for job_id, single, last_id, _ in turn.fetch(_FIND, (list(ids),))}
    alone = {columns[0]: columns for columns in turn.fetch(_MOVE, (list(ids),))}
    asked: list[int] = []
    ended: set[int] = set()
    answers = []
    for job_id in ids:
        columns = alone.get(job_id)
        running = columns[2] == RUNNING if columns is not None else job_id in found
        if running:
            asked.append(job_id)
            answers.append(CancelAnswer.REQUESTED)
        elif columns is None or job_id in ended:
            answers.append(CancelAnswer.GONE)
        else:
            ended.add(job_id)
            turn.topics.add(ending_of(job_id))
            _dismiss(turn, columns)
            answers.append(CancelAnswer.CANCELLED)
    told = sorted({job_id for job_id in asked if job_id in found})
    if told:
        _ask(turn, [(job_id, *found[job_id]) for job_id in told])
    return answers


def _ask(turn: Turn, keys: Sequence[tuple[int, bool, int]]) -> None:
    """The holders of these jobs will be told; who was asked before hears of it again, but it is no news."""
    ids, *_ = columns = [list(column) for column in zip(*keys, strict=True)]
    for row in turn.fetch(_FOUND, (ids,)):
        for job, _ in jobs_of_run(row[1:]):
            if job.id == row[0] and not job.cancel_requested:
                turn.scribe.tell("cancel")
                turn.scribe.held(Change.ASKED, job, 0)
    holders = {holder for (holder,) in turn.fetch(_ASK, columns)}
    turn.execute(_CHANGED, (sorted(holders - {None}),))
    turn.topics.update(requests_to(holder) for holder in holders if holder is not None)


def _dismiss(turn: Turn, columns: Sequence[Any]) -> None:
    """A job that nobody holds will not run."""
    job_id, queue, _, lane, line, kind, delivery, code = columns
    keep = span_kept(turn.known(queue).stamper)
    kept_until = turn.now + keep if keep else 0
    turn.scribe.tell("cancel")
    turn.scribe.job(Change.CANCELLED, job_id, queue, kind, 0, 0, 0, 0, 0, 0, kept_until)
    if keep:
        turn.execute(_BURY, ([job_id], [None], [None], [kept_until], turn.now, CANCELLED))
    else:
        turn.execute(_DELETE, ([job_id],))
        remember(turn, [(job_id, delivery, code)] if delivery else [])
    turn.eased.add(queue)
    turn.touch(queue, lane, line)


def redrive(turn: Turn, ids: Sequence[int]) -> list[int]:
    found = turn.fetch(_DEAD, (list(ids), turn.now))
    dead = {columns[0] for columns in found}
    arrivals: dict[str, int] = {}
    for *_, home in found:
        arrivals[home] = arrivals.get(home, 0) + 1
    turn.hold(arrivals)
    check_capacity(turn, arrivals)
    if dead:
        turn.execute(_REDRIVE, (sorted(dead), turn.now))
        turn.scribe.tell("redrive")
        for job_id, _, _, lane, line, kind, home in found:
            turn.scribe.job(Change.REDRIVEN, job_id, home, kind, 0, 0, 0, 0, 0, 0, turn.now)
            turn.touch(home, lane, line)
        turn.news.update(arrivals)
        left(turn, [columns[1] for columns in found])
    return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]


def purge(turn: Turn, state: int, before: Instant, limit: int, queue: str | None) -> int:
    which = (state, before, turn.now, limit)
    finished = turn.fetch(_FINISHED, which) if queue is None else turn.fetch(_FINISHED_IN, (queue, *which))
    forget(turn, finished)
    if finished:
        turn.scribe.tell("purge")
    return len(finished)
