"""One queue: its five axes, its gates as the store counts them, and its shares.

Shares are told as far as a bounded look at the open jobs goes, the oldest first. Numbers of a look that ended early are
of what was seen. A gate that queues share has the numbers of all of them; only who sees them all is told of it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.policy import Bounded, Fair
from forebay.core.spec import QueueSpec
from forebay.core.words import SECOND
from forebay.explain import gates_of
from forebay.serve.dashboard.views.finding import some
from forebay.store.protocol import Backlog, GateUse, Query, Store

LOOK_SECONDS: Final = 0.03
GATES_MOST: Final = 25
GATES_LOOKED_AT: Final = 200
CLASSES_MOST: Final = 25
STARVED_AFTER: Final = 60 * SECOND


class Axis(Struct, frozen=True):
    """One of the five: what it is called, the question it answers, where the queue stands, and what it could be."""

    name: str
    question: str
    answer: str
    place: int
    points: tuple[str, ...]


class ClassRow(Struct, frozen=True):
    """A tenant or kind: its weight, its share of the turns, and what it has. `oldest`: its longest wait so far."""

    name: str
    weight: int
    share: float
    ready: int
    running: int
    waiting: int
    oldest: int
    starved: bool


class QueueView(Struct, frozen=True):
    spec: QueueSpec
    declared: bool
    backlog: Backlog
    axes: tuple[Axis, ...]
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
) -> QueueView:
    """`seen`: whether a gate of this name is to be shown."""
    jobs, early = _open_jobs(store, spec.name, backlog)
    by = spec.share.by if spec.share else "tenant"
    classes = _classes(spec.share, by, jobs, store.now())
    uses = gates_of(store, spec, GATES_LOOKED_AT)
    gates = sorted((use for use in uses if seen(use.name)), key=lambda use: (use.used < use.slots, -use.used, use.name))
    return QueueView(
        spec,
        declared,
        backlog,
        axes_of(spec),
        gates[:GATES_MOST],
        classes[:CLASSES_MOST],
        by,
        len(jobs),
        early,
        spec.capacity.limit if isinstance(spec.capacity, Bounded) else None,
        len(gates) > GATES_MOST,
        max(0, len(classes) - CLASSES_MOST),
    )


def axes_of(spec: QueueSpec) -> tuple[Axis, ...]:
    """The vector as five scales, each with the queue's place on it."""
    said = list(spec.axes().values())
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
        Axis("retention", "What becomes of a job that is done?", said[0], kept, ("removed", "kept a while", "a log")),
        Axis("selection", "Who is next?", said[1], order, ("fifo", "priority", "aging", "deadline")),
        Axis(
            "eligibility",
            "When may a job be taken?",
            said[2],
            gated,
            ("at once", "at most n", "at a rate", "in order", "on condition", "several"),
        ),
        Axis(
            "position",
            "Where does a failure go?",
            said[3],
            edge,
            ("fixed rest", "exponential", "full jitter", "a broker: nowhere"),
        ),
        Axis("capacity", "What when there is too much?", said[4], full, ("unbounded", "reject", "block", "shed")),
    )


def _open_jobs(store: Store, queue: str, backlog: Backlog) -> tuple[list[Job], bool]:
    """Jobs without an end, of each state the smallest ids first, and whether there was no time for all of them."""
    counts = ((State.RUNNING, backlog.running), (State.READY, backlog.ready), (State.WAITING, backlog.waiting))
    looks = [some(store, Query(queue=queue, state=state), count, LOOK_SECONDS) for state, count in counts if count]
    return [job for jobs, _ in looks for job in jobs], any(early for _, early in looks)


def _classes(share: Fair | None, by: str, jobs: list[Job], now: Instant) -> list[ClassRow]:
    """A class is starved when it has had a ready job for a minute and more, and none of its own runs meanwhile."""
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
