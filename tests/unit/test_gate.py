"""Which gates a draft is stamped with: their names, their slots, their order, and that a missing field is no gate."""

import pytest

from forebay.core.gate import Gate, condition_gate, gates_for
from forebay.core.job import Draft
from forebay.core.policy import All, AtMost, Eligibility, Immediate, InOrder, LatestWins, Until
from forebay.core.spec import QueueSpec

FULL = Draft("email", tenant="acme", subject="order 42")
BARE = Draft("email")


def gates(eligibility: Eligibility, draft: Draft = FULL) -> tuple[Gate, ...]:
    return gates_for(QueueSpec(name="q", eligibility=eligibility), draft)


@pytest.mark.parametrize(
    ("eligibility", "gate"),
    [
        (AtMost(5), Gate("cap/q", 5)),
        (AtMost(5, per="tenant"), Gate("cap/q/tenant/acme", 5)),
        (AtMost(5, per="subject"), Gate("cap/q/subject/order 42", 5)),
        (AtMost(5, per="kind"), Gate("cap/q/kind/email", 5)),
        (InOrder(), Gate("order/q/subject/order 42", 1, ordered=True)),
        (InOrder("tenant", "block"), Gate("order/q/tenant/acme", 1, ordered=True, blocks=True)),
        (InOrder("kind"), Gate("order/q/kind/email", 1, ordered=True)),
        (Until("paid"), Gate("until/paid", 0)),
        (Until("paid", per="tenant"), Gate("until/paid/acme", 0)),
    ],
)
def test_a_term_is_a_gate(eligibility: Eligibility, gate: Gate) -> None:
    assert gates(eligibility) == (gate,)


def test_an_immediate_queue_has_no_gates() -> None:
    assert gates(Immediate()) == gates(All(())) == ()


def test_a_job_without_the_field_is_not_held_by_that_term() -> None:
    everything = AtMost(5, per="tenant") & InOrder() & Until("paid", per="subject")
    assert gates(everything, BARE) == ()
    assert gates(everything & AtMost(9), BARE) == (Gate("cap/q", 9),)
    assert len(gates(everything)) == 3


def test_the_tightest_gate_comes_first() -> None:
    """Ordered ones, then few slots before many; a condition counts as the widest."""
    names = [
        gate.name
        for gate in gates(AtMost(100) & AtMost(2, per="tenant") & Until("paid") & AtMost(7, per="kind") & InOrder())
    ]
    assert names == ["order/q/subject/order 42", "cap/q/tenant/acme", "cap/q/kind/email", "cap/q", "until/paid"]


def test_a_merging_queue_runs_one_at_a_time_per_subject_in_order() -> None:
    spec = QueueSpec(name="q", merge=LatestWins(), eligibility=AtMost(3))
    assert gates_for(spec, FULL) == (Gate("merge/q/order 42", 1, ordered=True), Gate("cap/q", 3))
    assert gates_for(spec, BARE) == (Gate("cap/q", 3),)


def test_gates_of_two_queues_are_two_gates_but_a_condition_is_one() -> None:
    one, other = QueueSpec(name="a", eligibility=AtMost(1)), QueueSpec(name="b", eligibility=AtMost(1))
    assert gates_for(one, BARE) != gates_for(other, BARE)
    one, other = QueueSpec(name="a", eligibility=Until("x")), QueueSpec(name="b", eligibility=Until("x"))
    assert gates_for(one, BARE) == gates_for(other, BARE) == (Gate(condition_gate("x"), 0),)


def test_the_name_of_a_condition_is_what_set_gate_takes() -> None:
    assert condition_gate("paid") == "until/paid"
    assert condition_gate("paid", "acme") == gates(Until("paid", per="tenant"))[0].name
