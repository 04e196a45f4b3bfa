"""A queue is defined on five axes; each axis is a set of frozen, validated values.

    retention    RemoveOnAck · KeepFor · Retained                     what happens to a job once it is done
    selection    Fifo · Priority · Aging · Deadline                   which job is next; share=, merge=, unique=
    eligibility  Immediate · AtMost · Rate · InOrder · Until · a & b  when a job may be claimed
    routing      attempts, backoff, dead letters; fan_out=            where failed jobs and drafts go
    capacity     Unbounded · Bounded                                  what happens when the queue is full

Values only: `rank.py`, `gate.py`, `share.py` and `decide.py` implement them, stores persist them as JSON
(`QueueSpec.to_json`). A contradictory combination is refused when the spec is created.
"""

from datetime import timedelta
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr

from forebay.core.backoff import Backoff as Backoff  # noqa: PLC0414
from forebay.core.backoff import Exponential as Exponential  # noqa: PLC0414
from forebay.core.backoff import Fixed as Fixed  # noqa: PLC0414
from forebay.core.backoff import FullJitter as FullJitter  # noqa: PLC0414
from forebay.core.errors import Invalid
from forebay.core.instant import Duration, checked_micros, micros, minutes, seconds
from forebay.core.job import State
from forebay.core.limits import (
    MAX_AGING_STEP,
    MAX_ATTEMPTS,
    MAX_DEPTH,
    MAX_DURATION,
    MAX_PARTITIONS,
    MAX_ROUTES,
    MAX_SLOTS,
    MAX_WEIGHT,
    MIN_RATE_STEP,
)
from forebay.core.names import check_name, check_pattern

Field: TypeAlias = Literal["subject", "tenant", "kind"]
_TICK = timedelta(milliseconds=1)


def check_between(name: str, value: int, minimum: int, maximum: int) -> None:
    if type(value) is not int or not minimum <= value <= maximum:
        raise Invalid(name, f"{value!r} is not an integer in {minimum} … {maximum}", "choose a value in that range")


class RemoveOnAck(Struct, frozen=True, forbid_unknown_fields=True, tag="remove-on-ack"):
    """An acknowledged job is deleted; dead ones stay until they are redriven or purged."""


class KeepFor(Struct, frozen=True, forbid_unknown_fields=True, tag="keep-for"):
    """Done and cancelled jobs stay readable, with their result, for this long."""

    duration: timedelta

    def __post_init__(self) -> None:
        checked_micros("KeepFor", self.duration, _TICK, MAX_DURATION)


class Retained(Struct, frozen=True, forbid_unknown_fields=True, tag="retained"):
    """Not a queue but a log: entries are kept for `window`, and each group of readers has its own position.

    An entry is trimmed when the window has passed. For a group that has not read it yet, `count` trims it and counts
    the loss; `block` keeps it for the active groups, those that were seen within the window.
    """

    partitions: int = 1
    window: timedelta | None = None
    lagging: Literal["count", "block"] = "count"

    def __post_init__(self) -> None:
        check_between("Retained partitions", self.partitions, 1, MAX_PARTITIONS)
        if self.window is not None:
            checked_micros("Retained window", self.window, _TICK, MAX_DURATION)


Retention: TypeAlias = RemoveOnAck | KeepFor | Retained


class Fifo(Struct, frozen=True, forbid_unknown_fields=True, tag="fifo"):
    """In the order of their due times."""


class Priority(Struct, frozen=True, forbid_unknown_fields=True, tag="priority"):
    """Highest priority first, then the oldest. Strict: jobs of low priority can starve; use `Aging` against that."""


class Aging(Struct, frozen=True, forbid_unknown_fields=True, tag="aging"):
    """A point of priority is worth `step` of waiting, so no job starves."""

    step: timedelta = minutes(1)

    def __post_init__(self) -> None:
        checked_micros("Aging step", self.step, _TICK, MAX_AGING_STEP)


class Deadline(Struct, frozen=True, forbid_unknown_fields=True, tag="deadline"):
    """Earliest deadline first; jobs without one come last."""


Selection: TypeAlias = Fifo | Priority | Aging | Deadline


class Fair(Struct, frozen=True, forbid_unknown_fields=True):
    """Classes share the queue in proportion to their weights, by virtual time."""

    by: Literal["tenant", "kind"] = "tenant"
    weights: dict[str, int] = field(default_factory=dict)
    default: int = 1

    def __post_init__(self) -> None:
        for name, weight in (*self.weights.items(), ("(default)", self.default)):
            check_between(f"Fair weight of {name}", weight, 1, MAX_WEIGHT)


class LatestWins(Struct, frozen=True, forbid_unknown_fields=True):
    """A waiting job is replaced by a newer one with the same `by`; one runs at a time.

    quiet    the job is due after this long without a newer one (debounce)
    at_most  the job is due at the latest this long after the first one
    """

    by: Literal["subject"] = "subject"
    quiet: timedelta | None = None
    at_most: timedelta | None = None

    def __post_init__(self) -> None:
        if self.quiet is not None:
            checked_micros("LatestWins quiet", self.quiet, _TICK, MAX_DURATION)
        if self.at_most is not None:
            if self.quiet is None:
                raise Invalid("LatestWins at_most", "it has no effect without quiet", "set quiet as well")
            checked_micros("LatestWins at_most", self.at_most, self.quiet, MAX_DURATION)


class While(Struct, frozen=True, forbid_unknown_fields=True):
    """A key is taken while its job is in one of these states, and free afterwards, regardless of the key window."""

    states: tuple[State, ...] = (State.WAITING, State.READY, State.RUNNING)

    def __post_init__(self) -> None:
        known = {state for state in State if state in self.states}
        if not known or len(known) != len(self.states):
            reason = "the list is empty, or a state is unknown or repeated"
            raise Invalid("While states", reason, f"use {', '.join(State)}")
        force_setattr(self, "states", tuple(state for state in State if state in known))

    def holds(self, state: State | None) -> bool:
        """Whether a key whose job is in this state is taken; None: the job is deleted."""
        return state in self.states

    @property
    def mask(self) -> int:
        """The states as bits, in the order of `State`."""
        return sum(1 << position for position, state in enumerate(State) if state in self.states)


class _Term(Struct, frozen=True, forbid_unknown_fields=True):
    def __and__(self, other: "Eligibility") -> "All":
        return All((*_terms(self), *_terms(other)))


class Immediate(_Term, frozen=True, forbid_unknown_fields=True, tag="immediate"):
    """A job may be claimed as soon as it is due."""


class AtMost(_Term, frozen=True, forbid_unknown_fields=True, tag="at-maximum"):
    """At most `limit` running at once, in the queue or per field; a job takes as many slots as it costs.

    Queues with the same name in `shared` share the slots.
    """

    limit: int
    per: Field | None = None
    shared: str | None = None

    def __post_init__(self) -> None:
        check_between("AtMost", self.limit, 1, MAX_SLOTS)
        if self.shared is not None:
            check_name("AtMost shared", self.shared)


class Rate(_Term, frozen=True, forbid_unknown_fields=True, tag="rate"):
    """At most `limit` starts in `every`, in the queue or per field; a job counts for as many as it costs.

    Unused starts accumulate up to `burst` (None: `limit`); 1 spaces them evenly. A period of any duration has at most
    `burst` starts more than the rate allows for it. A retry is a start. `shared` as in `AtMost`.
    """

    limit: int
    every: timedelta = seconds(1)
    per: Field | None = None
    burst: int | None = None
    shared: str | None = None

    def __post_init__(self) -> None:
        check_between("Rate", self.limit, 1, MAX_SLOTS)
        every = checked_micros("Rate every", self.every, _TICK, MAX_DURATION)
        if every < self.limit * MIN_RATE_STEP:
            reason = f"{self.limit} in {every} µs is more than one in {MIN_RATE_STEP} µs"
            raise Invalid("Rate", reason, "limit such a rate by the workers' concurrency")
        if self.burst is not None:
            check_between("Rate burst", self.burst, 1, min(MAX_SLOTS, micros(MAX_DURATION) // self.step))
        if self.shared is not None:
            check_name("Rate shared", self.shared)

    @property
    def step(self) -> Duration:
        """The time between two starts; rounded up, so that the rate is never exceeded."""
        return -(-micros(self.every) // self.limit)

    @property
    def max_burst(self) -> int:
        """The number of jobs that may start at once."""
        return self.limit if self.burst is None else self.burst


class InOrder(_Term, frozen=True, forbid_unknown_fields=True, tag="in-order"):
    """One at a time per field, in the order of acceptance, across retries and crashes.

    When the head becomes a dead letter, `skip` continues with the next one, `block` waits until it is redriven or
    purged.
    """

    per: Field = "subject"
    dead_head: Literal["skip", "block"] = "skip"


class Until(_Term, frozen=True, forbid_unknown_fields=True, tag="until"):
    """Held until the gate of the condition has a free slot, or releases the job. The gate is closed at first.

    `set_gate` gives the gate slots, `release` admits the first waiting jobs permanently.
    """

    condition: str
    per: Field | None = None

    def __post_init__(self) -> None:
        check_name("condition", self.condition)


Term: TypeAlias = AtMost | Rate | InOrder | Until


class All(_Term, frozen=True, forbid_unknown_fields=True, tag="all"):
    """Every term must hold; written `a & b`."""

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        lines = [
            (type(term), term.per, getattr(term, "condition", None), getattr(term, "shared", None))
            for term in self.terms
        ]
        if len(set(lines)) != len(lines):
            raise Invalid("eligibility", "two terms limit the same thing", "keep the tighter one")
        if sum(isinstance(term, InOrder) for term in self.terms) > 1:
            raise Invalid("eligibility", "two InOrder terms can deadlock", "keep one of the two")


Eligibility: TypeAlias = Immediate | Term | All


def _terms(eligibility: "_Term | Eligibility") -> tuple[Term, ...]:
    match eligibility:
        case All(terms):
            return terms
        case AtMost() | Rate() | InOrder() | Until():
            return (eligibility,)
        case _:
            return ()


def terms_of(eligibility: Eligibility) -> tuple[Term, ...]:
    return _terms(eligibility)


class DeadLetters(Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to dead letters.

    queue  they move to this queue, still dead and with the same ids; a redrive returns them to their own queue
    keep   they are deleted this long after they died
    limit  when there are more than this, the oldest are deleted
    """

    queue: str | None = None
    keep: timedelta | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_name("DeadLetters queue", self.queue)
            if self.keep is not None or self.limit is not None:
                raise Invalid("DeadLetters", "the other queue has its own rule", "set keep and limit there")
        if self.keep is not None:
            checked_micros("DeadLetters keep", self.keep, _TICK, MAX_DURATION)
        if self.limit is not None:
            check_between("DeadLetters limit", self.limit, 1, MAX_DEPTH)


class Routing(Struct, frozen=True, forbid_unknown_fields=True):
    """Retries and dead letters: the number of attempts, the delay between them, and what happens after the last.

    `dead` None: dead letters stay in the queue until they are redriven or purged.
    """

    max_attempts: int = 25
    backoff: Backoff = FullJitter()
    dead: DeadLetters | None = None

    def __post_init__(self) -> None:
        check_between("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)


class Route(Struct, frozen=True, forbid_unknown_fields=True):
    """Drafts whose kind matches go to the queue: `*` is one word between dots, a final `**` any number of words."""

    kinds: str
    queue: str

    def __post_init__(self) -> None:
        check_pattern("Route kinds", self.kinds)
        check_name("Route queue", self.queue)


class FanOut(Struct, frozen=True, forbid_unknown_fields=True):
    """Not a queue but a broker: it holds no jobs; a draft becomes one job in each queue that a route names.

    `unmatched`: a draft without a route is refused, or dropped with a receipt that has no copies.
    """

    routes: tuple[Route, ...]
    unmatched: Literal["refuse", "drop"] = "refuse"

    def __post_init__(self) -> None:
        check_between("FanOut routes", len(self.routes), 1, MAX_ROUTES)
        if len(set(self.routes)) != len(self.routes):
            raise Invalid("FanOut routes", "a route is repeated", "keep one of the two")


class Reject(Struct, frozen=True, forbid_unknown_fields=True, tag="reject"):
    """A full queue refuses new jobs at once with `QueueFull`."""


class Block(Struct, frozen=True, forbid_unknown_fields=True, tag="block"):
    """The producer waits for capacity, at most this long, then gets `QueueFull`."""

    timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        checked_micros("Block timeout", self.timeout, _TICK, timedelta(hours=1))


class Shed(Struct, frozen=True, forbid_unknown_fields=True, tag="shed"):
    """A full queue dead-letters the jobs that wait longest, or those of the lowest rank; never a running one.

    A new job that is itself the lowest is refused with `QueueFull`, as is one for which not enough can be shed.
    """

    victim: Literal["oldest", "lowest"] = "oldest"


class Unbounded(Struct, frozen=True, forbid_unknown_fields=True, tag="unbounded"):
    """Every job is accepted; overload shows in the backlog, not at the producer."""


class Bounded(Struct, frozen=True, forbid_unknown_fields=True, tag="bounded"):
    """At most `limit` jobs waiting, ready or running; overload becomes an explicit signal."""

    limit: int
    when_full: Reject | Block | Shed = Reject()

    def __post_init__(self) -> None:
        check_between("Bounded", self.limit, 1, MAX_DEPTH)


class Moved(Bounded, frozen=True, forbid_unknown_fields=True, tag="moved"):
    """No job is accepted: the queue has moved to another cell. Duplicates and merges need no room, as ever.

    version   that of the map of cells by which it was closed; who has an older map does not open it again
    released  another spec may take its place
    """

    limit: int = 0
    version: int = 0
    released: bool = False

    def __post_init__(self) -> None:
        check_between("Moved", self.limit, 0, 0)


Capacity: TypeAlias = Unbounded | Bounded | Moved
