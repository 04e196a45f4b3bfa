"""A queue is a point on five axes; here each axis is a handful of frozen, checked values.

    retention    RemoveOnAck · KeepFor · Retained                     what happens to an item once it is done
    selection    Fifo · Priority · Aging · Deadline                   who is next; share=, merge=, unique= refine it
    eligibility  Immediate · AtMost · Rate · InOrder · Until · a & b  when an item may be taken
    routing      attempts, backoff, dead letters; fan_out=            where a failure goes, and where a draft goes
    capacity     Unbounded · Bounded                                  what happens when there is too much

Values only: `rank.py`, `gate.py`, `share.py` and `decide.py` say what they mean, stores keep them. They travel as
JSON (`QueueSpec.to_json`), and a combination that makes no sense is refused when it is written down.
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
from forebay.core.instant import Span, checked_micros, micros, minutes, seconds
from forebay.core.job import State
from forebay.core.limits import (
    AGING_STEP_MOST,
    ATTEMPTS_MOST,
    DEPTH_MOST,
    PARTITIONS_MOST,
    RATE_STEP_LEAST,
    ROUTES_MOST,
    SLOTS_MOST,
    SPAN_MOST,
    WEIGHT_MOST,
)
from forebay.core.names import check_name, check_pattern

Field: TypeAlias = Literal["subject", "tenant", "kind"]
_TICK = timedelta(milliseconds=1)


def check_between(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise Invalid(name, f"{value!r} is not an integer in {least} … {most}", "choose one inside these bounds")


class RemoveOnAck(Struct, frozen=True, forbid_unknown_fields=True, tag="remove-on-ack"):
    """An acknowledged job is gone; dead ones stay until they are redriven or purged."""


class KeepFor(Struct, frozen=True, forbid_unknown_fields=True, tag="keep-for"):
    """Done and cancelled jobs stay readable, with their result, for this long."""

    span: timedelta

    def __post_init__(self) -> None:
        checked_micros("KeepFor", self.span, _TICK, SPAN_MOST)


class Retained(Struct, frozen=True, forbid_unknown_fields=True, tag="retained"):
    """Not a queue but a log: entries stay, every group of readers keeps its own place. `window` is the contract.

    An entry goes when the window has passed. Where a group has not come so far, `count` lets it go and counts what the
    group lost, `block` keeps it for the groups that still read: those that were seen within the window.
    """

    partitions: int = 1
    window: timedelta | None = None
    lagging: Literal["count", "block"] = "count"

    def __post_init__(self) -> None:
        check_between("Retained partitions", self.partitions, 1, PARTITIONS_MOST)
        if self.window is not None:
            checked_micros("Retained window", self.window, _TICK, SPAN_MOST)


Retention: TypeAlias = RemoveOnAck | KeepFor | Retained


class Fifo(Struct, frozen=True, forbid_unknown_fields=True, tag="fifo"):
    """In the order of their due times."""


class Priority(Struct, frozen=True, forbid_unknown_fields=True, tag="priority"):
    """Highest priority first, then the oldest. Strict: the low can starve; `Aging` is the cure."""


class Aging(Struct, frozen=True, forbid_unknown_fields=True, tag="aging"):
    """A point of priority is worth `step` of waiting, so nobody starves."""

    step: timedelta = minutes(1)

    def __post_init__(self) -> None:
        checked_micros("Aging step", self.step, _TICK, AGING_STEP_MOST)


class Deadline(Struct, frozen=True, forbid_unknown_fields=True, tag="deadline"):
    """Earliest deadline first; jobs without one come last."""


Selection: TypeAlias = Fifo | Priority | Aging | Deadline


class Fair(Struct, frozen=True, forbid_unknown_fields=True):
    """Classes take turns by virtual time, each as often as its weight says."""

    by: Literal["tenant", "kind"] = "tenant"
    weights: dict[str, int] = field(default_factory=dict)
    default: int = 1

    def __post_init__(self) -> None:
        for name, weight in (*self.weights.items(), ("(default)", self.default)):
            check_between(f"Fair weight of {name}", weight, 1, WEIGHT_MOST)


class LatestWins(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that still waits takes over what a newer one with the same `by` brings; one runs at a time.

    quiet    it is due only when so long nothing newer came (debounce)
    at_most  however much comes, it is due so long after the first of it
    """

    by: Literal["subject"] = "subject"
    quiet: timedelta | None = None
    at_most: timedelta | None = None

    def __post_init__(self) -> None:
        if self.quiet is not None:
            checked_micros("LatestWins quiet", self.quiet, _TICK, SPAN_MOST)
        if self.at_most is not None:
            if self.quiet is None:
                raise Invalid("LatestWins at_most", "there is no quiet time that it could end", "give quiet as well")
            checked_micros("LatestWins at_most", self.at_most, self.quiet, SPAN_MOST)


class While(Struct, frozen=True, forbid_unknown_fields=True):
    """A key is taken while its job is in one of these states, and free again afterwards, whatever its window says."""

    states: tuple[State, ...] = (State.WAITING, State.READY, State.RUNNING)

    def __post_init__(self) -> None:
        known = {state for state in State if state in self.states}
        if not known or len(known) != len(self.states):
            reason = "they are not some states, each of them once"
            raise Invalid("While states", reason, f"use {', '.join(State)}")
        force_setattr(self, "states", tuple(state for state in State if state in known))

    def holds(self, state: State | None) -> bool:
        """Whether a key whose job is there is taken; None: the job is gone."""
        return state in self.states

    @property
    def mask(self) -> int:
        """The states as bits, in the order of `State`."""
        return sum(1 << place for place, state in enumerate(State) if state in self.states)


class _Term(Struct, frozen=True, forbid_unknown_fields=True):
    def __and__(self, other: "Eligibility") -> "All":
        return All((*_terms(self), *_terms(other)))


class Immediate(_Term, frozen=True, forbid_unknown_fields=True, tag="immediate"):
    """As soon as it is due."""


class AtMost(_Term, frozen=True, forbid_unknown_fields=True, tag="at-most"):
    """At most `limit` ready or running at once, in the queue or per field; a job takes as many slots as it costs.

    Queues that say the same word in `shared` share the slots.
    """

    limit: int
    per: Field | None = None
    shared: str | None = None

    def __post_init__(self) -> None:
        check_between("AtMost", self.limit, 1, SLOTS_MOST)
        if self.shared is not None:
            check_name("AtMost shared", self.shared)


class Rate(_Term, frozen=True, forbid_unknown_fields=True, tag="rate"):
    """At most `limit` starts in `every`, in the queue or per field; a job counts for as many as it costs.

    What was not used is saved up, `burst` starts at most (None: `limit`); 1 spaces them evenly. So in any length of
    time there are at most `burst` starts and those that it earns. A retry is a start. `shared` as in `AtMost`.
    """

    limit: int
    every: timedelta = seconds(1)
    per: Field | None = None
    burst: int | None = None
    shared: str | None = None

    def __post_init__(self) -> None:
        check_between("Rate", self.limit, 1, SLOTS_MOST)
        every = checked_micros("Rate every", self.every, _TICK, SPAN_MOST)
        if every < self.limit * RATE_STEP_LEAST:
            reason = f"{self.limit} in {every} µs is more than one in {RATE_STEP_LEAST} µs"
            raise Invalid("Rate", reason, "leave such a rate to the workers' concurrency")
        if self.burst is not None:
            check_between("Rate burst", self.burst, 1, min(SLOTS_MOST, micros(SPAN_MOST) // self.step))
        if self.shared is not None:
            check_name("Rate shared", self.shared)

    @property
    def step(self) -> Span:
        """What one start costs of time; rounded up, so that the rate is never passed."""
        return -(-micros(self.every) // self.limit)

    @property
    def most(self) -> int:
        """So many may start at once."""
        return self.limit if self.burst is None else self.burst


class InOrder(_Term, frozen=True, forbid_unknown_fields=True, tag="in-order"):
    """One at a time per field, in the order of acceptance, through retries and crashes.

    When a head goes to the dead letters, `skip` lets the next one pass, `block` waits until it is redriven or purged.
    """

    per: Field = "subject"
    dead_head: Literal["skip", "block"] = "skip"


class Until(_Term, frozen=True, forbid_unknown_fields=True, tag="until"):
    """Parked until the condition's gate has a free slot, or lets it pass. Closed at first.

    `set_gate` gives the gate slots, `release` lets the first of those that wait pass it, once and for good.
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
            raise Invalid("eligibility", "two InOrder terms may wait for each other", "keep one of the two")


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
    """What becomes of those that die.

    queue  they lie in this queue, still dead and under their own ids; a redrive sends them home
    keep   what lies here is forgotten so long after it died, unless somebody redrives it before
    most   when more than these lie here, the oldest are forgotten
    """

    queue: str | None = None
    keep: timedelta | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_name("DeadLetters queue", self.queue)
            if self.keep is not None or self.most is not None:
                raise Invalid("DeadLetters", "they lie in another queue, which has its own rule", "say it there")
        if self.keep is not None:
            checked_micros("DeadLetters keep", self.keep, _TICK, SPAN_MOST)
        if self.most is not None:
            check_between("DeadLetters most", self.most, 1, DEPTH_MOST)


class Routing(Struct, frozen=True, forbid_unknown_fields=True):
    """The retry edge and the dead-letter edge: how many lives a job has, how long it rests between them, where it ends.

    `dead` None: dead letters stay in the queue until somebody redrives or purges them.
    """

    max_attempts: int = 25
    backoff: Backoff = FullJitter()
    dead: DeadLetters | None = None

    def __post_init__(self) -> None:
        check_between("max_attempts", self.max_attempts, 1, ATTEMPTS_MOST)


class Route(Struct, frozen=True, forbid_unknown_fields=True):
    """Drafts whose kind matches go to the queue: `*` is any one word between dots, a last `**` any number of them."""

    kinds: str
    queue: str

    def __post_init__(self) -> None:
        check_pattern("Route kinds", self.kinds)
        check_name("Route queue", self.queue)


class FanOut(Struct, frozen=True, forbid_unknown_fields=True):
    """Not a queue but a broker: it holds nothing, a draft becomes one job in each queue that a route leads to.

    `unmatched`: a draft without a route is refused, or dropped with a receipt that has no copies.
    """

    routes: tuple[Route, ...]
    unmatched: Literal["refuse", "drop"] = "refuse"

    def __post_init__(self) -> None:
        check_between("FanOut routes", len(self.routes), 1, ROUTES_MOST)
        if len(set(self.routes)) != len(self.routes):
            raise Invalid("FanOut routes", "two of them are the same", "keep one of the two")


class Reject(Struct, frozen=True, forbid_unknown_fields=True, tag="reject"):
    """A full queue refuses at once with `QueueFull`."""


class Block(Struct, frozen=True, forbid_unknown_fields=True, tag="block"):
    """The producer waits for room, at most this long, then gets `QueueFull`."""

    timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        checked_micros("Block timeout", self.timeout, _TICK, timedelta(hours=1))


class Shed(Struct, frozen=True, forbid_unknown_fields=True, tag="shed"):
    """A full queue makes room: who waits longest, or who is last in rank, dies of it. Who runs never does.

    A newcomer that is itself the lowest is refused with `QueueFull`, and so is who cannot be made room for.
    """

    who: Literal["oldest", "lowest"] = "oldest"


class Unbounded(Struct, frozen=True, forbid_unknown_fields=True, tag="unbounded"):
    """Everything is taken; the backlog, not the producer, feels the overload."""


class Bounded(Struct, frozen=True, forbid_unknown_fields=True, tag="bounded"):
    """At most `limit` jobs waiting, ready or running; overload becomes an explicit signal."""

    limit: int
    when_full: Reject | Block | Shed = Reject()

    def __post_init__(self) -> None:
        check_between("Bounded", self.limit, 1, DEPTH_MOST)


Capacity: TypeAlias = Unbounded | Bounded
