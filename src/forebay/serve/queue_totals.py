"""Job counts of the queues that an actor can reach: totals, and the deepest queues one by one.

A result holds at most `MAX_BATCH` queues. For an actor who reaches every queue the store computes the totals; for one
with names and patterns, up to `NAMES_READ` names are searched, and `complete` is whether that covered all of them.
"""

from collections.abc import Sequence
from typing import Any, Final

from forebay.core.job import State
from forebay.core.limits import MAX_BATCH
from forebay.core.names import is_name
from forebay.serve.actor import Actor
from forebay.serve.security.visibility import sees_all
from forebay.store.protocol import Backlog, Store, Totals

NAMES_READ: Final = 10_000


class QueueTotals(Totals, frozen=True):
    """`complete`: none was left out."""

    complete: bool = True


def totals_for(store: Store, actor: Actor, limit: int = MAX_BATCH) -> QueueTotals:
    logs = {spec.name for spec in store.specs() if spec.is_log}
    if sees_all(actor):
        return from_store_totals(store.totals(min(MAX_BATCH, limit + len(logs))), logs, limit)
    names, more = reachable_names(store, actor, "", MAX_BATCH + len(logs))
    shown = [name for name in names if name not in logs][:MAX_BATCH]
    each = sorted(store.backlog(shown) if shown else [], key=lambda one: (-one.depth, -one.dead, one.queue))
    return QueueTotals(each[:limit], len(each), **sum_states(each), complete=more is None)


def sum_states(backlogs: Sequence[Backlog | Totals]) -> dict[str, Any]:
    """The jobs of these queues by state."""
    return {state: sum(getattr(each, state) for each in backlogs) for state in map(str, State)}


def from_store_totals(totals: Totals, logs: set[str], limit: int = MAX_BATCH) -> QueueTotals:
    """The totals of every queue, without logs."""
    deepest = [one for one in totals.deepest if one.queue not in logs][:limit]
    return QueueTotals(deepest, max(0, totals.queues - len(logs)), **sum_states([totals]))


def reachable_names(store: Store, actor: Actor, after: str, limit: int) -> tuple[list[str], str | None]:
    """Names of queues and logs that the actor reaches, sorted, and the next `after`; None at the end."""
    names, prefix, read = list[str](), _common_prefix(actor), 0
    while read < NAMES_READ:
        page = store.queues(after, MAX_BATCH, prefix)
        for name in page:
            if actor.reaches(name):
                if len(names) == limit:
                    return names, names[-1]
                names.append(name)
        if len(page) < MAX_BATCH:
            return names, None
        after, read = page[-1], read + len(page)
    return names, after


def exists(store: Store, name: str) -> bool:
    """Whether a queue or a log of this name is configured, paused, or holds jobs."""
    return is_name(name) and store.queues("", 1, name) == [name]


def _common_prefix(actor: Actor) -> str:
    """The prefix of every name that the actor reaches."""
    prefixes = [pattern.split("*", 1)[0].split("?", 1)[0].split("[", 1)[0] for pattern in actor.queues]
    first, last = min(prefixes), max(prefixes)
    common = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:common]
