"""The queues that an actor reaches, in figures: all of them together, and the deepest ones by themselves.

However many names there are, an answer holds at most `BATCH_MOST` queues. For an actor who reaches every queue the
store adds up; for one with names and patterns the queues that fit are searched for among `NAMES_READ` names at most,
and `whole` says whether that was all of them.
"""

from typing import Final

from msgspec import Struct

from forebay.core.limits import BATCH_MOST
from forebay.core.names import is_name
from forebay.serve.actor import Actor
from forebay.serve.security.reach import sees_all
from forebay.store.protocol import Backlog, Store, Totals

NAMES_READ: Final = 10_000


class Figures(Struct, frozen=True):
    """`queues`: how many there are. `deepest`: the figures of those that hold most; `whole`: none was passed over."""

    deepest: list[Backlog]
    queues: int
    waiting: int
    ready: int
    running: int
    done: int
    dead: int
    cancelled: int
    whole: bool = True


def figures_of(store: Store, actor: Actor, limit: int = BATCH_MOST) -> Figures:
    logs = {spec.name for spec in store.specs() if spec.is_log}
    if sees_all(actor):
        return of_totals(store.totals(min(BATCH_MOST, limit + len(logs))), logs, limit)
    names, more = reached(store, actor, "", BATCH_MOST + len(logs))
    shown = [name for name in names if name not in logs][:BATCH_MOST]
    each = sorted(store.backlog(shown) if shown else [], key=lambda one: (-one.depth, -one.dead, one.queue))
    return Figures(
        each[:limit],
        len(each),
        sum(one.waiting for one in each),
        sum(one.ready for one in each),
        sum(one.running for one in each),
        sum(one.done for one in each),
        sum(one.dead for one in each),
        sum(one.cancelled for one in each),
        more is None,
    )


def of_totals(totals: Totals, logs: set[str], limit: int = BATCH_MOST) -> Figures:
    """Of every queue; logs are none."""
    return Figures(
        [one for one in totals.deepest if one.queue not in logs][:limit],
        max(0, totals.queues - len(logs)),
        totals.waiting,
        totals.ready,
        totals.running,
        totals.done,
        totals.dead,
        totals.cancelled,
    )


def reached(store: Store, actor: Actor, after: str, limit: int) -> tuple[list[str], str | None]:
    """Names of queues and logs that the actor reaches, by name, and the one to go on after; None: that was all."""
    names, prefix, read = list[str](), _begin(actor), 0
    while read < NAMES_READ:
        page = store.queues(after, BATCH_MOST, prefix)
        for name in page:
            if actor.reaches(name):
                if len(names) == limit:
                    return names, names[-1]
                names.append(name)
        if len(page) < BATCH_MOST:
            return names, None
        after, read = page[-1], read + len(page)
    return names, after


def exists(store: Store, name: str) -> bool:
    """Whether a queue or a log of this name is configured, paused, or holds jobs."""
    return is_name(name) and store.queues("", 1, name) == [name]


def _begin(actor: Actor) -> str:
    """How every name that the actor reaches begins."""
    begins = [pattern.split("*", 1)[0].split("?", 1)[0].split("[", 1)[0] for pattern in actor.queues]
    first, last = min(begins), max(begins)
    common = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:common]
