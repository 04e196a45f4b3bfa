"""How a job dies: it lies where its queue sends the dead, for as long as that queue keeps them, and not too many do."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import Failure
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import Row, errors_of, rows_of, text_of
from forebay.store.sqlite.turn import Turn
from forebay.store.states import DEAD, READY

_DIE: Final = statement("die")
_CROWDED: Final = statement("crowded")
_OLDEST_DEAD: Final = statement("oldest_dead")

Mark = tuple[int, str]
"""A settle as it is remembered: the delivery, and the letter of the verdict."""


def lay_down(turn: Turn, job_id: int, queue: str, errors: str, mark: Mark | tuple[None, None]) -> str:
    """The job is dead; where it lies. The caller sees to its gates, and counts it."""
    grave = turn.queue(queue).known.stamper.grave(turn.now, lambda name: turn.queue(name).known.stamper)
    elsewhere, kept_until = (None, None) if grave is None else (grave.queue, grave.kept_until or None)
    turn.connection.execute(_DIE, (job_id, turn.now, errors, *mark, elsewhere, kept_until))
    return elsewhere or queue


def died(turn: Turn, queue: str, lane: str, was: int, lies_in: str, count: int = 1) -> None:
    """Count jobs that died: they belong to a queue, and may lie in another one."""
    if lies_in == queue:
        turn.tally.moved(queue, lane, was, DEAD, count)
    else:
        turn.tally.moved(queue, lane, was, None, count)
        turn.tally.moved(lies_in, "", None, DEAD, count)


def bury(turn: Turn, rows: Iterable[Row], failure: Failure, change: Change) -> None:
    """Jobs that nobody holds die of this; their rows have their errors."""
    lines: dict[str, None] = {}
    for row in rows:
        errors = failed(row.errors, failure, turn.now, row.attempt)
        died(turn, row.queue, row.lane, row.state, lay_down(turn, row.id, row.queue, errors, (None, None)))
        if row.state == READY:
            turn.lanes.left(row.queue, row.lane)
        if row.line is not None and not row.behind:
            lines[row.line] = None
        if turn.scribe is not None:
            turn.scribe.job(change, row.id, row.queue, row.kind)
    if lines:
        turn.expose(lines)


def too_many(turn: Turn, limit: int) -> Iterator[list[Row]]:
    """The oldest of the dead wherever more lie than the queue keeps; `limit` of all of them, for `forget`."""
    found = turn.connection.execute(_CROWDED).fetchall()
    for name in {**dict.fromkeys(name for (name,) in found), **dict.fromkeys(turn.tally.crowded())}:
        queue = turn.queue(name)
        excess = min(limit, queue.counts[DEAD] - (queue.known.dead_most or queue.counts[DEAD]))
        if excess > 0:
            limit -= excess
            yield rows_of(turn.connection.execute(_OLDEST_DEAD, (name, excess)))


def failed(errors: str | None, error: Failure, at: Instant, attempt: int) -> str:
    """The last few failures, with this one, as the column holds them."""
    return text_of((*errors_of(errors), replace(error, at=at, attempt=attempt))[-ERRORS_KEPT:])
