"""What may hold a due job back. Core stamps a job with its gates; a store only counts slots, and time.

A slot is taken when a job becomes ready and freed when it is settled; a job takes as many as it costs. A job that finds
a gate closed parks in `waiting`: it is never looked at by a claim, so a closed gate costs the others nothing.
An ordered gate admits one job at a time, always the one with the smallest id that is not finished.

Who is first in rank goes first. In a queue with `Fair` the slot is its queue's, and the classes of that queue take
turns for it (`core/share.py`): the job says by `share` how much a turn of its class is worth.

A gate with a `step` is a rate: nothing is given back, time is. All that is to be known of it is one instant, the gate's
`tide`: the time up to which its starts are paid for (the "theoretical arrival time" of the cell rate algorithm). Each
unit moves it on by a step; a job is let in as long as that leaves it no more than `limit` steps ahead of now. A tide
that has come to pass says nothing any more, and may be forgotten. Only a claim lets a job in at a rate, and only what
it hands out: otherwise the starts of an idle hour would be saved up as ready jobs, and all start at once.
"""

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, Span
from forebay.core.job import Draft
from forebay.core.limits import INSTANT_MOST, SLOTS_MOST
from forebay.core.policy import AtMost, Field, InOrder, Rate, Term, Until, terms_of
from forebay.core.spec import QueueSpec


class Gate(Struct, frozen=True, array_like=True):
    """One gate in front of one job.

    limit   slots, or of a rate the units that may start at once; 0: closed until `set_gate` or `release`
    blocks  a dead head keeps the line closed
    cost    how many slots, or units, the job takes
    step    the time that one unit of a rate costs; 0: it is no rate
    share   the weight of the job's class, where classes of its queue take turns at the gate; 0: it goes by rank alone
    """

    name: str
    limit: int
    ordered: bool = False
    blocks: bool = False
    cost: int = 1
    step: Span = 0
    share: int = 0


def opens_at(tide: Instant, gate: Gate, limit: int | None = None) -> Instant:
    """When a rate with this tide lets the job in; `limit`: the operator's number, which wins over the stamped one.

    Where the numbers were made smaller than the cost of a job that waits, it goes when nobody else is owed for.
    """
    most = gate.limit if limit is None else limit
    return tide - (most - min(gate.cost, most)) * gate.step if most else INSTANT_MOST


def tide_after(tide: Instant, gate: Gate, now: Instant) -> Instant:
    """The tide once the job was let in."""
    return max(tide, now) + gate.cost * gate.step


def has_room(held: int, cost: int, slots: int) -> bool:
    """Whether slots of which some are held have room for the cost; who costs more than there are goes alone."""
    return held + min(cost, max(slots, 1)) <= slots


def condition_gate(condition: str, value: str | None = None) -> str:
    """The name under which `set_gate` opens an `Until(condition, per=…)`."""
    return f"until/{condition}" if value is None else f"until/{condition}/{value}"


def gate_names(spec: QueueSpec) -> list[str]:
    """What the gates of this queue's jobs are called: so, or so with a slash and more behind it."""
    names = [f"{sort}/{spec.name}" for sort in ("cap", "rate", "order", "merge")]
    for term in terms_of(spec.eligibility):
        match term:
            case AtMost(_, _, str(shared)):
                names.append(f"cap/@{shared}")
            case Rate(shared=str(shared)):
                names.append(f"rate/@{shared}")
            case Until(condition, _):
                names.append(condition_gate(condition))
            case AtMost() | Rate() | InOrder():
                pass
    return list(dict.fromkeys(names))


def checked_gate(name: str) -> str:
    """A name as gates have them, for people who type it."""
    sort, _, of = name.partition("/")
    if sort not in ("cap", "rate", "order", "merge", "until") or not of:
        way = "write cap/QUEUE, rate/QUEUE, order/QUEUE/FIELD/VALUE, merge/QUEUE/SUBJECT or until/CONDITION"
        raise Invalid("gate", "no gate has such a name", way)
    return name


def has_gate(spec: QueueSpec, name: str) -> bool:
    """Whether jobs of this queue may be stamped with a gate of this name."""
    return any(name == each or name.startswith(f"{each}/") for each in gate_names(spec))


def gates_for(spec: QueueSpec, draft: Draft) -> tuple[Gate, ...]:
    """The draft's gates, tightest first: a job should park where it is likeliest to wait longest. Rates come last.

    A job without the field that a term looks at is not held by that term. One that costs more than a gate ever has
    is refused: it would wait for ever.
    """
    gates = []
    for term in terms_of(spec.eligibility):
        value = None if term.per is None else _value(draft, term.per)
        if term.per is None or value is not None:
            gates.append(_gate(spec.name, term, value, draft.cost, _weight(spec, term, draft)))
    if spec.merge is not None and draft.subject is not None:
        # Ordered: a retry of older work must not run after newer work and undo it.
        gates.append(Gate(f"merge/{spec.name}/{draft.subject}", 1, ordered=True))
    if len(gates) > 1:
        gates.sort(key=lambda gate: (not gate.ordered, gate.step > 0, gate.limit or SLOTS_MOST))
    return tuple(gates)


def _weight(spec: QueueSpec, term: Term, draft: Draft) -> int:
    """Where every class has a gate of its own there are no turns to take."""
    share = spec.share
    if share is None or term.per == share.by:
        return 0
    return share.weights.get((draft.tenant if share.by == "tenant" else draft.kind) or "", share.default)


def _gate(queue: str, term: Term, value: str | None, cost: int, share: int) -> Gate:
    match term:
        case InOrder(per, dead_head):
            return Gate(f"order/{queue}/{per}/{value}", 1, ordered=True, blocks=dead_head == "block")
        case AtMost(limit, per, shared):
            return _checked(Gate(_named("cap", queue, shared, per, value), limit, cost=cost, share=share))
        case Rate(_, _, per, _, shared):
            name = _named("rate", queue, shared, per, value)
            return _checked(Gate(name, term.most, cost=cost, step=term.step, share=share))
        case Until(condition, _):
            return Gate(condition_gate(condition, value), 0, cost=cost, share=share)


def _checked(gate: Gate) -> Gate:
    if gate.cost > gate.limit:
        reason = f"{gate.cost} is more than {gate.name} ever lets in at once, which is {gate.limit}"
        raise Invalid("cost", reason, "split the job, or give the gate more room")
    return gate


def _named(sort: str, queue: str, shared: str | None, per: Field | None, value: str | None) -> str:
    """No queue has a name with an @."""
    of = queue if shared is None else f"@{shared}"
    return f"{sort}/{of}" if per is None else f"{sort}/{of}/{per}/{value}"


def _value(draft: Draft, per: Field) -> str | None:
    match per:
        case "subject":
            return draft.subject
        case "tenant":
            return draft.tenant
        case "kind":
            return draft.kind
