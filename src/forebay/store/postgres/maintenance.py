"""Maintenance: expiry of jobs, removal of finished jobs, keys and holders that are past their time. Bounded.

Due jobs need no maintenance: a claim makes them ready.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from forebay.core.entries import DeadLetterRule
from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import MAX_BATCH, SETTLE_MEMORY
from forebay.core.outcome import OUT_OF_TIME, Failure
from forebay.engine.settle import errors_after
from forebay.store.postgres.connect import Rows
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import errors_of, text_of
from forebay.store.postgres.session import SpecCache, UnitOfWork
from forebay.store.states import DEAD

END_SINGLES: Final = statement("end_singles")
EXTRACT: Final = "SELECT forebay.extract(%s, %s)"
_RECOUNT_DEAD: Final = statement("recount_dead")
_HOLDER_MEMORY: Final = 3 * 86_400_000_000
EXPIRE_LIMIT: Final = 4 * MAX_BATCH
"""How many expired jobs a verb removes as part of its maintenance."""

_KEY_GRACE: Final = 10_000_000
"""Microseconds for which a key is kept after its window: a call that read the clock before the window ended may look
the key up later, and must find it. `forebay.promote` has the same number."""

_EXPIRED: Final = statement("expired")
_EXPIRED_QUEUES: Final = statement("expired_queues")
_PURGE_KEPT: Final = statement("purge_kept")
_PURGE_EXCESS_DEAD: Final = statement("purge_excess_dead")
_STORE_SETTLES: Final = statement("store_settles")
_SWEEP_KEYS: Final = statement("sweep_keys")
_KEYS_BY_STATE: Final = statement("keys_by_state")
_DROP_KEYS: Final = statement("drop_keys")
_DROP_RATES: Final = statement("drop_rates")
_SWEEP_SETTLED: Final = statement("sweep_settled")
_SWEEP_HOLDERS: Final = statement("sweep_holders")
_DROP_PROGRESS: Final = statement("drop_progress")
_TAKE_DEAD: Final = (
    f"DELETE FROM forebay.ended WHERE id = ANY (%s::bigint[]) AND state + 0 = {DEAD} "
    "RETURNING id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue)"
)


def dead_letter_rule(
    specs: SpecCache, queue: str, died_at: Instant, fetch: Callable[..., Rows] | None = None
) -> DeadLetterRule:
    """Where a job of this queue that dies then is kept, and until when."""
    specs.reload([queue], fetch)
    dead = specs.of(queue).spec.routing.dead
    if dead is not None and dead.queue is not None:
        specs.reload([dead.queue], fetch)
    return specs.of(queue).stamper.dead_letter(died_at, lambda name: specs.of(name).stamper) or DeadLetterRule()


def dead_letter(unit: UnitOfWork, found: Sequence[Sequence[Any]], failure: Failure, change: Change) -> None:
    """Unclaimed jobs, as `expired` returns them, become dead letters with this failure."""
    rules: dict[str, DeadLetterRule] = {}
    rows: list[tuple[int, str, str | None, Instant | None]] = []
    for columns in found:
        job_id, queue, _, lane, line, kind, attempt, past = columns
        rule = rules.get(queue)
        if rule is None:
            rule = rules[queue] = dead_letter_rule(unit.specs, queue, unit.now, unit.fetch)
        failed = text_of(errors_after(errors_of(past), failure, unit.now, attempt))
        rows.append((job_id, failed, rule.queue, rule.kept_until or None))
        unit.touch(queue, lane, line)
        unit.has_room.add(queue)
        unit.builder.job(change, job_id, queue, kind)
    if rows:
        unit.execute(END_SINGLES, (*(list(column) for column in zip(*rows, strict=True)), unit.now, DEAD))


def recount_dead(unit: UnitOfWork, queues: Iterable[str]) -> None:
    """Dead letters of these queues were removed: they are counted again where their number is limited."""
    names = sorted(set(queues))
    if names:
        unit.execute(_RECOUNT_DEAD, (names,))


def sweep(unit: UnitOfWork, limit: int) -> None:
    """Remove what is past its time."""
    record_purged(unit, unit.fetch(_PURGE_KEPT, (unit.now, limit)))
    sweep_keys(unit, limit)
    unit.execute(_DROP_RATES, (unit.now, limit))
    unit.execute(_SWEEP_SETTLED, (SETTLE_MEMORY,))
    unit.execute(_SWEEP_HOLDERS, (unit.now - _HOLDER_MEMORY,))
    unit.execute(_DROP_PROGRESS)


def sweep_keys(unit: UnitOfWork, limit: int, *, by_state: bool = True) -> None:
    """Remove keys whose window has passed; `by_state`: also the next keys by state whose jobs are gone."""
    unit.execute(_SWEEP_KEYS, (unit.now - _KEY_GRACE, limit))
    walked: Rows = []
    for start in dict.fromkeys((unit.specs.walked, ("", ""))) if by_state else ():
        if len(walked) < limit:
            walked += unit.fetch(_KEYS_BY_STATE, (*start, limit - len(walked)))
    if walked:
        unit.specs.walked = walked[-1]
        unit.execute(_DROP_KEYS, [list(column) for column in zip(*walked, strict=True)])


def expire(unit: UnitOfWork, limit: int = EXPIRE_LIMIT) -> None:
    """Jobs that were not claimed in time become dead letters."""
    queues = [queue for (queue,) in unit.fetch(_EXPIRED_QUEUES, (unit.now, limit))]
    unit.require_locks(queues)
    while limit > 0 and queues:
        some = min(limit, MAX_BATCH)
        found = unit.fetch(_EXPIRED, (unit.now, queues, some))
        dead_letter(unit, found, OUT_OF_TIME, Change.EXPIRED)
        if len(found) < some:
            return
        limit -= some


class FinishedRow(NamedTuple):
    """A finished job that was removed, with its last settle."""

    id: int
    queue: str
    state: int
    lane: str
    line: str | None
    kind: str
    settled_delivery: int
    settled_code: str
    home: str


def record_purged(unit: UnitOfWork, finished: Rows, *, counted: bool = False) -> None:
    """Finished jobs were removed. `counted`: the counters of dead letters are already without them."""
    rows = [FinishedRow._make(columns) for columns in finished]
    unit.require_locks({row.home for row in rows if row.line is not None})
    for row in rows:
        unit.builder.job(Change.PURGED, row.id, row.home, row.kind)
        if row.line is not None:
            unit.lines.add(row.line)
    store_settles(unit, [(row.id, row.settled_delivery, row.settled_code) for row in rows if row.settled_delivery])
    if not counted:
        recount_dead(unit, [row.queue for row in rows if row.state == DEAD])


def purge_excess_dead(unit: UnitOfWork, limit: int) -> None:
    """Where a queue has more dead letters than its limit, the oldest are removed."""
    record_purged(unit, unit.fetch(_PURGE_EXCESS_DEAD, (unit.now, limit)), counted=True)


def take_dead(unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
    """Remove those of these jobs that are dead letters; returns their ids."""
    found = unit.fetch(_TAKE_DEAD, (list(ids),))
    record_purged(unit, found)
    return [job_id for job_id, *_ in found]


def store_settles(unit: UnitOfWork, settled: Sequence[tuple[int, int, str]]) -> None:
    """Store the last settles (id, delivery, code) of jobs that were deleted."""
    if settled:
        ids, deliveries, codes = map(list, zip(*settled, strict=True))
        unit.execute(_STORE_SETTLES, (len(settled), ids, [1] * len(settled), deliveries, codes))
