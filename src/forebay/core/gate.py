"""Gates, lanes and lines: what may keep a ready job from being claimed. A claim takes slots, a settle gives them back.

A *gate* is a cap, a rate or a condition. A gate of the whole queue (a term without `per`) bounds how much a claim may
take; it belongs to the queue's spec and is not stamped on jobs. The other gates are stamped by name, and the jobs of a
queue with the same class and the same gates form a *lane*: eligibility is a property of the lane, its jobs only have an
order. The numbers of a gate are always those of the queue's current spec, or the operator's (`set_gate`).

A cap counts running jobs; each counts as much as it costs. A rate has a `step`, the time one unit costs, and follows
the generic cell rate algorithm: all its state is the theoretical arrival time (`tat`), up to which its starts are paid.
A start moves it on by cost · step; a job may start while that leaves it at most `limit` steps ahead of now.

A *line* is not a gate: it exposes one job at a time, the smallest id that has not finished.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, json

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft
from forebay.core.limits import MAX_INSTANT
from forebay.core.policy import AtMost, Field, InOrder, Rate, Term, Until, terms_of
from forebay.core.spec import QueueSpec


class Gate(Struct, frozen=True, array_like=True):
    """A gate with the numbers that a spec gives it.

    limit  slots, or of a rate the units that may start at once; 0: closed until `set_gate` or `release`
    step   the time that one unit of a rate costs; 0: the gate is not a rate
    """

    name: str
    limit: int
    step: Duration = 0


class LaneTerm(NamedTuple):
    """The numbers of the gates named `prefix/value`, by a field of jobs, or of the one named `prefix`."""

    prefix: str
    per: Field | None
    gate: Gate

    def covers(self, name: str) -> bool:
        return name == self.prefix if self.per is None else name.startswith(f"{self.prefix}/")

    def gate_name(self, draft: Draft) -> str | None:
        """The gate that a draft has to pass; None: it does not have the field."""
        if self.per is None:
            return self.prefix
        value = getattr(draft, self.per)
        return None if value is None else f"{self.prefix}/{value}"


class LineTerm(NamedTuple):
    """The lines named `prefix/value`, by a field of jobs. `blocks`: a dead head blocks its line."""

    prefix: str
    per: Field
    blocks: bool


class Line(NamedTuple):
    """The line a job belongs to. `blocks`: a dead head blocks it."""

    name: str
    blocks: bool


def opens_at(gate: Gate, tat: Instant, cost: int, given: int | None = None) -> Instant:
    """When a rate admits a job of this cost; `given`: the operator's number, which wins over the spec's.

    A job that costs more than a lowered limit starts when no other start is unpaid.
    """
    limit = gate.limit if given is None else given
    return tat - (limit - min(cost, limit)) * gate.step if limit else MAX_INSTANT


def tat_after(gate: Gate, tat: Instant, cost: int, now: Instant) -> Instant:
    """The theoretical arrival time of a rate once a job of this cost has started."""
    return max(tat, now) + cost * gate.step


def is_open(gate: Gate, used: int, tat: Instant, cost: int, now: Instant, given: int | None = None) -> bool:
    """Whether a job of this cost may start now; one that costs more than all slots of a cap runs alone."""
    if gate.step:
        return opens_at(gate, tat, cost, given) <= now
    slots = gate.limit if given is None else given
    return used + min(cost, max(slots, 1)) <= slots


def whole_gates(spec: QueueSpec) -> tuple[Gate, ...]:
    """The gates of the whole queue, in the order of the spec."""
    terms = [term for term in terms_of(spec.eligibility) if isinstance(term, AtMost | Rate) and term.per is None]
    return tuple(_gate(_prefix(spec.name, term), term) for term in terms)


def gates_among(terms: Iterable[LaneTerm], draft: Draft) -> tuple[str, ...]:
    """The names of the gates of the draft's lane; an `Until` counts with and without a field.

    A job without the field that a term names is not held by that term.
    """
    return tuple(sorted([name for term in terms if (name := term.gate_name(draft)) is not None]))


def lane_key(cls: str, gates: tuple[str, ...]) -> str:
    """The name of a lane, unique within its queue: the class alone if there are no gates."""
    return json.encode([cls, *gates]).decode() if gates else cls


def gate_of(spec: QueueSpec, name: str) -> Gate | None:
    """A gate of a lane with the numbers of the spec; None: the spec has no such term, so the gate is open."""
    return gate_among(lane_terms(spec), name)


def gate_among(terms: Iterable[LaneTerm], name: str) -> Gate | None:
    for term in terms:
        if term.covers(name):
            return Gate(name, term.gate.limit, term.gate.step)
    return None


def lane_terms(spec: QueueSpec) -> tuple[LaneTerm, ...]:
    """The rules of the gates that jobs are stamped with, in the order of the spec."""
    found = []
    for term in terms_of(spec.eligibility):
        if isinstance(term, Until) or (not isinstance(term, InOrder) and term.per is not None):
            prefix = _prefix(spec.name, term)
            found.append(LaneTerm(prefix, term.per, _gate(prefix, term)))
    return tuple(found)


def line_among(terms: Iterable[LineTerm], draft: Draft) -> Line | None:
    for prefix, per, blocks in terms:
        value = getattr(draft, per)
        if value is not None:
            return Line(f"{prefix}/{value}", blocks)
    return None


def line_terms(spec: QueueSpec) -> tuple[LineTerm, ...]:
    """The lines of a queue, by `LatestWins` or by `InOrder`; a draft joins the first whose field it has.

    `LatestWins` has one too: a retry of older work must not run after newer work and undo it.
    """
    merging = () if spec.merge is None else (LineTerm(f"merge/{spec.name}", "subject", False),)
    ordered = [term for term in terms_of(spec.eligibility) if isinstance(term, InOrder)]
    return *merging, *(LineTerm(_prefix(spec.name, term), term.per, term.dead_head == "block") for term in ordered)


def check_cost(spec: QueueSpec, draft: Draft) -> None:
    """Refuse a draft that costs more than the limit of one of its gates: it would never start."""
    for term in terms_of(spec.eligibility):
        if isinstance(term, AtMost | Rate) and (term.per is None or _value(draft, term.per) is not None):
            limit = term.limit if isinstance(term, AtMost) else term.max_burst
            if draft.cost > limit:
                reason = f"{draft.cost} is more than {_prefix(spec.name, term)} ever admits at once, which is {limit}"
                raise Invalid("cost", reason, "split the job, or give the gate more room")


def condition_gate(condition: str, value: str | None = None) -> str:
    """The name under which `set_gate` opens an `Until(condition, per=…)`."""
    return f"until/{condition}" if value is None else f"until/{condition}/{value}"


def is_condition(gate: str) -> bool:
    """Whether it is the gate of an `Until`."""
    return gate.startswith("until/")


def is_shared(gate: str) -> bool:
    """Whether several queues may have it: a gate with a name of its own, by `shared=`."""
    return gate.partition("/")[2].startswith("@")


def gate_names(spec: QueueSpec) -> list[str]:
    """The names of this queue's gates: exact names, or prefixes that a slash and a value follow."""
    named = [f"cap/{spec.name}", f"rate/{spec.name}"]
    for term in terms_of(spec.eligibility):
        match term:
            case AtMost(_, _, str(shared)):
                named.append(f"cap/@{shared}")
            case Rate(shared=str(shared)):
                named.append(f"rate/@{shared}")
            case Until(condition, _):
                named.append(condition_gate(condition))
            case AtMost() | Rate() | InOrder():
                pass
    return list(dict.fromkeys(named))


def checked_gate(name: str) -> str:
    """The internal name of a gate, from what an operator types."""
    sort, _, of = name.partition("/")
    if sort in ("order", "merge"):
        raise Invalid("gate", f"{name} is a line, which has no slots", "pause the queue, or cancel the job at its head")
    if sort not in ("cap", "rate", "until") or not of:
        way = "write cap/QUEUE, cap/QUEUE/FIELD/VALUE, rate/QUEUE or until/CONDITION"
        raise Invalid("gate", "no gate has such a name", way)
    return name


def has_gate(spec: QueueSpec, name: str) -> bool:
    """Whether jobs of this queue may be held by a gate of this name."""
    return any(name == each or name.startswith(f"{each}/") for each in gate_names(spec))


def _gate(name: str, term: Term) -> Gate:
    match term:
        case AtMost(limit):
            return Gate(name, limit)
        case Rate():
            return Gate(name, term.max_burst, term.step)
        case _:
            return Gate(name, 0)


def _prefix(queue: str, term: Term) -> str:
    """The name of the term's gate, without the value of its field. No queue has a name with an @."""
    match term:
        case Until(condition):
            return condition_gate(condition)
        case InOrder(per):
            return f"order/{queue}/{per}"
        case AtMost() | Rate():
            of = queue if term.shared is None else f"@{term.shared}"
            name = f"{'cap' if isinstance(term, AtMost) else 'rate'}/{of}"
            return name if term.per is None else f"{name}/{term.per}"


def _value(draft: Draft, per: Field) -> str | None:
    match per:
        case "subject":
            return draft.subject
        case "tenant":
            return draft.tenant
        case "kind":
            return draft.kind
