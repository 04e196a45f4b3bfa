"""How a queue can fail by what its own spec says, and where that shows: what `forebay design` tells to watch.

A contradiction is refused; a hazard is a choice with a price, and somebody should look at the price. Each is named by
the value that brings it, so a spec of plain values has few. What is to be watched is a field of `Backlog` or of
`Standing`, a metric, or what an answer says.
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
    """`holds(spec)`: the spec can fail in this way; `watch` is where it would be seen."""

    holds: Callable[[QueueSpec], bool]
    fails_by: str
    watch: str


def hazards(spec: QueueSpec) -> list[Hazard]:
    """All that the spec has."""
    return [each for each in HAZARDS if each.holds(spec)]


def _has(spec: QueueSpec, kind: type[Term]) -> bool:
    return any(isinstance(term, kind) for term in terms_of(spec.eligibility))


def _full(spec: QueueSpec) -> object:
    return spec.capacity.when_full if isinstance(spec.capacity, Bounded) else None


def _shares(spec: QueueSpec) -> bool:
    return any(isinstance(term, AtMost | Rate) and term.shared for term in terms_of(spec.eligibility))


def _dead_head(spec: QueueSpec, what: str) -> bool:
    return any(isinstance(term, InOrder) and term.dead_head == what for term in terms_of(spec.eligibility))


def _lets_in_by_rank(spec: QueueSpec) -> bool:
    """Of a rate somebody is let in before classes take turns; of other gates, unless each class has its own."""
    gates = [term for term in terms_of(spec.eligibility) if isinstance(term, AtMost | Rate | Until)]
    return spec.share is not None and any(isinstance(gate, Rate) or gate.per != spec.share.by for gate in gates)


def _lagging(spec: QueueSpec) -> str | None:
    return spec.retention.lagging if isinstance(spec.retention, Retained) and spec.retention.window else None


HAZARDS: Final = (
    Hazard(
        lambda spec: isinstance(spec.selection, Priority),
        "strict priority: while something urgent comes, the low ones starve",
        "oldest_age; Aging bounds their wait",
    ),
    Hazard(
        _lets_in_by_rank,
        "who passes a gate is chosen by rank, so a flood takes the starts of a rate, and the slots of a gate that "
        "all classes share; they take turns behind it",
        "oldest_parked; a cap per class, or a queue for the flood",
    ),
    Hazard(
        lambda spec: spec.merge is not None and spec.merge.quiet is not None and spec.merge.at_most is None,
        "who never pauses is never quiet, and its job never runs",
        "forebay_jobs_merged_total without runs; at_most bounds the wait",
    ),
    Hazard(
        lambda spec: spec.unique is not None,
        "the same key comes again with other work while it is taken: that is refused",
        "KeyConflict, forebay_key_conflicts_total",
    ),
    Hazard(
        lambda spec: _has(spec, Rate),
        "more comes than may start: what is left is parked, and only grows older",
        "oldest_parked, forebay_gates",
    ),
    Hazard(
        _shares,
        "one queue takes all that it shares with others",
        "forebay_gates; a limit of its own beside the shared one",
    ),
    Hazard(
        lambda spec: _dead_head(spec, "block"),
        "a dead head holds its line until somebody redrives or purges it",
        "blocked",
    ),
    Hazard(
        lambda spec: _dead_head(spec, "skip"),
        "what builds on a dead head runs without it",
        "dead; dead_head='block' stops the line instead",
    ),
    Hazard(
        lambda spec: _has(spec, Until),
        "nobody opens the gate: they wait for ever",
        "oldest_parked; expires_at ends it",
    ),
    Hazard(
        lambda spec: isinstance(spec.capacity, Unbounded) and (_has(spec, Rate) or _has(spec, Until)),
        "nothing bounds what is held back",
        "waiting; Bounded tells the producer",
    ),
    Hazard(
        lambda spec: isinstance(_full(spec), Block),
        "a handler that enqueues into its own full queue waits for itself",
        "forebay_capacity_refusals_total after the timeout",
    ),
    Hazard(
        lambda spec: isinstance(_full(spec), Shed),
        "work that was accepted dies unrun",
        "forebay_jobs_shed_total; it can be redriven",
    ),
    Hazard(
        lambda spec: spec.routing.dead is not None and spec.routing.dead.queue is not None,
        "they lie where nobody looks",
        "dead of that queue, forebay_dead_oldest_seconds; give it a rule of its own",
    ),
    Hazard(
        lambda spec: spec.routing.dead is not None and spec.routing.dead.queue is None,
        "dead letters are forgotten before somebody has looked",
        "dead, forebay_jobs_purged_total",
    ),
    Hazard(
        lambda spec: spec.fan_out is not None and spec.fan_out.unmatched == "refuse",
        "a kind that no route knows, or one subscriber that is full, is an error for the producer",
        "Invalid and QueueFull at the enqueue",
    ),
    Hazard(
        lambda spec: spec.fan_out is not None and spec.fan_out.unmatched == "drop",
        "a kind that no route knows is dropped",
        "a receipt without copies",
    ),
    Hazard(
        lambda spec: _lagging(spec) == "count",
        "a group that is slower than the window loses entries",
        "loses_at before, lost after; forebay_log_loses_in_seconds",
    ),
    Hazard(
        lambda spec: _lagging(spec) == "block",
        "the slowest group that still reads keeps everything behind it",
        "lag, forebay_log_lag_entries",
    ),
)
