"""How a job dies: it lies where its queue sends the dead, for as long as that queue keeps them, and not too many do.

Who dies is rare, and may have been claimed under an older spec or by somebody else: the specs are read anew first.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.event import Grave
from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import Failure
from forebay.store.postgres.base import Turn
from forebay.store.postgres.connect import Rows
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import errors_of, text_of
from forebay.store.postgres.specs import Specs
from forebay.store.states import DEAD

_BURY: Final = statement("bury")
_COUNT_ANEW: Final = statement("count_dead_anew")


def grave_of(specs: Specs, queue: str, died_at: Instant, fetch: Callable[..., Rows] | None = None) -> Grave:
    """Where a job of this queue lies that dies then, and until when."""
    specs.reload([queue], fetch)
    dead = specs.of(queue).spec.routing.dead
    if dead is not None and dead.queue is not None:
        specs.reload([dead.queue], fetch)
    return specs.of(queue).stamper.grave(died_at, lambda name: specs.of(name).stamper) or Grave()


def bury(turn: Turn, found: Sequence[Sequence[Any]], failure: Failure, change: Change) -> None:
    """Jobs on their own that nobody holds die of this; they come as `expired` returns them."""
    graves: dict[str, Grave] = {}
    rows: list[tuple[int, str, str | None, Instant | None]] = []
    for columns in found:
        job_id, queue, _, lane, line, kind, attempt, past = columns
        grave = graves.get(queue)
        if grave is None:
            grave = graves[queue] = grave_of(turn.specs, queue, turn.now, turn.fetch)
        rows.append((job_id, failed(past, failure, turn.now, attempt), grave.queue, grave.kept_until or None))
        turn.touch(queue, lane, line)
        turn.eased.add(queue)
        turn.scribe.job(change, job_id, queue, kind)
    if rows:
        turn.execute(_BURY, (*(list(column) for column in zip(*rows, strict=True)), turn.now, DEAD))


def left(turn: Turn, queues: Iterable[str]) -> None:
    """Dead letters of these queues are not there any more: who counts them begins anew."""
    names = sorted(set(queues))
    if names:
        turn.execute(_COUNT_ANEW, (names,))


def failed(errors: str | None, error: Failure, at: Instant, attempt: int) -> str:
    """The last few failures, with this one, as the column holds them."""
    return text_of((*errors_of(errors), replace(error, at=at, attempt=attempt))[-ERRORS_KEPT:])
