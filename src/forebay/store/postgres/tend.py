"""Looking after what fell due: expire, admit, forget, take in what SQL users put. Bounded; under the lock of the gates.

One function, `forebay.stirs`, tells whether there is anything to do; a store at rest pays for nothing else. What is due
is admitted first, by rank: a job that was taken back gets the slot that it gave back, a newcomer parks behind others.
Plain jobs that are due need none of this: a claim takes them by itself.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.ledger import Change
from forebay.core.limits import BATCH_MOST
from forebay.core.outcome import OUT_OF_TIME
from forebay.store.places import Row
from forebay.store.postgres.base import Turn
from forebay.store.postgres.connect import Json, Rows
from forebay.store.postgres.graves import bury, left
from forebay.store.postgres.queries import statement
from forebay.store.protocol import Want
from forebay.store.states import DEAD

TEND_LIMIT: Final = 256
"""How much of what fell due a verb looks after in passing."""

SETTLE_MEMORY: Final = 65_536
_CALL_MEMORY: Final = 600_000_000
_HOLDER_MEMORY: Final = 3 * 86_400_000_000
EXPIRE_LIMIT: Final = 4 * BATCH_MOST
"""How many that expired a verb looks after in passing."""

_STIRS: Final = "SELECT forebay.stirs(%s)"
_LET_START: Final = "SELECT forebay.let_start(%s, %s, %s, %s, 64)"
_START_BY_TURNS: Final = "SELECT forebay.start_by_turns(%s, %s, %s, %s, %s)"
_LET_IN: Final = "SELECT * FROM forebay.let_in(%s, %s)"
_EXPIRED: Final = statement("expired")
_OUTLIVED: Final = statement("outlived")
_OUTGROWN: Final = statement("outgrown")
_REMEMBER: Final = statement("remember")
_SWEEP_KEYS: Final = statement("sweep_keys")
_KEYS_BY_STATE: Final = statement("keys_by_state")
_DROP_KEYS: Final = statement("drop_keys")
_DROP_EBBED: Final = statement("drop_ebbed")
_DROP_IDLE: Final = statement("drop_idle")
_SWEEP_CALLS: Final = statement("sweep_calls")
_SWEEP_SETTLED: Final = statement("sweep_settled")
_SWEEP_HOLDERS: Final = statement("sweep_holders")
_DROP_REPORTS: Final = statement("drop_reports")


def tend(turn: Turn, limit: int = TEND_LIMIT, expiring: int = EXPIRE_LIMIT) -> int:
    """How many jobs became ready; `expiring`: of those that expired so many die at most."""
    if not turn.gated and not turn.fetch(_STIRS, (turn.now,))[0][0]:
        return 0
    expire(turn, expiring)
    turn.write_gates()
    ready, queues = turn.fetch(_LET_IN, (turn.now, limit))[0]
    turn.news.update(queues)
    return int(ready)


def start(turn: Turn, wants: Sequence[Want]) -> list[list[str] | None]:
    """Let in at their rates what a claim wants beyond what is ready; by want, which classes give, if that was dealt."""
    turns: list[list[str] | None] = []
    for want in wants:
        known, dealt = turn.known(want.queue), None
        if want.cls is None and known.spec.share is not None:
            fair = known.spec.share
            values = (turn.now, want.queue, want.count, Json(msgspec.json.encode(fair.weights)), fair.default)
            dealt = turn.fetch(_START_BY_TURNS, values)[0][0]
        else:
            turn.execute(_LET_START, (turn.now, want.queue, want.cls, want.count))
        turns.append(dealt)
    return turns


def sweep(turn: Turn, limit: int) -> None:
    """What nobody needs any more is forgotten."""
    forget(turn, turn.fetch(_OUTLIVED, (turn.now, limit)))
    sweep_keys(turn, limit)
    turn.execute(_DROP_EBBED, (turn.now, limit))
    turn.execute(_DROP_IDLE)
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


def expire(turn: Turn, limit: int) -> None:
    """Jobs that nobody claimed in time go to the dead letters."""
    while limit > 0:
        some = min(limit, BATCH_MOST)
        found = turn.fetch(_EXPIRED, (turn.now, some))
        bury(turn, found, OUT_OF_TIME, Change.EXPIRED)
        if len(found) < some:
            return
        limit -= some


def forget(turn: Turn, finished: Sequence[Sequence[Any]], *, counted: bool = False) -> None:
    """Finished jobs are gone; each with its last settle, as `finished` and the others return them.

    `counted`: who counts the dead of a queue has heard of these.
    """
    for columns in finished:
        row = Row.of(columns)
        turn.scribe.job(Change.PURGED, row.id, columns[11], columns[10])
        if row.gates:
            turn.gates.forget(row)
    remember(turn, [(columns[0], columns[8], columns[9]) for columns in finished if columns[8]])
    if not counted:
        left(turn, [columns[1] for columns in finished if columns[3] == DEAD])


def forget_excess(turn: Turn, limit: int) -> None:
    """Where more dead lie than a queue keeps, the oldest are forgotten."""
    forget(turn, turn.fetch(_OUTGROWN, (turn.now, limit)), counted=True)


def remember(turn: Turn, settled: Sequence[tuple[int, int, str]]) -> None:
    """The last settles (id, delivery, code) of jobs that are gone."""
    if settled:
        ids, deliveries, codes = map(list, zip(*settled, strict=True))
        turn.execute(_REMEMBER, (len(settled), ids, [1] * len(settled), deliveries, codes))
