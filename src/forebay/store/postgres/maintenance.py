"""Looking after what is over: jobs past their expiry, finished jobs past their time, keys, calls, holders. Bounded.

Jobs that are due need none of this: a claim takes them by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from forebay.core.entries import DeadLetterRule
from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import OUT_OF_TIME, Failure
from forebay.engine.settle import errors_after
from forebay.store.postgres.connect import Rows
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import errors_of, text_of
from forebay.store.postgres.session import UnitOfWork
from forebay.store.postgres.specs import Specs
from forebay.store.states import DEAD

_BURY: Final = statement("bury")
_COUNT_ANEW: Final = statement("count_dead_anew")
SETTLE_MEMORY: Final = 65_536
_CALL_MEMORY: Final = 600_000_000
_HOLDER_MEMORY: Final = 3 * 86_400_000_000
EXPIRE_LIMIT: Final = 4 * MAX_BATCH
"""How many that expired a verb looks after in passing."""

_KEY_GRACE: Final = 10_000_000
"""Microseconds for which a key is kept after its window: a call that read the clock before the window ended may reach
the key later, and must find it. `forebay.promote` has the same number."""

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
_TAKE_DEAD: Final = (
    f"DELETE FROM forebay.ended WHERE id = ANY (%s::bigint[]) AND state + 0 = {DEAD} "
    "RETURNING id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue)"
)


def grave_of(specs: Specs, queue: str, died_at: Instant, fetch: Callable[..., Rows] | None = None) -> DeadLetterRule:
    """Where a job of this queue lies that dies then, and until when."""
    specs.reload([queue], fetch)
    dead = specs.of(queue).spec.routing.dead
    if dead is not None and dead.queue is not None:
        specs.reload([dead.queue], fetch)
    return specs.of(queue).stamper.dead_letter(died_at, lambda name: specs.of(name).stamper) or DeadLetterRule()


def bury(unit: UnitOfWork, found: Sequence[Sequence[Any]], failure: Failure, change: Change) -> None:
    """Jobs on their own that nobody holds die of this; they come as `expired` returns them."""
    graves: dict[str, DeadLetterRule] = {}
    rows: list[tuple[int, str, str | None, Instant | None]] = []
    for columns in found:
        job_id, queue, _, lane, line, kind, attempt, past = columns
        grave = graves.get(queue)
        if grave is None:
            grave = graves[queue] = grave_of(unit.specs, queue, unit.now, unit.fetch)
        failed = text_of(errors_after(errors_of(past), failure, unit.now, attempt))
        rows.append((job_id, failed, grave.queue, grave.kept_until or None))
        unit.touch(queue, lane, line)
        unit.eased.add(queue)
        unit.builder.job(change, job_id, queue, kind)
    if rows:
        unit.execute(_BURY, (*(list(column) for column in zip(*rows, strict=True)), unit.now, DEAD))


def left(unit: UnitOfWork, queues: Iterable[str]) -> None:
    """Dead letters of these queues are not there any more: who counts them begins anew."""
    names = sorted(set(queues))
    if names:
        unit.execute(_COUNT_ANEW, (names,))


def sweep(unit: UnitOfWork, limit: int) -> None:
    """What nobody needs any more is forgotten."""
    forget(unit, unit.fetch(_OUTLIVED, (unit.now, limit)))
    sweep_keys(unit, limit)
    unit.execute(_DROP_RATES, (unit.now, limit))
    unit.execute(_SWEEP_CALLS, (unit.now - _CALL_MEMORY, limit))
    unit.execute(_SWEEP_SETTLED, (SETTLE_MEMORY,))
    unit.execute(_SWEEP_HOLDERS, (unit.now - _HOLDER_MEMORY,))
    unit.execute(_DROP_REPORTS)


def sweep_keys(unit: UnitOfWork, limit: int, *, by_state: bool = True) -> None:
    """Keys whose window has passed are forgotten; `by_state`: and some of those whose job is gone, round and round."""
    unit.execute(_SWEEP_KEYS, (unit.now - _KEY_GRACE, limit))
    walked: Rows = []
    for start in dict.fromkeys((unit.specs.walked, ("", ""))) if by_state else ():
        if len(walked) < limit:
            walked += unit.fetch(_KEYS_BY_STATE, (*start, limit - len(walked)))
    if walked:
        unit.specs.walked = walked[-1]
        unit.execute(_DROP_KEYS, [list(column) for column in zip(*walked, strict=True)])


def expire(unit: UnitOfWork, limit: int = EXPIRE_LIMIT) -> None:
    """Jobs that nobody claimed in time go to the dead letters."""
    queues = [queue for (queue,) in unit.fetch(_EXPIRED_QUEUES, (unit.now, limit))]
    unit.hold(queues)
    while limit > 0 and queues:
        some = min(limit, MAX_BATCH)
        found = unit.fetch(_EXPIRED, (unit.now, queues, some))
        bury(unit, found, OUT_OF_TIME, Change.EXPIRED)
        if len(found) < some:
            return
        limit -= some


class FinishedRow(NamedTuple):
    """A finished job that is gone, as `finished` and its siblings return it; with its last settle."""

    id: int
    queue: str
    state: int
    lane: str
    line: str | None
    kind: str
    settled_delivery: int
    settled_code: str
    home: str


def forget(unit: UnitOfWork, finished: Rows, *, counted: bool = False) -> None:
    """Finished jobs are gone. `counted`: the number of dead letters of their queues is already without them."""
    rows = [FinishedRow._make(columns) for columns in finished]
    unit.hold({row.home for row in rows if row.line is not None})
    for row in rows:
        unit.builder.job(Change.PURGED, row.id, row.home, row.kind)
        if row.line is not None:
            unit.lines.add(row.line)
    remember(unit, [(row.id, row.settled_delivery, row.settled_code) for row in rows if row.settled_delivery])
    if not counted:
        left(unit, [row.queue for row in rows if row.state == DEAD])


def forget_excess(unit: UnitOfWork, limit: int) -> None:
    """Where more dead lie than a queue keeps, the oldest are forgotten."""
    forget(unit, unit.fetch(_OUTGROWN, (unit.now, limit)), counted=True)


def take_dead(unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
    """Those of these jobs that are dead letters are gone; their ids."""
    found = unit.fetch(_TAKE_DEAD, (list(ids),))
    forget(unit, found)
    return [job_id for job_id, *_ in found]


def remember(unit: UnitOfWork, settled: Sequence[tuple[int, int, str]]) -> None:
    """The last settles (id, delivery, code) of jobs that are gone."""
    if settled:
        ids, deliveries, codes = map(list, zip(*settled, strict=True))
        unit.execute(_REMEMBER, (len(settled), ids, [1] * len(settled), deliveries, codes))
