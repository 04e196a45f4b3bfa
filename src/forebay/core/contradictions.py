"""Contradictory combinations of policies in one spec, each with the reason and a remedy.

`core.fanout.check_edges` checks references between queues.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from forebay.core.job import State
from forebay.core.policy import (
    Bounded,
    Fifo,
    Immediate,
    InOrder,
    KeepFor,
    RemoveOnAck,
    Retained,
    Routing,
    Shed,
    Unbounded,
    terms_of,
)

if TYPE_CHECKING:
    from forebay.core.spec import QueueSpec


class Contradiction(Struct, frozen=True):
    """`holds(spec)`: the spec has this contradiction."""

    holds: Callable[["QueueSpec"], bool]
    reason: str
    way_out: str


def contradiction(spec: "QueueSpec") -> Contradiction | None:
    """The first contradiction of the spec."""
    return next((each for each in CONTRADICTIONS if each.holds(spec)), None)


def _holds_jobs(spec: "QueueSpec") -> bool:
    """Whether the spec sets anything that only applies to a queue of jobs."""
    of_jobs = (spec.selection, spec.share, spec.merge, spec.unique, spec.eligibility, spec.routing, spec.capacity)
    return of_jobs != (Fifo(), None, None, None, Immediate(), Routing(), Unbounded())


def _lines(spec: "QueueSpec") -> list[InOrder]:
    return [term for term in terms_of(spec.eligibility) if isinstance(term, InOrder)]


def _blocks(spec: "QueueSpec") -> bool:
    return any(line.dead_head == "block" for line in _lines(spec))


def _sheds(spec: "QueueSpec") -> Shed | None:
    full = spec.capacity.when_full if isinstance(spec.capacity, Bounded) else None
    return full if isinstance(full, Shed) else None


def _forgets_its_keys(spec: "QueueSpec") -> bool:
    ended = spec.unique is not None and {State.DONE, State.CANCELLED} & set(spec.unique.states)
    return bool(ended) and not isinstance(spec.retention, KeepFor)


def _leads_to_itself(spec: "QueueSpec") -> bool:
    targets = [route.queue for route in spec.fan_out.routes] if spec.fan_out else []
    return spec.name in targets or (spec.routing.dead is not None and spec.routing.dead.queue == spec.name)


def _drops_dead_letters(spec: "QueueSpec") -> bool:
    dead = spec.routing.dead
    return dead is not None and (dead.keep is not None or dead.limit is not None)


CONTRADICTIONS: Final = (
    Contradiction(
        lambda spec: spec.is_log and (_holds_jobs(spec) or spec.is_broker),
        "a retained log has no selection, gates, routing or capacity",
        "use a log without them: each group of readers keeps its own position",
    ),
    Contradiction(
        lambda spec: (
            isinstance(spec.retention, Retained) and not spec.retention.window and spec.retention.lagging == "block"
        ),
        "a log without a window never trims, so a lagging group cannot block trimming",
        "give it a window, or leave lagging out",
    ),
    Contradiction(
        lambda spec: spec.is_broker and (_holds_jobs(spec) or not isinstance(spec.retention, RemoveOnAck)),
        "a broker holds no jobs that could be kept, selected, gated, retried or counted",
        "set it on the queues of its routes",
    ),
    Contradiction(_leads_to_itself, "a route or its dead-letter queue names the queue itself", "name another queue"),
    Contradiction(
        lambda spec: spec.merge is not None and bool(_lines(spec)),
        "LatestWins replaces work that InOrder promises to run",
        "choose one of the two",
    ),
    Contradiction(
        lambda spec: _blocks(spec) and _drops_dead_letters(spec),
        "a dead head blocks its line until it is redriven or purged, but DeadLetters would delete it before",
        'use dead_head="skip", or keep dead letters until they are purged',
    ),
    Contradiction(
        lambda spec: _blocks(spec) and _sheds(spec) is not None,
        "Shed dead-letters jobs of a line, and each of them would block it",
        'use dead_head="skip", or Reject()',
    ),
    Contradiction(
        lambda spec: _sheds(spec) == Shed("lowest") and isinstance(spec.selection, Fifo),
        "in a Fifo queue the new job always has the lowest rank, so nothing would ever be shed",
        'use Reject(), Shed("oldest") or another selection',
    ),
    Contradiction(
        _forgets_its_keys,
        "While names states that RemoveOnAck does not keep: done and cancelled jobs are deleted at once",
        "keep them with KeepFor, or name other states",
    ),
)
