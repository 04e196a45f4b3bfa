"""Builds the ledger `Record` of one call, job by job.

A store that moves rows one by one adds each to its builder; jobs with consecutive ids and the same change cost one
comparison and no object. Neighbours that differ only in their kind share a range as well: its kind is that of the
first, and the traits hold the others. A call without jobs and without a verb of its own writes no record.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Protocol

from msgspec.structs import replace

from forebay.core.entries import Entry
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.ledger import Change, JobRange, Record, Trait
from forebay.core.outcome import Failure

MAINTAIN: Final = "maintain"
"""The verb of a record that only has jobs that fell due: expired jobs, and finished jobs whose retention ended."""


_TURN: Final = attrgetter("queue", "kind", "delivery", "attempt", "enqueued_at", "due_at", "claimed_at")
_LEASE: Final = attrgetter("queue", "delivery", "attempt", "enqueued_at", "due_at", "claimed_at")
_BIRTH: Final = attrgetter("queue", "max_attempts", "due_at")
_KIND: Final = attrgetter("kind")
_OWN: Final = attrgetter("kind", "tenant", "subject", "key", "priority")
_PLAIN: Final = (None, None, None, 0)


class LeasedJob(Protocol):
    """A job under lease, as a lease or a row has it."""

    @property
    def id(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def delivery(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def enqueued_at(self) -> Instant: ...
    @property
    def due_at(self) -> Instant: ...
    @property
    def claimed_at(self) -> Instant | None: ...


class RecordBuilder:
    """The record of one call, at this instant."""

    __slots__ = ("_at", "_change", "_facts", "_first", "_n", "_name", "_owner", "_ranges", "_tick", "_traits", "_verb")

    def __init__(self, at: Instant) -> None:
        self._at = at
        self._verb = MAINTAIN
        self._owner: str | None = None
        self._name: str | None = None
        self._tick: Instant | None = None
        self._ranges: list[JobRange] = []
        self._change: Change | None = None
        self._first = self._n = 0
        self._facts: tuple[Any, ...] = ()
        self._traits: list[Trait | None] | None = None

    def set_verb(
        self, verb: str, *, owner: str | None = None, name: str | None = None, tick: Instant | None = None
    ) -> None:
        """Name the call. Without it the record is that of maintenance."""
        self._verb, self._owner, self._name, self._tick = verb, owner, name, tick

    def job(self, change: Change, job_id: int, *facts: Any, trait: Trait | None = None) -> None:
        """`facts` are the fields of a `JobRange` from `queue` on, without its traits; those left out are 0.

        The kind is among `facts`; `traits` must not have one.
        """
        self._take(change, job_id, 1, facts, None if trait is None else [trait])

    def jobs(self, change: Change, ids: list[int], *facts: Any, traits: Sequence[Trait | None] | None = None) -> None:
        """Alike jobs in any order; equivalent to `job` for each of them, but cheaper."""
        first, n = ids[0], len(ids)
        if n == 1 or (ids[-1] - first + 1 == n and ids == list(range(first, first + n))):
            self._take(change, first, n, facts, traits)
        else:
            for place, job_id in enumerate(ids):
                self._take(change, job_id, 1, facts, None if traits is None else [traits[place]])

    def held(self, change: Change, job: LeasedJob, until: Instant, error: Failure | None = None) -> None:
        """A running job, and why it failed."""
        queue, kind, delivery, attempt, *instants = _TURN(job)
        trait_or_none = None if error is None else Trait(error_kind=error.kind, error=error.message)
        self.job(change, job.id, queue, kind, delivery, attempt, 0, *instants, until, trait=trait_or_none)

    def unheld(self, change: Change, job_id: int, queue: str, kind: str, until: Instant) -> None:
        """A job without a lease; `until`: when it is due, or for how long it is kept."""
        self.job(change, job_id, queue, kind, 0, 0, 0, 0, 0, 0, until)

    def leased(self, change: Change, jobs: Iterable[LeasedJob], until: Instant) -> None:
        """Running jobs with one end of their leases: as `held` for each of them."""
        for (queue, delivery, attempt, *instants), group in groupby(jobs, _LEASE):
            alike = list(group)
            self._group(change, alike, list(map(_KIND, alike)), _kinds, queue, delivery, attempt, 0, *instants, until)

    def accepted(self, entries: Iterable[Entry]) -> None:
        """New jobs."""
        for (queue, max_attempts, due_at), group in groupby(entries, _BIRTH):
            alike = list(group)
            facts = (queue, 0, 0, max_attempts, self._at, due_at)
            self._group(Change.ACCEPTED, alike, list(map(_OWN, alike)), _accepted_trait, *facts)

    def _group(
        self,
        change: Change,
        jobs: Sequence[Any],
        owns: Sequence[Any],
        trait_of: Callable[[str, Any], Trait | None],
        queue: str,
        *facts: Any,
    ) -> None:
        """Jobs with fields of their own, which most of them share."""
        kind, first = jobs[0].kind, jobs[0].id
        ids = [job.id for job in jobs]
        if ids[-1] - first + 1 == len(ids) and ids == list(range(first, first + len(ids))):
            traits = {own: trait_of(kind, own) for own in set(owns)}
            trait_or_none = None if set(traits.values()) == {None} else [traits[own] for own in owns]
            self._take(change, first, len(ids), (queue, kind, *facts), trait_or_none)
        else:
            for job, own in zip(jobs, owns, strict=True):
                trait_or_none = None if (each := trait_of(job.kind, own)) is None else [each]
                self._take(change, job.id, 1, (queue, job.kind, *facts), trait_or_none)

    def merged(self, job_id: int, draft: Draft, due_at: Instant = 0) -> None:
        """A waiting job took over this draft; `due_at`: its due time moved as well."""
        own = trait(draft.tenant, draft.subject, draft.key, draft.priority)
        facts = (0, 0, 0, 0, due_at) if due_at else ()
        self.job(Change.MERGED, job_id, draft.queue, draft.kind, *facts, trait=own)

    def ranges(self) -> list[JobRange]:
        """The ranges of jobs so far."""
        self._end()
        return self._ranges

    def record(self) -> Record | None:
        """The record, if there is anything to record."""
        ranges = self.ranges()
        if not ranges and self._verb == MAINTAIN:
            return None
        return Record(self._at, self._verb, ranges, self._owner, self._name, self._tick)

    def _take(
        self, change: Change, first: int, n: int, facts: tuple[Any, ...], traits: Sequence[Trait | None] | None
    ) -> None:
        if change is not self._change or first != self._first + self._n or not self._alike(facts):
            self._end()
            self._change, self._first, self._n, self._facts = change, first, n, facts
            self._traits = None if traits is None else list(traits)
            return
        if facts[1] != self._facts[1]:
            traits = [_rebased(self._facts[1], facts[1], trait) for trait in traits or [None] * n]
        if traits is not None and self._traits is None:
            self._traits = [None] * self._n
        if self._traits is not None:
            self._traits.extend(traits or [None] * n)
        self._n += n

    def _alike(self, facts: tuple[Any, ...]) -> bool:
        """Compare everything but the kind."""
        known = self._facts
        return facts == known or (facts[0] == known[0] and facts[2:] == known[2:])

    def _end(self) -> None:
        if self._change is not None:
            facts: Any = self._facts
            job_range = JobRange(self._change, self._first, self._n, *facts)
            self._ranges.append(job_range if self._traits is None else replace(job_range, traits=self._traits))
        self._change, self._traits = None, None


@lru_cache(maxsize=1_024)
def _of_kind(kind: str) -> Trait:
    return Trait(kind=kind)


def _rebased(kind: str, was: str, trait: Trait | None) -> Trait | None:
    """A trait of a range of the kind `was`, as a trait of a range of another kind."""
    own = was if trait is None or trait.kind is None else trait.kind
    if trait is None:
        return None if own == kind else _of_kind(own)
    moved = replace(trait, kind=None if own == kind else own)
    return None if moved == Trait() else moved


def _kinds(kind: str, own: str) -> Trait | None:
    return None if own == kind else _of_kind(own)


def _accepted_trait(kind: str, own: tuple[Any, ...]) -> Trait | None:
    if own[1:] == _PLAIN:
        return _kinds(kind, own[0])
    return Trait(None if own[0] == kind else own[0], *own[1:])


def trait(
    tenant: str | None = None, subject: str | None = None, key: str | None = None, priority: int = 0
) -> Trait | None:
    """The fields that most drafts do not have; None if this one has none of them."""
    own = (tenant, subject, key, priority)
    return None if own == _PLAIN else Trait(None, *own)
