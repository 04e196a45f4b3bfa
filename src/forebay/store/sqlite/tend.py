"""Looking after what fell due: expire, promote, forget. Bounded, and done in passing by the verbs.

One statement, `pulse`, tells whether there is anything to do; a store at rest pays for nothing else. A job that expired
is never handed out, however many there are: `expire` says whether it is through.
"""

from collections.abc import Sequence
from typing import Final

from forebay.core.ledger import Change
from forebay.core.limits import BATCH_MOST, INSTANT_MOST
from forebay.core.outcome import OUT_OF_TIME
from forebay.store.sqlite.graves import bury, too_many
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import Row, rows_of
from forebay.store.sqlite.turn import Turn
from forebay.store.states import DEAD

TEND_LIMIT: Final = 256
"""How much of what fell due a verb looks after in passing."""

EXPIRE_LIMIT: Final = 4 * BATCH_MOST
"""How many that expired a verb looks after in passing: a claim waits for them, so they are more."""

_PULSE: Final = statement("pulse")
_EXPIRED: Final = statement("expired")
_KEPT: Final = statement("kept")
_DROP_PAID: Final = statement("drop_paid")
_DROP_IDLE: Final = statement("drop_idle")
_SWEEP_KEYS: Final = statement("sweep_keys")
_KEYS_BY_STATE: Final = statement("keys_by_state")
_DROP_KEY: Final = statement("drop_key")


def tend(turn: Turn, limit: int = TEND_LIMIT, expiring: int = EXPIRE_LIMIT) -> bool:
    """Whether everything that expired is dead; `expiring`: so many of these at most."""
    now = turn.now
    due_at, expires_at, kept_until, wake_at, crowded = turn.connection.execute(_PULSE).fetchone()
    through = expires_at is None or expires_at > now or expire(turn, expiring)
    if due_at is not None and due_at <= now:
        turn.promote_due(limit)
    if wake_at is not None and wake_at <= now:
        turn.lanes.open_rates(limit)
    if kept_until is not None and kept_until <= now:
        forget(turn, rows_of(turn.connection.execute(_KEPT, (now, limit))))
    if crowded or turn.tally.crowded():
        for oldest in too_many(turn, limit):
            forget(turn, oldest)
    return through


def expire(turn: Turn, limit: int) -> bool:
    """Jobs that nobody claimed in time go to the dead letters; False: there may be more than one call looks after."""
    while limit > 0:
        some = min(limit, BATCH_MOST)
        rows = rows_of(turn.connection.execute(_EXPIRED, (turn.now, some)))
        bury(turn, rows, OUT_OF_TIME, Change.EXPIRED)
        if len(rows) < some:
            return True
        limit -= some
    return False


def forget(turn: Turn, finished: Sequence[Row]) -> None:
    """Finished jobs are gone, each with its last settle."""
    lines: dict[str, None] = {}
    for row in finished:
        if row.line is not None and row.blocks and row.state == DEAD:
            lines[row.line] = None
        turn.tally.moved(row.queue, row.lane, row.state, None)
        if turn.scribe is not None:
            turn.scribe.job(Change.PURGED, row.id, row.home, row.kind)
    settled = [(row.id, row.settled_delivery, row.settled_code) for row in finished if row.settled_delivery]
    turn.remove([row.id for row in finished], settled)
    if lines:
        turn.expose_if_free(lines)


def sweep_idle(turn: Turn, limit: int) -> None:
    """Rates whose starts are all paid for are forgotten, and classes whose turns say nothing any more."""
    turn.connection.execute(_DROP_PAID, (turn.now, limit))
    turn.connection.execute(_DROP_IDLE, (limit,))


def _walk(turn: Turn, limit: int) -> list[tuple[str, str, int]]:
    """The next of the keys that are taken by state, round and round."""
    walked: list[tuple[str, str, int]] = []
    for start in dict.fromkeys((turn.tally.knowledge.walked, ("", ""))):
        if len(walked) < limit:
            walked += turn.connection.execute(_KEYS_BY_STATE, (INSTANT_MOST, *start, limit - len(walked))).fetchall()
    turn.tally.knowledge.walked = walked[-1][:2] if walked else ("", "")
    return walked


def sweep_keys(turn: Turn, limit: int, *, by_state: bool = True) -> None:
    """Keys whose window has passed are forgotten; `by_state`: and some of those whose job is gone."""
    gone = turn.connection.execute(_SWEEP_KEYS, (turn.now, limit)).fetchall()
    for queue, key, alive in _walk(turn, limit) if by_state else ():
        if not alive:
            gone += turn.connection.execute(_DROP_KEY, (queue, key)).fetchall()
    for (queue,) in gone:
        counters = turn.queue(queue)
        counters.keys -= 1
        counters.changed = True
