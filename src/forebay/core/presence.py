"""The record by which a worker process announces itself, so that operators see it even while it holds no job.

A worker announces itself every few seconds; a store keeps the record until its time is up or the worker withdraws it.
A record is a hint for operators and alerts: only leases decide which worker may run a job.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, checked_instant
from forebay.core.names import check_name, check_text

MAX_KINDS: Final = 1_000
"""Kinds in one record. A worker that handles more announces none, which means that they are not known."""

MAX_QUEUES: Final = 1_000
MAX_UNHANDLED: Final = 100
_MAX_COUNT: Final = 2**31 - 1


class Presence(Struct, frozen=True):
    """One worker process.

    owner       the name that its leases carry
    queues      the queues that it claims from
    kinds       the kinds that it has handlers for; empty: not known
    running     jobs that it ran when it announced itself
    unhandled   queue and kind of jobs that it returned recently, because it has no handler for the kind
    since       when it was first announced, seen_at: when last; both are the store's
    """

    owner: str
    host: str
    pid: int
    queues: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    concurrency: int = 1
    running: int = 0
    since: Instant = 0
    seen_at: Instant = 0
    unhandled: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "owner", check_text("owner", self.owner))
        force_setattr(self, "host", check_text("host", self.host))
        force_setattr(self, "queues", _checked_names("queue", self.queues, MAX_QUEUES))
        force_setattr(self, "kinds", _checked_names("kind", self.kinds, MAX_KINDS))
        for field, count in (("pid", self.pid), ("concurrency", self.concurrency), ("running", self.running)):
            if type(count) is not int or not 0 <= count <= _MAX_COUNT:
                raise Invalid(field, f"{count!r} is not an integer in 0 … {_MAX_COUNT}", "give a count")
        if not isinstance(self.unhandled, tuple | list) or len(self.unhandled) > MAX_UNHANDLED:
            raise Invalid("unhandled", f"it is not a list of at most {MAX_UNHANDLED} pairs", "announce fewer")
        pairs = tuple((check_name("queue", queue), check_name("kind", kind)) for queue, kind in self.unhandled)
        force_setattr(self, "unhandled", pairs)
        checked_instant("since", self.since)
        checked_instant("seen_at", self.seen_at)

    def handles(self, queue: str, kind: str) -> bool:
        """Whether it claims from the queue and may run the kind; a worker whose kinds are not known may run any."""
        if queue not in self.queues or (queue, kind) in self.unhandled:
            return False
        return not self.kinds or kind in self.kinds


def unhandled_kinds(workers: Iterable[Presence]) -> list[tuple[str, str]]:
    """Queue and kind of jobs that some of these workers returned, and that none of them can run."""
    workers = list(workers)
    reported = {pair for worker in workers for pair in worker.unhandled}
    return sorted(pair for pair in reported if not any(worker.handles(*pair) for worker in workers))


def handled_kinds(workers: Iterable[Presence], queue: str) -> set[str] | None:
    """The kinds that the workers of a queue have handlers for; None: it has no worker, or one's are not known."""
    serving = [worker.kinds for worker in workers if queue in worker.queues]
    return {kind for kinds in serving for kind in kinds} if serving and all(serving) else None


def _checked_names(field: str, names: tuple[str, ...], limit: int) -> tuple[str, ...]:
    if not isinstance(names, tuple | list) or len(names) > limit:
        raise Invalid(f"{field}s", f"they are not a list of at most {limit} names", "announce fewer")
    return tuple(check_name(field, name) for name in names)
