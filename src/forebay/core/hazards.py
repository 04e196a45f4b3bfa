"""Hazards: ways in which a queue can fail because of its own spec, and what to monitor. `forebay design` lists them.

A contradiction is refused; a hazard is a legitimate choice whose cost should be monitored. Each is caused by one value,
so a spec of defaults has few. `watch` names a field of `Backlog` or `Standing`, a metric, or an error.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from forebay.core.policy import (
    AtMost,
    Block,
    Bounded,
    InOrder,
    Priority,
    Rate,
    Retained,
    Shed,
    Term,
    Unbounded,
    Until,
    terms_of,
)
from forebay.core.spec import QueueSpec


class Hazard(Struct, frozen=True):
    """`holds(spec)`: the spec can fail in this way; `watch` is what would show it."""

    holds: Callable[[QueueSpec], bool]
    fails_by: str
    watch: str


def hazards(spec: QueueSpec) -> list[Hazard]:
    """All hazards of the spec."""
    return [each for each in HAZARDS if each.holds(spec)]


def _has(spec: QueueSpec, kind: type[Term]) -> bool:
    return any(isinstance(term, kind) for term in terms_of(spec.eligibility))


def _full(spec: QueueSpec) -> object:
    return spec.capacity.when_full if isinstance(spec.capacity, Bounded) else None


def _shares(spec: QueueSpec) -> bool:
    return any(isinstance(term, AtMost | Rate) and term.shared for term in terms_of(spec.eligibility))


def _dead_head(spec: QueueSpec, what: str) -> bool:
    return any(isinstance(term, InOrder) and term.dead_head == what for term in terms_of(spec.eligibility))


def _releases_by_rank(spec: QueueSpec) -> bool:
    """Slots of a condition are shared fairly; a release admits the first jobs, unless each class has its own gate."""
    conditions = [term for term in terms_of(spec.eligibility) if isinstance(term, Until)]
    return spec.share is not None and any(condition.per != spec.share.by for condition in conditions)


def _lagging(spec: QueueSpec) -> str | None:
    return spec.retention.lagging if isinstance(spec.retention, Retained) and spec.retention.window else None


HAZARDS: Final = (
    Hazard(
        lambda spec: isinstance(spec.selection, Priority),
        "strict priority: while urgent jobs arrive, those of low priority starve",
        "oldest_age; Aging bounds their wait",
    ),
    Hazard(
        _releases_by_rank,
        "a release admits the first jobs of any class: a flood is released first",
        "held; slots are shared fairly, and a condition per class is released class by class",
    ),
    Hazard(
        lambda spec: spec.merge is not None and spec.merge.quiet is not None and spec.merge.at_most is None,
        "a subject that never pauses is never quiet, and its job never runs",
        "forebay_jobs_merged_total without runs; at_most bounds the wait",
    ),
    Hazard(
        lambda spec: spec.unique is not None,
        "a key arrives again with other work while it is taken: the enqueue is refused",
        "KeyConflict, forebay_key_conflicts_total",
    ),
    Hazard(
        lambda spec: _has(spec, Rate),
        "more arrives than may start: the backlog grows without end",
        "held, oldest_age",
    ),
    Hazard(
        _shares,
        "one queue takes all slots that it shares with others",
        "forebay_gates; a limit of its own beside the shared one",
    ),
    Hazard(
        lambda spec: _dead_head(spec, "block"),
        "a dead head blocks its line until it is redriven or purged",
        "blocked",
    ),
    Hazard(
        lambda spec: _dead_head(spec, "skip"),
        "jobs that depend on a dead head run without it",
        "dead; dead_head='block' stops the line instead",
    ),
    Hazard(
        lambda spec: _has(spec, Until),
        "the gate is never opened: jobs wait for ever",
        "held; expires_at ends it",
    ),
    Hazard(
        lambda spec: isinstance(spec.capacity, Unbounded) and (_has(spec, Rate) or _has(spec, Until)),
        "nothing bounds the jobs that are held",
        "ready; Bounded signals the producer",
    ),
    Hazard(
        lambda spec: isinstance(_full(spec), Block),
        "a handler that enqueues into its own full queue waits for itself",
        "forebay_capacity_refusals_total after the timeout",
    ),
    Hazard(
        lambda spec: isinstance(_full(spec), Shed),
        "accepted jobs are dead-lettered without a run",
        "forebay_jobs_shed_total; it can be redriven",
    ),
    Hazard(
        lambda spec: spec.routing.dead is not None and spec.routing.dead.queue is not None,
        "dead letters collect in a queue that is not monitored",
        "dead of that queue, forebay_dead_oldest_seconds; give it a rule of its own",
    ),
    Hazard(
        lambda spec: spec.routing.dead is not None and spec.routing.dead.queue is None,
        "dead letters are deleted before they are inspected",
        "dead, forebay_jobs_purged_total",
    ),
    Hazard(
        lambda spec: spec.fan_out is not None and spec.fan_out.unmatched == "refuse",
        "a kind without a route, or one full subscriber, is an error for the producer",
        "Invalid and QueueFull at the enqueue",
    ),
    Hazard(
        lambda spec: spec.fan_out is not None and spec.fan_out.unmatched == "drop",
        "a kind without a route is dropped",
        "a receipt without copies",
    ),
    Hazard(
        lambda spec: _lagging(spec) == "count",
        "a group that is slower than the window loses entries",
        "loses_at before, lost after; forebay_log_loses_in_seconds",
    ),
    Hazard(
        lambda spec: _lagging(spec) == "block",
        "the slowest active group keeps all later entries",
        "lag, forebay_log_lag_entries",
    ),
)
