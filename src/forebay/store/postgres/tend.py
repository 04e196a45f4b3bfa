"""Looking after what is over: jobs past their expiry, finished jobs past their time, keys, calls, holders. Bounded.

Jobs that are due need none of this: a claim takes them by itself.
"""

from collections.abc import Sequence
from typing import Any, Final

from forebay.core.ledger import Change
from forebay.core.limits import BATCH_MOST
from forebay.core.outcome import OUT_OF_TIME
from forebay.store.postgres.base import Turn
from forebay.store.postgres.connect import Rows
from forebay.store.postgres.graves import bury, left
from forebay.store.postgres.queries import statement
from forebay.store.states import DEAD

SETTLE_MEMORY: Final = 65_536
_CALL_MEMORY: Final = 600_000_000
_HOLDER_MEMORY: Final = 3 * 86_400_000_000
EXPIRE_LIMIT: Final = 4 * BATCH_MOST
"""How many that expired a verb looks after in passing."""

_EXPIRED: Final = statement("expired")
_EXPIRED_QUEUES: Final = statement("expired_queues")
_OUTLIVED: Final = statement("outlived")
_OUTGROWN: Final = statement("outgrown")
_REMEMBER: Final = statement("remember")
_SWEEP_KEYS: Final = statement("sweep_keys")
_KEYS_BY_STATE: Final = statement("keys_by_state")
_DROP_KEYS: Final = statement("drop_keys")
_DROP_RATES: Final = statement("drop_rates")
_SWEEP_CALLS: Final = statement("sweep_calls")
_SWEEP_SETTLED: Final = statement("sweep_settled")
_SWEEP_HOLDERS: Final = statement("sweep_holders")
_DROP_REPORTS: Final = statement("drop_reports")


def sweep(turn: Turn, limit: int) -> None:
    """What nobody needs any more is forgotten."""
    forget(turn, turn.fetch(_OUTLIVED, (turn.now, limit)))
    sweep_keys(turn, limit)
    turn.execute(_DROP_RATES, (turn.now, limit))
    turn.execute(_SWEEP_CALLS, (turn.now - _CALL_MEMORY, limit))
    turn.execute(_SWEEP_SETTLED, (SETTLE_MEMORY,))
    turn.execute(_SWEEP_HOLDERS, (turn.now - _HOLDER_MEMORY,))
    turn.execute(_DROP_REPORTS)


def sweep_keys(turn: Turn, limit: int, *, by_state: bool = True) -> None:
    """Keys whose window has passed are forgotten; `by_state`: and some of those whose job is gone, round and round."""
    turn.execute(_SWEEP_KEYS, (turn.now, limit))
    walked: Rows = []
    for start in dict.fromkeys((turn.specs.walked, ("", ""))) if by_state else ():
        if len(walked) < limit:
            walked += turn.fetch(_KEYS_BY_STATE, (*start, limit - len(walked)))
    if walked:
        turn.specs.walked = walked[-1]
        turn.execute(_DROP_KEYS, [list(column) for column in zip(*walked, strict=True)])


def expire(turn: Turn, limit: int = EXPIRE_LIMIT) -> None:
    """Jobs that nobody claimed in time go to the dead letters."""
    queues = [queue for (queue,) in turn.fetch(_EXPIRED_QUEUES, (turn.now, limit))]
    turn.hold(queues)
    while limit > 0 and queues:
        some = min(limit, BATCH_MOST)
        found = turn.fetch(_EXPIRED, (turn.now, queues, some))
        bury(turn, found, OUT_OF_TIME, Change.EXPIRED)
        if len(found) < some:
            return
        limit -= some


def forget(turn: Turn, finished: Sequence[Sequence[Any]], *, counted: bool = False) -> None:
    """Finished jobs are gone; each with its last settle, as `finished` and the others return them.

    `counted`: who counts the dead of a queue has heard of these.
    """
    turn.hold({columns[8] for columns in finished if columns[4] is not None})
    for job_id, _, _, _, line, kind, _, _, home in finished:
        turn.scribe.job(Change.PURGED, job_id, home, kind)
        if line is not None:
            turn.lines.add(line)
    remember(turn, [(columns[0], columns[6], columns[7]) for columns in finished if columns[6]])
    if not counted:
        left(turn, [columns[1] for columns in finished if columns[2] == DEAD])


def forget_excess(turn: Turn, limit: int) -> None:
    """Where more dead lie than a queue keeps, the oldest are forgotten."""
    forget(turn, turn.fetch(_OUTGROWN, (turn.now, limit)), counted=True)


def remember(turn: Turn, settled: Sequence[tuple[int, int, str]]) -> None:
    """The last settles (id, delivery, code) of jobs that are gone."""
    if settled:
        ids, deliveries, codes = map(list, zip(*settled, strict=True))
        turn.execute(_REMEMBER, (len(settled), ids, [1] * len(settled), deliveries, codes))
