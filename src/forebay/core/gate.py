"""What may hold a due job back. Core stamps a job with its gates; a store only counts slots.

A slot is taken when a job becomes ready and freed when it is settled. A job that finds a gate closed parks in
`waiting`: it is never looked at by a claim, so a closed gate costs the others nothing.
An ordered gate admits one job at a time, always the one with the smallest id that is not finished.
"""

from msgspec import Struct

from forebay.core.job import Draft
from forebay.core.limits import SLOTS_MOST
from forebay.core.policy import AtMost, Field, InOrder, Until, terms_of
from forebay.core.spec import QueueSpec


class Gate(Struct, frozen=True, array_like=True):
    """One gate in front of one job. `blocks`: a dead head keeps the line closed. `limit` 0: closed until `set_gate`."""

    name: str
    limit: int
    ordered: bool = False
    blocks: bool = False


def condition_gate(condition: str, value: str | None = None) -> str:
    """The name under which `set_gate` opens an `Until(condition, per=…)`."""
    return f"until/{condition}" if value is None else f"until/{condition}/{value}"


def gates_for(spec: QueueSpec, draft: Draft) -> tuple[Gate, ...]:
    """The draft's gates, tightest first: a job should park where it is likeliest to wait longest.

    A job without the field that a term looks at is not held by that term.
    """
    gates = []
    for term in terms_of(spec.eligibility):
        value = None if term.per is None else _value(draft, term.per)
        if term.per is not None and value is None:
            continue
        match term:
            case InOrder(per, dead_head):
                gates.append(Gate(f"order/{spec.name}/{per}/{value}", 1, ordered=True, blocks=dead_head == "block"))
            case AtMost(limit, None):
                gates.append(Gate(f"cap/{spec.name}", limit))
            case AtMost(limit, per):
                gates.append(Gate(f"cap/{spec.name}/{per}/{value}", limit))
            case Until(condition, _):
                gates.append(Gate(condition_gate(condition, value), 0))
    if spec.merge is not None and draft.subject is not None:
        # Ordered: a retry of older work must not run after newer work and undo it.
        gates.append(Gate(f"merge/{spec.name}/{draft.subject}", 1, ordered=True))
    if len(gates) > 1:
        gates.sort(key=lambda gate: (not gate.ordered, gate.limit or SLOTS_MOST))
    return tuple(gates)


def _value(draft: Draft, per: Field) -> str | None:
    match per:
        case "subject":
            return draft.subject
        case "tenant":
            return draft.tenant
        case "kind":
            return draft.kind
