"""One queue: its five axes, its gates as the store counts them, and its shares.

Shares are computed from a bounded scan of the open jobs, oldest first; when the scan ends early, they cover only what
it read. A shared gate has the counts of all its queues, so it is shown only to actors who see all of them.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from forebay.core.humanize import SECOND
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.policy import Bounded, Fair
from forebay.core.spec import QueueSpec
from forebay.explain import gates_of
from forebay.serve.dashboard.views.search import find_some
from forebay.store.protocol import Backlog, GateUse, Query, Store

SCAN_SECONDS: Final = 0.03
MAX_GATES: Final = 25
GATES_READ: Final = 200
MAX_CLASSES: Final = 25
STARVED_AFTER: Final = 60 * SECOND


class AxisRow(Struct, frozen=True):
    """One of the five axes: its name, its question, the queue's answer and point, and the possible points."""

    name: str
    question: str
    answer: str
    place: int
    points: tuple[str, ...]


class ClassRow(Struct, frozen=True):
    """A tenant or kind: its weight, its share, and its jobs. `oldest`: the longest wait of its ready jobs."""

    name: str
    weight: int
    share: float
    ready: int
    running: int
    waiting: int
    oldest: int
    starved: bool


class QueueSummary(Struct, frozen=True):
    spec: QueueSpec
    declared: bool
    backlog: Backlog
    axes: tuple[AxisRow, ...]
    gates: list[GateUse]
    classes: list[ClassRow]
    by: str
    seen: int
    early: bool
    capacity: int | None
    more_gates: bool
    more_classes: int


def queue_view(
    store: Store, spec: QueueSpec, declared: bool, backlog: Backlog, seen: Callable[[str], bool] = lambda _: True
) -> QueueSummary:
    """`seen`: whether to show the gate of this name."""
    jobs, early = _open_jobs(store, spec.name, backlog)
    by = spec.share.by if spec.share else "tenant"
    classes = _classes(spec.share, by, jobs, store.now())
    uses = gates_of(store, spec, GATES_READ)
    gates = sorted((use for use in uses if seen(use.name)), key=lambda use: (use.used < use.slots, -use.used, use.name))
    return QueueSummary(
        spec,
        declared,
        backlog,
        axes_of(spec),
        gates[:MAX_GATES],
        classes[:MAX_CLASSES],
        by,
        len(jobs),
        early,
        spec.capacity.limit if isinstance(spec.capacity, Bounded) else None,
        len(gates) > MAX_GATES,
        max(0, len(classes) - MAX_CLASSES),
    )


def axes_of(spec: QueueSpec) -> tuple[AxisRow, ...]:
    """The axes, each with the queue's point on it."""
    texts = list(spec.axes().values())
    kept = {"RemoveOnAck": 0, "KeepFor": 1, "Retained": 2}[type(spec.retention).__name__]
    order = {"Fifo": 0, "Priority": 1, "Aging": 2, "Deadline": 3}[type(spec.selection).__name__]
    gated = {"Immediate": 0, "AtMost": 1, "Rate": 2, "InOrder": 3, "Until": 4, "All": 5}[
        type(spec.eligibility).__name__
    ]
    backoff = {"Fixed": 0, "Exponential": 1, "FullJitter": 2}[type(spec.routing.backoff).__name__]
    edge = 3 if spec.is_broker else backoff
    full = {"Unbounded": 0, "Reject": 1, "Block": 2, "Shed": 3}[
        type(spec.capacity.when_full).__name__ if isinstance(spec.capacity, Bounded) else "Unbounded"
    ]
    return (
        AxisRow(
            "retention", "What becomes of a job that is done?", texts[0], kept, ("removed", "kept a while", "a log")
        ),
        AxisRow("selection", "Which job is next?", texts[1], order, ("fifo", "priority", "aging", "deadline")),
        AxisRow(
            "eligibility",
            "When may a job be claimed?",
            texts[2],
            gated,
            ("at once", "at most n", "at a rate", "in order", "on condition", "several"),
        ),
        AxisRow(
            "position",
            "Where does a failure go?",
            texts[3],
            edge,
            ("fixed rest", "exponential", "full jitter", "a broker: nowhere"),
        ),
        AxisRow("capacity", "What when there is too much?", texts[4], full, ("unbounded", "reject", "block", "shed")),
    )


def _open_jobs(store: Store, queue: str, backlog: Backlog) -> tuple[list[Job], bool]:
    """Jobs that have not ended, of each state the smallest ids first, and whether the time was up before the end."""
    counts = ((State.RUNNING, backlog.running), (State.READY, backlog.ready), (State.WAITING, backlog.waiting))
    samples = [
        find_some(store, Query(queue=queue, state=state), count, SCAN_SECONDS) for state, count in counts if count
    ]
    return [job for jobs, _ in samples for job in jobs], any(early for _, early in samples)


def _classes(share: Fair | None, by: str, jobs: list[Job], now: Instant) -> list[ClassRow]:
    """A class is starved when it has had a ready job for more than a minute and none of its jobs is running."""
    names = {job.id: (job.kind if by == "kind" else job.tenant) or "" for job in jobs}
    counts = Counter((names[job.id], job.state) for job in jobs)
    oldest: dict[str, int] = {}
    for job in jobs:
        if job.state is State.READY:
            oldest[names[job.id]] = max(oldest.get(names[job.id], 0), now - job.due_at)
    weights = {name: (share.weights.get(name, share.default) if share else 1) for name in set(names.values())}
    total = sum(weights.values()) or 1
    others = any(job.state is State.RUNNING for job in jobs)
    rows = [
        ClassRow(
            name,
            weight,
            weight / total,
            counts[name, State.READY],
            counts[name, State.RUNNING],
            counts[name, State.WAITING],
            oldest.get(name, 0),
            others and not counts[name, State.RUNNING] and oldest.get(name, 0) > STARVED_AFTER,
        )
        for name, weight in weights.items()
    ]
    return sorted(rows, key=lambda row: (-row.starved, -row.oldest, row.name))
