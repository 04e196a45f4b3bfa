"""Writing down what one call does, job by job, as the spans of a `Record`.

A store that moves rows one by one tells its scribe of each; neighbours to which the same happened cost one comparison
and no object. Neighbours that differ in kind alone share a span as well: its kind is that of the first, and the others
say theirs in their traits. A call that tells of no job and names no verb of its own leaves no record.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.event import Entry
from forebay.core.instant import Instant
from forebay.core.job import Draft, Job
from forebay.core.ledger import Change, Record, Span, Trait
from forebay.core.outcome import Failure

TEND: Final = "tend"
"""The verb of a record that holds nothing but what fell due: jobs that expired, and jobs that were outlived."""


_TURN: Final = attrgetter("queue", "kind", "delivery", "attempt", "enqueued_at", "due_at", "claimed_at")
_BIRTH: Final = attrgetter("queue", "kind", "max_attempts", "due_at", "tenant", "subject", "key", "priority")
_PLAIN: Final = (None, None, None, 0)


class Scribe:
    """One call, from the instant that it happens at."""

    __slots__ = ("_at", "_change", "_facts", "_first", "_n", "_name", "_owner", "_spans", "_tick", "_traits", "_verb")

    def __init__(self, at: Instant) -> None:
        self._at = at
        self._verb = TEND
        self._owner: str | None = None
        self._name: str | None = None
        self._tick: Instant | None = None
        self._spans: list[Span] = []
        self._change: Change | None = None
        self._first = self._n = 0
        self._facts: tuple[Any, ...] = ()
        self._traits: list[Trait | None] | None = None

    def tell(
        self, verb: str, *, owner: str | None = None, name: str | None = None, tick: Instant | None = None
    ) -> None:
        """The call has changed something of its own, which no tending would have."""
        self._verb, self._owner, self._name, self._tick = verb, owner, name, tick

    def job(self, change: Change, job_id: int, *facts: Any, trait: Trait | None = None) -> None:
        """`facts` are the fields of a `Span` from `queue` on, without its traits; those left out are 0.

        A kind is a fact; traits that are handed in have none.
        """
        self._take(change, job_id, 1, facts, None if trait is None else [trait])

    def jobs(self, change: Change, ids: list[int], *facts: Any, traits: Sequence[Trait | None] | None = None) -> None:
        """Alike jobs in any order; as `job` for each of them, at a fraction of the price."""
        first, n = ids[0], len(ids)
        if n == 1 or (ids[-1] - first + 1 == n and ids == list(range(first, first + n))):
            self._take(change, first, n, facts, traits)
        else:
            for place, job_id in enumerate(ids):
                self._take(change, job_id, 1, facts, None if traits is None else [traits[place]])

    def held(self, change: Change, job: Job, until: Instant, error: Failure | None = None) -> None:
        """A running job, as its lease says, and why it failed."""
        queue, kind, delivery, attempt, *instants = _TURN(job)
        told = None if error is None else Trait(error_kind=error.kind, error=error.message)
        self.job(change, job.id, queue, kind, delivery, attempt, 0, *instants, until, trait=told)

    def leased(self, change: Change, jobs: Iterable[Job], until: Instant) -> None:
        """Running jobs with one end of their leases: as `held` for each of them."""
        for (queue, kind, delivery, attempt, *instants), alike in groupby(jobs, _TURN):
            ids = [job.id for job in alike]
            self.jobs(change, ids, queue, kind, delivery, attempt, 0, *instants, until)

    def accepted(self, entries: Iterable[Entry]) -> None:
        """Jobs at their birth."""
        for (queue, kind, max_attempts, due_at, *own), alike in groupby(entries, _BIRTH):
            ids, told = [entry.id for entry in alike], trait(*own)
            traits = None if told is None else [told] * len(ids)
            self.jobs(Change.ACCEPTED, ids, queue, kind, 0, 0, max_attempts, self._at, due_at, traits=traits)

    def merged(self, job_id: int, draft: Draft, due_at: Instant = 0) -> None:
        """A waiting job took over what this draft brings; `due_at`: its time moved as well."""
        own = trait(draft.tenant, draft.subject, draft.key, draft.priority)
        facts = (0, 0, 0, 0, due_at) if due_at else ()
        self.job(Change.MERGED, job_id, draft.queue, draft.kind, *facts, trait=own)

    def spans(self) -> list[Span]:
        """What was told of jobs so far."""
        self._end()
        return self._spans

    def record(self) -> Record | None:
        """The record, if there is anything to tell."""
        spans = self.spans()
        if not spans and self._verb == TEND:
            return None
        return Record(self._at, self._verb, spans, self._owner, self._name, self._tick)

    def _take(
        self, change: Change, first: int, n: int, facts: tuple[Any, ...], traits: Sequence[Trait | None] | None
    ) -> None:
        if change is not self._change or first != self._first + self._n or not self._alike(facts):
            self._end()
            self._change, self._first, self._n, self._facts = change, first, n, facts
            self._traits = None if traits is None else list(traits)
            return
        kind = facts[1]
        if kind != self._facts[1]:
            traits = [Trait(kind=kind)] * n if traits is None else [_of_kind(kind, trait) for trait in traits]
        if traits is not None and self._traits is None:
            self._traits = [None] * self._n
        if self._traits is not None:
            self._traits.extend(traits or [None] * n)
        self._n += n

    def _alike(self, facts: tuple[Any, ...]) -> bool:
        """But for the kind."""
        known = self._facts
        return facts == known or (facts[0] == known[0] and facts[2:] == known[2:])

    def _end(self) -> None:
        if self._change is not None:
            facts: Any = self._facts
            span = Span(self._change, self._first, self._n, *facts)
            self._spans.append(span if self._traits is None else replace(span, traits=self._traits))
        self._change, self._traits = None, None


def _of_kind(kind: str, trait: Trait | None) -> Trait:
    return Trait(kind=kind) if trait is None else replace(trait, kind=kind)


def trait(
    tenant: str | None = None, subject: str | None = None, key: str | None = None, priority: int = 0
) -> Trait | None:
    """What a draft has that most do not; None for most."""
    own = (tenant, subject, key, priority)
    return None if own == _PLAIN else Trait(None, *own)
