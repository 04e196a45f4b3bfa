"""Looking after what fell due: expire, promote, forget. Bounded, and done in passing by the verbs.

One statement, `pulse`, tells whether there is anything to do; a store at rest pays for nothing else. What is due is
admitted first, by rank: a job that was taken back gets the slot that it gave back, a newcomer parks behind others. A
job that expired is never handed out, however many there are: `expire` says whether it is through.
"""

from collections.abc import Sequence
from typing import Any, Final

from forebay.core.ledger import Change
from forebay.core.limits import BATCH_MOST, INSTANT_MOST
from forebay.core.outcome import OUT_OF_TIME
from forebay.store.places import Row
from forebay.store.sqlite.graves import bury, too_many
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.tally import Line
from forebay.store.sqlite.turn import Turn
from forebay.store.states import READY

TEND_LIMIT: Final = 256
"""How much of what fell due a verb looks after in passing."""

EXPIRE_LIMIT: Final = 4 * BATCH_MOST
"""How many that expired a verb looks after in passing: a claim waits for them, so they are more."""

TRIES: Final = 64
"""How many that a rate lets in, and another gate does not, a claim looks at in passing."""

_PULSE: Final = statement("pulse")
_DUE: Final = statement("due")
_EXPIRED: Final = statement("expired")
_KEPT: Final = statement("kept")
_PARK: Final = statement("park")
_OPENING: Final = statement("opening")
_CLASS_READY: Final = statement("class_ready")
_DROP_EBBED: Final = statement("drop_ebbed")
_DROP_IDLE: Final = statement("drop_idle")
_SWEEP_KEYS: Final = statement("sweep_keys")
_KEYS_BY_STATE: Final = statement("keys_by_state")
_DROP_KEY: Final = statement("drop_key")


def tend(turn: Turn, limit: int = TEND_LIMIT, expiring: int = EXPIRE_LIMIT) -> tuple[int, bool]:
    """How many became ready, and whether everything that expired is dead; `expiring`: so many of these at most."""
    now = turn.now
    due_at, expires_at, kept_until, opened, crowded, *rates = turn.connection.execute(_PULSE).fetchone()
    opens_at, starts = rates
    turn.paced = bool(starts) or (opens_at is not None and opens_at <= now)
    through = expires_at is None or expires_at > now or expire(turn, expiring)
    ready = tried = 0
    if due_at is not None and due_at <= now:
        ready, tried = _promote(turn, limit)
    if (opened or turn.gated) and tried < limit:
        ready += open_gates(turn, limit - tried)[0]
    if opens_at is not None and opens_at <= now:
        opening = turn.connection.execute(_OPENING, (now, limit)).fetchall()
        turn.tally.starting([queue for queue, _ in opening])
        turn.tally.join((queue, cls) for queue, cls in opening if cls)
    if turn.gated:
        turn.tally.starting(turn.gates.write_paces())
    if kept_until is not None and kept_until <= now:
        forget(turn, turn.connection.execute(_KEPT, (now, limit)).fetchall())
    if crowded:
        for oldest in too_many(turn, limit):
            forget(turn, oldest)
    return ready, through


def open_gates(turn: Turn, limit: int = TEND_LIMIT) -> tuple[int, int]:
    """Let in who is parked where there is room; how many became ready, and how many were tried."""
    ready = tried = 0
    while tried < limit and (row := turn.gates.next_candidate(turn.now)) is not None:
        tried += 1
        if _admit(turn, row, its_turn=True):
            turn.make_ready([row])
            ready += 1
    return ready, tried


def start(turn: Turn, line: Line, count: int, cls: str | None, tries: int) -> int:
    """Let in at the rates of a queue what a claim wants beyond what is ready; how many tries are left."""
    wanted = count - (line.counts[READY] if cls is None else ready_of(turn, line, cls))
    while wanted > 0 and tries > 0 and (row := turn.gates.next_start(line.name, cls)) is not None:
        if _admit(turn, row, starts=True, its_turn=True):
            turn.make_ready([row])
            wanted -= 1
        else:
            tries -= 1
        open_gates(turn)
    return tries


def readmit(turn: Turn, row: Row) -> None:
    """A due job that is parked nowhere becomes ready, or parks at another gate."""
    if not row.gates or _admit(turn, row):
        turn.make_ready([row])


def expire(turn: Turn, limit: int) -> bool:
    """Jobs that nobody claimed in time go to the dead letters; False: there may be more than one call looks after."""
    while limit > 0:
        some = min(limit, BATCH_MOST)
        columns = turn.connection.execute(_EXPIRED, (turn.now, some)).fetchall()
        bury(turn, columns, OUT_OF_TIME, Change.EXPIRED)
        if len(columns) < some:
            return True
        limit -= some
    return False


def forget(turn: Turn, finished: Sequence[Sequence[Any]]) -> None:
    """Finished jobs are gone, each with its last settle; they come as `finished` and `kept` return them."""
    for columns in finished:
        row = Row.of(columns)
        if row.gates:
            turn.gates.forget(row)
        turn.tally.moved(row.queue, row.cls, row.state, None)
        if turn.scribe is not None:
            turn.scribe.job(Change.PURGED, row.id, columns[11], columns[10])
    settled = [(columns[0], columns[8], columns[9]) for columns in finished if columns[8]]
    turn.remove([columns[0] for columns in finished], settled)


def sweep_rates(turn: Turn, limit: int) -> None:
    """Rates whose starts are all paid for, and that nobody waits at, are forgotten; and classes that waited there."""
    turn.connection.execute(_DROP_EBBED, (turn.now, limit))
    turn.connection.execute(_DROP_IDLE, (limit,))


def _walk(turn: Turn, limit: int) -> list[tuple[str, str, int]]:
    """The next of the keys that are taken by state, round and round."""
    walked: list[tuple[str, str, int]] = []
    for start in dict.fromkeys((turn.tally.walked, ("", ""))):
        if len(walked) < limit:
            walked += turn.connection.execute(_KEYS_BY_STATE, (INSTANT_MOST, *start, limit - len(walked))).fetchall()
    turn.tally.walked = walked[-1][:2] if walked else ("", "")
    return walked


def sweep_keys(turn: Turn, limit: int, *, by_state: bool = True) -> None:
    """Keys whose window has passed are forgotten; `by_state`: and some of those whose job is gone."""
    gone = turn.connection.execute(_SWEEP_KEYS, (turn.now, limit)).fetchall()
    for queue, key, alive in _walk(turn, limit) if by_state else ():
        if not alive:
            gone += turn.connection.execute(_DROP_KEY, (queue, key)).fetchall()
    for (queue,) in gone:
        line = turn.line(queue)
        line.keys -= 1
        line.changed = True


def ready_of(turn: Turn, line: Line, cls: str) -> int:
    if not cls:
        return line.counts[READY] - line.classed
    turn.write_classes()
    found = turn.connection.execute(_CLASS_READY, (line.name, cls)).fetchone()
    return 0 if found is None else int(found[0])


def _promote(turn: Turn, limit: int) -> tuple[int, int]:
    """How many of those that are due became ready, and how many were tried."""
    rows = [Row.of(columns) for columns in turn.connection.execute(_DUE, (turn.now, limit)).fetchall()]
    ready = [row for row in rows if not row.gates or _admit(turn, row)]
    turn.make_ready(ready)
    return len(ready), len(rows)


def _admit(turn: Turn, row: Row, *, starts: bool = False, its_turn: bool = False) -> bool:
    parked_at = turn.gates.admit(row, starts=starts, its_turn=its_turn)
    if parked_at is not None and parked_at != row.gate:
        turn.connection.execute(_PARK, (row.id, parked_at))
    return parked_at is None
