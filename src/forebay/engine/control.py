"""Rules of configuration: which spec may replace which, and when a schedule fires.

How a store uses it, inside the step that writes:

    new_partitions(known, spec, …)      refuses an invalid change of a spec; the partitions that a log gains
    check_moved(known, spec)            refuses to open a queue that has left this cell; `new_partitions` has it in it
    is_due(schedule, tick, last_at)     whether `fire` may fire this slot
    fired(schedule, …)                  the schedule after it
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from forebay.core.errors import Invalid, QueueMoved, WrongQueueKind
from forebay.core.instant import Instant
from forebay.core.policy import Moved, Retained
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.brokers import became
from forebay.store.checks import check_neighbours
from forebay.store.protocol import Receipt

PAGE_PROBES: Final = 5_000
"""How many jobs one page of `browse` reads, matching or not, so that no page is a long read."""


def new_partitions(
    known: QueueSpec | None, spec: QueueSpec, has_jobs: Callable[[], bool], others: Callable[[], Iterable[QueueSpec]]
) -> range:
    """The partitions to add to a log. `known`: its previous spec; `others`: all current specs.

    A queue with jobs does not become a log, nor a log a queue, and a log loses no partition.
    """
    if known is not None and known.is_log != spec.is_log:
        raise WrongQueueKind(spec.name, known.is_log)
    check_moved(known, spec)
    if known is None and spec.is_log and has_jobs():
        raise WrongQueueKind(spec.name, is_log=False)
    partitions = range(0 if known is None else _partitions(known), _partitions(spec))
    if partitions.stop < partitions.start:
        raise Invalid(spec.name, "a log cannot lose partitions", "keep them, or start a new log")
    check_neighbours(spec, others())
    return partitions


def check_moved(known: QueueSpec | None, spec: QueueSpec) -> None:
    """A queue that has left this cell stays closed, until a process that knows the map of that move releases it."""
    if known is None or not isinstance(known.capacity, Moved) or known.capacity.released:
        return
    if not isinstance(spec.capacity, Moved) or spec.capacity.version < known.capacity.version:
        raise QueueMoved(spec.name, known.capacity.version)


def is_due(schedule: Schedule | None, tick: Instant, last_at: Instant | None) -> bool:
    """Whether this slot may be fired: it is the schedule's next one, and no later one was fired."""
    return (
        schedule is not None
        and not schedule.paused
        and schedule.next_at == tick
        and (last_at is None or tick > last_at)
    )


def fired(schedule: Schedule, next_at: Instant, receipts: Sequence[Receipt]) -> Schedule:
    """The schedule after its slot was fired; `receipts`: of the copies of its draft."""
    return replace(schedule, next_at=next_at, last_job=became(receipts) or schedule.last_job)


def _partitions(spec: QueueSpec) -> int:
    return spec.retention.partitions if isinstance(spec.retention, Retained) else 0
