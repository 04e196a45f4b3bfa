"""How a job dies: it lies where its queue sends the dead, for as long as that queue keeps them, and not too many do."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import Failure
from forebay.store.places import Row
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import errors_of, text_of
from forebay.store.sqlite.turn import Turn
from forebay.store.states import DEAD, READY

_DIE: Final = statement("die")
_CROWDED: Final = statement("crowded")
_OLDEST_DEAD: Final = statement("oldest_dead")

Mark = tuple[int, str]
"""A settle as it is remembered: the delivery, and the letter of the verdict."""


def lay_down(turn: Turn, job_id: int, queue: str, errors: str, mark: Mark | tuple[None, None]) -> str:
    """The job is dead; where it lies. The caller sees to its gates, and counts it."""
    grave = turn.line(queue).known.stamper.grave(turn.now, lambda name: turn.line(name).known.stamper)
    elsewhere, kept_until = (None, None) if grave is None else (grave.queue, grave.kept_until or None)
    turn.connection.execute(_DIE, (job_id, turn.now, errors, *mark, elsewhere, kept_until))
    return elsewhere or queue


def died(turn: Turn, queue: str, cls: str, was: int, lies_in: str, count: int = 1) -> None:
    """Count jobs that died: they belong to a queue, and may lie in another one."""
    if lies_in == queue:
        turn.tally.moved(queue, cls, was, DEAD, count)
    else:
        turn.tally.moved(queue, cls, was, None, count)
        turn.tally.moved(lies_in, "", None, DEAD, count)


def bury(turn: Turn, found: Sequence[Sequence[Any]], failure: Failure, change: Change) -> None:
    """Jobs that nobody holds die of this; they come as `expired` returns them."""
    for columns in found:
        row = Row.of(columns)
        errors = failed(columns[9], failure, turn.now, columns[8])
        died(turn, row.queue, row.cls, row.state, lay_down(turn, row.id, row.queue, errors, (None, None)))
        if row.gates:
            if row.state == READY:
                turn.gates.release(row)
            turn.gates.end(row, DEAD)
        if turn.scribe is not None:
            turn.scribe.job(change, row.id, row.queue, columns[10])


def too_many(turn: Turn, limit: int) -> Iterator[list[Sequence[Any]]]:
    """The oldest of the dead wherever more lie than the queue keeps; `limit` of all of them, for `forget`."""
    for (name,) in turn.connection.execute(_CROWDED).fetchall():
        line = turn.line(name)
        excess = min(limit, line.counts[DEAD] - (line.known.dead_most or line.counts[DEAD]))
        if excess > 0:
            limit -= excess
            yield turn.connection.execute(_OLDEST_DEAD, (name, excess)).fetchall()


def failed(errors: str | None, error: Failure, at: Instant, attempt: int) -> str:
    """The last few failures, with this one, as the column holds them."""
    return text_of((*errors_of(errors), replace(error, at=at, attempt=attempt))[-ERRORS_KEPT:])
