"""Why a job is in its state: what holds it, what is before it, and when that may change; and the gates of a queue."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from forebay.core.gate import gate_names
from forebay.core.humanize import many
from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Job, State
from forebay.core.limits import MAX_AHEAD, MAX_BATCH
from forebay.core.presence import Presence
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Backlog, Cellular, GateUse, Hold, Store

_SECOND = 1_000_000


class QueuePosition(Struct, frozen=True):
    """The position of a job: the gate or line that holds it, the head of that line, the jobs before it in its lane."""

    hold: Hold | None = None
    head: Job | None = None
    ahead: int | None = None


_NO_POSITION = QueuePosition()


def explain(store: Store, job_id: int) -> list[str]:
    """Sentences, the deciding one first; also for an unknown id."""
    job = store.get([job_id])[0]
    if job is None:
        return [f"job {job_id} is unknown: it never existed, or it was done and removed, or purged"]
    spec = next((spec for spec in store.specs() if spec.name == job.queue), QueueSpec(name=job.queue))
    backlog, workers = store.backlog([job.queue])[0], store.workers("", MAX_BATCH)
    found = reasons(job, backlog, store.now(), position_of(store, job), workers)
    return [*with_cell(store, job, found), spec.vector()]


def cells_of(store: Store, queue: str) -> tuple[str, ...]:
    """The cells of a queue; none where the store has no cells."""
    return tuple(store.homes(queue)) if isinstance(store, Cellular) else ()


def with_cell(store: Store, job: Job, found: list[str]) -> list[str]:
    """The same sentences with the cell of the job, if any; what holds it in a move decides before all else."""
    if not isinstance(store, Cellular):
        return found
    home = store.home(job.id)
    name = next(name for name, cell in store.cells().items() if cell is home)
    held_by = None if job.state.terminal else store.held_by(job)
    if held_by is None:
        return [*found, f"it is in cell {name}"]
    return [
        found[0],
        f"it is in cell {name}, and starts when cell {held_by}, which its queue leaves, has no job of it",
    ]


def gates_of(store: Store, spec: QueueSpec, maximum: int) -> list[GateUse]:
    """The gates in use that may hold jobs of the queue, by name, at most `maximum`."""
    found: list[GateUse] = []
    after: str | None = ""
    while after is not None and len(found) < maximum:
        page, after = gates_page(store, gate_names(spec), after, min(maximum - len(found), MAX_BATCH))
        found += page
    return found


def gates_page(store: Store, names: Iterable[str], after: str, limit: int) -> tuple[list[GateUse], str | None]:
    """Gates in use with one of these names or below one, by name, and the next `after`; None at the end."""
    found: dict[str, GateUse] = {}
    for name in set(names):
        if name > after:
            found |= {each.name: each for each in store.gates("", 1, name) if each.name == name}
        found |= {each.name: each for each in store.gates(after, limit, f"{name}/")}
    known = [found[name] for name in sorted(found)]
    return (known, None) if len(known) < limit else (known[:limit], known[limit - 1].name)


def position_of(store: Store, job: Job) -> QueuePosition:
    """The gate or line that holds a job, or how many jobs are before a ready one."""
    if job.state not in (State.WAITING, State.READY):
        return _NO_POSITION
    hold = store.hold(job.id)
    head = None if hold is None or hold.head is None else store.get([hold.head])[0]
    return QueuePosition(hold, head, store.ahead(job.id) if job.state is State.READY and hold is None else None)


def reasons(
    job: Job,
    backlog: Backlog,
    now: Instant,
    position: QueuePosition = _NO_POSITION,
    workers: Sequence[Presence] = (),
    *,
    others: bool = True,
) -> list[str]:
    """The sentences for a known job, queue and time. `others`: also mention other jobs and workers."""
    lines = [f"job {job.id} ({job.kind}) of queue {job.queue} is {job.state.value}"]
    if job.state in (State.WAITING, State.READY):
        lines += _unhandled(job, workers, others)
    if backlog.paused_until is not None and not job.state.terminal:
        lines.append(f"the queue is paused until {to_datetime(backlog.paused_until).isoformat()}")
    match job.state:
        case State.WAITING:
            lines += _waiting(job, position, now, others)
        case State.READY:
            lines += _ready(backlog, position, now, others)
            if others and position.hold is None and not any(job.queue in worker.queues for worker in workers):
                lines.append(f"no worker of queue {job.queue} has announced itself: start one, forebay worker app:fb")
        case State.RUNNING:
            left = ((job.lease_until or 0) - now) / _SECOND
            holder = job.owner or "a worker"
            lines.append(f"{holder} holds it, delivery {job.delivery}; the lease ends in {left:.1f} s unless renewed")
        case State.DEAD:
            lines.append(f"it used {job.attempt} of {job.max_attempts} attempts; redrive it to give them back")
        case State.DONE | State.CANCELLED:
            lines.append("it has ended")
    return lines + [f"attempt {error.attempt} failed: {error.kind}: {error.message}" for error in job.errors]


def _unhandled(job: Job, workers: Sequence[Presence], others: bool) -> list[str]:
    """The reason when workers serve its queue and none has a handler for its kind."""
    serving = [worker for worker in workers if job.queue in worker.queues]
    if not serving or any(worker.handles(job.queue, job.kind) for worker in serving):
        return []
    known = f": {many(len(serving), 'worker')} of queue {job.queue} and no handler for it" if others else ""
    returned = job.delivery - job.attempt
    back = f"; it came back {many(returned, 'time')}, uncharged" if returned > 0 else ""
    return [f"no worker handles kind {job.kind}{known}; start one that does, and it runs{back}"]


def _waiting(job: Job, position: QueuePosition, now: Instant, others: bool) -> list[str]:
    if job.due_at > now:
        why = "its retry" if job.errors else "it"
        return [f"{why} is due in {(job.due_at - now) / _SECOND:.1f} s, at {to_datetime(job.due_at).isoformat()}"]
    hold = position.hold
    if hold is None:
        return ["it is due and becomes ready with the next claim or promotion"]
    lines = [f"it is due and waits in the line {hold.gate}: in order, one at a time"]
    if others and hold.head is not None:
        lines.append(_head(hold.head, position.head))
    if others:
        lines.append(f"{_jobs(hold.before)} of the line between its head and this one")
    return lines


def _ready(backlog: Backlog, position: QueuePosition, now: Instant, others: bool) -> list[str]:
    hold = position.hold
    if hold is not None:
        lines = [f"the gate {hold.gate} holds it: {_state_of(hold, now)}"]
        return [*lines, f"{_jobs(hold.before)} of its lane before it"] if others else lines
    beside = f"; ready in the queue: {many(backlog.ready, 'job')}" if others else ""
    if others and position.ahead is not None:
        beside += f", {_jobs(position.ahead)} of its lane before it"
    return [f"it may be claimed at any time{beside}"]


def _state_of(hold: Hold, now: Instant) -> str:
    """How many slots are used, or when the gate opens."""
    if hold.opens_at is not None:
        wait = max(0, hold.opens_at - now) / _SECOND
        return f"the rate admits the next job in {wait:.1f} s, at {to_datetime(hold.opens_at).isoformat()}"
    if hold.slots == 0:
        return "it is closed until it is set or released"
    return f"running jobs use {hold.used} of its {many(hold.slots, 'slot')}"


def _head(job_id: int, head: Job | None) -> str:
    if head is not None and head.state is State.DEAD:
        return f"job {job_id} is first in line and dead: it blocks the line until it is redriven or purged"
    return f"job {job_id} is first in line{'' if head is None else f', {head.state.value}'}"


def _jobs(number: int) -> str:
    return f"{number} or more jobs" if number >= MAX_AHEAD else many(number, "job")
