"""A queue is a point on five axes; here each axis is a handful of frozen, checked values.

    retention    RemoveOnAck · KeepFor · Retained              what happens to an item once it is done
    selection    Fifo · Priority · Aging · Deadline            who is next; share= and merge= refine it
    eligibility  Immediate · AtMost · InOrder · Until · a & b  when an item may be taken
    routing      attempts, backoff                             where a failure goes
    capacity     Unbounded · Bounded                           what happens when there is too much

Values only: `rank.py`, `gate.py`, `share.py` and `decide.py` say what they mean, stores keep them. They travel as
JSON (`QueueSpec.to_json`), and a combination that makes no sense is refused when it is written down.
"""

from datetime import timedelta
from typing import Literal, TypeAlias

from msgspec import Struct, field

from forebay.core.errors import Invalid
from forebay.core.instant import Span, checked_micros, micros, minutes, ms
from forebay.core.limits import (
    AGING_STEP_MOST,
    ATTEMPTS_MOST,
    DEPTH_MOST,
    PARTITIONS_MOST,
    SLOTS_MOST,
    SPAN_MOST,
    WEIGHT_MOST,
)
from forebay.core.names import check_name

Field: TypeAlias = Literal["subject", "tenant", "kind"]
_NEVER = timedelta(0)
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
    """Not a queue but a log: entries stay, every group of readers keeps its own place. `window` is the contract."""

    partitions: int = 1
    window: timedelta | None = None

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
    """Classes take turns by deficit round robin, each as often as its weight says."""

    by: Literal["tenant", "kind"] = "tenant"
    weights: dict[str, int] = field(default_factory=dict)
    default: int = 1

    def __post_init__(self) -> None:
        for name, weight in (*self.weights.items(), ("(default)", self.default)):
            check_between(f"Fair weight of {name}", weight, 1, WEIGHT_MOST)


class LatestWins(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that still waits takes over the payload of a newer one with the same `by`; one runs at a time."""

    by: Literal["subject"] = "subject"


class _Term(Struct, frozen=True, forbid_unknown_fields=True):
    def __and__(self, other: "Eligibility") -> "All":
        return All((*_terms(self), *_terms(other)))


class Immediate(_Term, frozen=True, forbid_unknown_fields=True, tag="immediate"):
    """As soon as it is due."""


class AtMost(_Term, frozen=True, forbid_unknown_fields=True, tag="at-most"):
    """At most `limit` ready or running at once, in the queue or per field."""

    limit: int
    per: Field | None = None

    def __post_init__(self) -> None:
        check_between("AtMost", self.limit, 1, SLOTS_MOST)


class InOrder(_Term, frozen=True, forbid_unknown_fields=True, tag="in-order"):
    """One at a time per field, in the order of acceptance, through retries and crashes.

    When a head goes to the dead letters, `skip` lets the next one pass, `block` waits until it is redriven or purged.
    """

    per: Field = "subject"
    dead_head: Literal["skip", "block"] = "skip"


class Until(_Term, frozen=True, forbid_unknown_fields=True, tag="until"):
    """Parked until the condition's gate has a free slot; `set_gate` opens it. Closed at first."""

    condition: str
    per: Field | None = None

    def __post_init__(self) -> None:
        check_name("condition", self.condition)


class All(_Term, frozen=True, forbid_unknown_fields=True, tag="all"):
    """Every term must hold; written `a & b`."""

    terms: tuple[AtMost | InOrder | Until, ...]

    def __post_init__(self) -> None:
        lines = [(type(term), term.per, getattr(term, "condition", "")) for term in self.terms]
        if len(set(lines)) != len(lines):
            raise Invalid("eligibility", "two terms limit the same thing", "keep the tighter one")


Eligibility: TypeAlias = Immediate | AtMost | InOrder | Until | All


def _terms(eligibility: "_Term | Eligibility") -> tuple[AtMost | InOrder | Until, ...]:
    match eligibility:
        case All(terms):
            return terms
        case AtMost() | InOrder() | Until():
            return (eligibility,)
        case _:
            return ()


def terms_of(eligibility: Eligibility) -> tuple[AtMost | InOrder | Until, ...]:
    return _terms(eligibility)


class FullJitter(Struct, frozen=True, forbid_unknown_fields=True, tag="full-jitter"):
    """Uniform in [0, min(cap, base · 2^attempt)]: the spread that keeps a thousand failures from returning together."""

    base: timedelta = ms(500)
    cap: timedelta = minutes(1)

    def __post_init__(self) -> None:
        _check_backoff(self.base, self.cap)

    def delay(self, attempt: int, draw: float) -> Span:
        return int(draw * _doubled(self.base, self.cap, attempt))


class Exponential(Struct, frozen=True, forbid_unknown_fields=True, tag="exponential"):
    """min(base · 2^attempt + jitter, cap), the jitter uniform in [0, base · 2^attempt · spread)."""

    base: timedelta = ms(500)
    cap: timedelta = minutes(1)
    spread: float = 0.5

    def __post_init__(self) -> None:
        _check_backoff(self.base, self.cap)
        if type(self.spread) not in (int, float) or not 0 <= self.spread <= 1:
            raise Invalid("Exponential spread", f"{self.spread} is outside 0 … 1", "0.5 is a good one")

    def delay(self, attempt: int, draw: float) -> Span:
        grown = _doubled(self.base, self.cap, attempt)
        return min(grown + int(grown * self.spread * draw), micros(self.cap))


class Fixed(Struct, frozen=True, forbid_unknown_fields=True, tag="fixed"):
    """Always the same delay. No spread: for tests and for callers that bring their own."""

    span: timedelta = _NEVER

    def __post_init__(self) -> None:
        checked_micros("Fixed", self.span, _NEVER, SPAN_MOST)

    def delay(self, attempt: int, draw: float) -> Span:
        return micros(self.span)


Backoff: TypeAlias = FullJitter | Exponential | Fixed


def _check_backoff(base: timedelta, cap: timedelta) -> None:
    checked_micros("backoff base", base, _TICK, SPAN_MOST)
    checked_micros("backoff cap", cap, base, SPAN_MOST)


def _doubled(base: timedelta, cap: timedelta, attempt: int) -> Span:
    """The exponent stops where even the smallest base has passed the largest cap: no overflow, no huge integer."""
    return min(micros(cap), micros(base) << min(max(attempt, 0), 48))


class Routing(Struct, frozen=True, forbid_unknown_fields=True):
    """The retry edge and the dead-letter edge: how many lives a job has and how long it rests between them."""

    max_attempts: int = 25
    backoff: Backoff = FullJitter()

    def __post_init__(self) -> None:
        check_between("max_attempts", self.max_attempts, 1, ATTEMPTS_MOST)


class Reject(Struct, frozen=True, forbid_unknown_fields=True, tag="reject"):
    """A full queue refuses at once with `QueueFull`."""


class Block(Struct, frozen=True, forbid_unknown_fields=True, tag="block"):
    """The producer waits for room, at most this long, then gets `QueueFull`."""

    timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        checked_micros("Block timeout", self.timeout, _TICK, timedelta(hours=1))


class Unbounded(Struct, frozen=True, forbid_unknown_fields=True, tag="unbounded"):
    """Everything is taken; the backlog, not the producer, feels the overload."""


class Bounded(Struct, frozen=True, forbid_unknown_fields=True, tag="bounded"):
    """At most `limit` jobs waiting, ready or running; overload becomes an explicit signal."""

    limit: int
    when_full: Reject | Block = Reject()

    def __post_init__(self) -> None:
        check_between("Bounded", self.limit, 1, DEPTH_MOST)


Capacity: TypeAlias = Unbounded | Bounded
