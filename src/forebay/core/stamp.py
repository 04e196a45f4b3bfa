"""What is computed for a draft when a store accepts it: due time, rank, class, gates, attempts, the key's window.

The store supplies the id and the current time; everything else follows from the draft and the queue's spec. There is
one `Stamper` for each spec: what does not depend on the draft is computed once, so a plain FIFO queue stays cheap.

Selection is by rank, an integer computed from the job's own fields. Smaller is sooner; the smaller id breaks ties.

A rank is affine in the due time: `base + due_at` if the selection depends on time, else `base`. Core computes the base
once, at enqueue; `rank_at` gives the rank whenever a store writes a due time. For linear aging "now" cancels out,
so a job's place never has to be recomputed while it waits.

In a FIFO queue a job with a due time in the future leads: once due it runs before all jobs that were due at once, and
leaders are ordered by their due times. A job that returns (released, or reclaimed from a worker that died) keeps its
rank. In a FIFO queue it leads, by its old due time: concurrent claims may have passed an older job, and a job that was
claimed before must not wait for those.

API `priority`: higher is sooner. `rank`: smaller is sooner. They are never mixed.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from forebay.core.entries import LEADING, TIMED, UNTIMED, DeadLetterRule, Entry, Replaced
from forebay.core.gate import (
    Gate,
    Line,
    check_cost,
    gate_among,
    gates_among,
    lane_terms,
    line_among,
    line_terms,
    whole_gates,
)
from forebay.core.instant import Duration, Instant, micros
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_INSTANT
from forebay.core.payload import digest
from forebay.core.policy import (
    Aging,
    Bounded,
    Deadline,
    Fifo,
    Immediate,
    KeepFor,
    LatestWins,
    Priority,
    Selection,
    Shed,
    While,
)
from forebay.core.spec import QueueSpec

_WHILE_UNFINISHED: Final = While()
_NO_LINE: Final = (None, False)
LEAD: Final = 2**53
"""More than any due time, so that the rank of a leader is below zero and smaller than every other rank."""


class RankRule(NamedTuple):
    """How a job's rank follows from its due time: the first two arguments of `rank_at`."""

    base: int
    timed: int


BY_TIME: Final = RankRule(0, LEADING)


def rank_rule(selection: Selection, draft: Draft) -> RankRule:
    match selection:
        case Fifo():
            return BY_TIME
        case Priority():
            return RankRule(-draft.priority, UNTIMED)
        case Aging(step):
            return RankRule(-draft.priority * micros(step), TIMED)
        case Deadline():
            return RankRule(MAX_INSTANT if draft.deadline is None else draft.deadline, UNTIMED)


def rank_at(base: int, timed: int, due_at: Instant, now: Instant) -> int:
    """The rank of a job whose due time is written now."""
    if not timed:
        return base
    return base + due_at - LEAD if timed == LEADING and due_at > now else base + due_at


def rank_back(rank: int, timed: int) -> int:
    """The rank of a job that returns to its place."""
    return rank - LEAD if timed == LEADING and rank >= 0 else rank


class Stamper:
    """The stamps of one queue's spec."""

    __slots__ = (
        "_debounce",
        "_keep_for",
        "_key_window",
        "_line_terms",
        "_ranked",
        "_terms",
        "gated",
        "is_broker",
        "is_log",
        "max_dead",
        "paced",
        "sheds",
        "spec",
        "stamped",
        "whole",
    )

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec
        self.is_log = spec.is_log
        self.is_broker = spec.is_broker
        self._ranked = not isinstance(spec.selection, Fifo)
        self.whole: tuple[Gate, ...] = whole_gates(spec)
        """The gates of the whole queue, which are not stamped on its jobs."""
        self.paced = any(gate.step for gate in self.whole)
        """Whether a rate holds the whole queue."""
        self.gated = not isinstance(spec.eligibility, Immediate)
        self._terms = lane_terms(spec)
        self._line_terms = line_terms(spec)
        self.stamped = bool(self._terms or self._line_terms)
        """Whether jobs get gates or a line of their own."""
        self._debounce = spec.merge if spec.merge is not None and spec.merge.quiet is not None else None
        full = spec.capacity.when_full if isinstance(spec.capacity, Bounded) else None
        self.sheds = full if isinstance(full, Shed) else None
        self.max_dead = None if spec.routing.dead is None else spec.routing.dead.limit
        """How many dead letters the queue keeps at most."""
        self._key_window = micros(spec.key_window)
        self._keep_for: Duration = micros(spec.retention.duration) if isinstance(spec.retention, KeepFor) else 0

    def kept_until(self, finished_at: Instant, keep_for: Duration = 0) -> Instant:
        """Until when a done or cancelled job stays readable, by its queue or its verdict; 0: it is deleted at once."""
        keep_for = max(self._keep_for, keep_for)
        return finished_at + keep_for if keep_for else 0

    def dead_letter(self, died_at: Instant, of: Callable[[str], "Stamper"]) -> DeadLetterRule | None:
        """The queue and the time of the dead letter of a job that dies now; None: here, until redriven or purged.

        The queue that holds the dead letter determines how long: `of` returns the stamper of another queue.
        """
        dead = self.spec.routing.dead
        if dead is None:
            return None
        rule = dead if dead.queue is None else of(dead.queue).spec.routing.dead
        keep = None if rule is None else rule.keep
        return DeadLetterRule(dead.queue, died_at + micros(keep) if keep else 0) if dead.queue or keep else None

    def key(self, draft: Draft, now: Instant) -> tuple[bytes, Instant]:
        """What is kept with the key, and for how long; with `While` only the state of its job counts."""
        return digest(draft.kind, draft.body), now + self._key_window if self.spec.unique is None else MAX_INSTANT

    def key_counts(self, until: Instant, state: State | None, now: Instant) -> bool:
        """Whether a key with this window and the job in this state is taken; None: the job is deleted."""
        return (self.spec.unique or _WHILE_UNFINISHED).holds(state) if until >= MAX_INSTANT else until > now

    def newer(self, draft: Draft, enqueued_at: Instant, due_at: Instant, now: Instant) -> Replaced:
        """What a waiting job takes over from a newer draft."""
        base, _ = rank_rule(self.spec.selection, draft)
        moved = None
        if self._debounce is not None and due_at > now:
            moved = max(due_at, quiet_until(self._debounce, enqueued_at, now))
        return Replaced(draft.priority, base, draft.deadline, draft.expires_at, draft.meta, moved)

    def entry(self, draft: Draft, job_id: int, now: Instant, key_digest: bytes = b"", key_until: Instant = 0) -> Entry:
        spec = self.spec
        due_at = now + draft.delay if draft.run_at is None else max(now, draft.run_at)
        if self._debounce is not None and draft.subject is not None:
            due_at = max(due_at, quiet_until(self._debounce, now, now))
        base, timed = rank_rule(spec.selection, draft) if self._ranked else BY_TIME
        if self.gated and draft.cost > 1:
            check_cost(spec, draft)
        gates = self.lane_gates(draft) if self._terms else ()
        line, blocks = self.line(draft) or _NO_LINE if self._line_terms else _NO_LINE
        return Entry(
            job_id,
            draft.queue,
            draft.kind,
            draft.body,
            due_at,
            due_at <= now and line is None,
            draft.max_attempts or spec.routing.max_attempts,
            draft.priority,
            base,
            timed,
            draft.key,
            key_digest,
            key_until,
            draft.tenant,
            draft.subject,
            draft.deadline,
            draft.expires_at,
            draft.meta,
            "" if spec.share is None else self.cls(draft),
            spec.merge is not None and draft.subject is not None,
            gates,
            draft.cost,
            line,
            blocks,
        )

    def lane_gates(self, draft: Draft) -> tuple[str, ...]:
        """The gates of the draft's lane."""
        return gates_among(self._terms, draft)

    def line(self, draft: Draft) -> Line | None:
        """The line that the draft joins."""
        return line_among(self._line_terms, draft)

    def gate(self, name: str) -> Gate | None:
        """A gate that jobs were stamped with, by the current spec; None: it no longer holds jobs."""
        return gate_among(self._terms, name)

    def gates(self, names: Iterable[str]) -> tuple[Gate, ...]:
        """Those of these gates that still hold jobs."""
        return tuple([gate for name in names if (gate := self.gate(name)) is not None])

    def gate_named(self, name: str) -> Gate | None:
        """The same, or a gate of the whole queue."""
        return next((gate for gate in self.whole if gate.name == name), None) or self.gate(name)

    def weight(self, cls: str) -> int:
        """The weight of a class; 0: classes of this queue do not take turns."""
        share = self.spec.share
        return 0 if share is None else share.weights.get(cls, share.default)

    def cls(self, draft: Draft) -> str:
        share = self.spec.share
        if share is None:
            return ""
        return (draft.tenant if share.by == "tenant" else draft.kind) or ""


def quiet_until(merge: LatestWins, first_at: Instant, now: Instant) -> Instant:
    """When the quiet period ends if no newer draft arrives; at the latest at the end of `at_most`."""
    assert merge.quiet is not None
    quiet = now + micros(merge.quiet)
    return quiet if merge.at_most is None else min(quiet, first_at + micros(merge.at_most))
