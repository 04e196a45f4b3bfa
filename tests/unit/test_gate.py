"""The gates, the lane and the line of a draft: their names, whose numbers count, and what a missing field means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.gate import (
    Gate,
    Line,
    check_cost,
    checked_gate,
    condition_gate,
    gate_names,
    gate_of,
    has_gate,
    is_open,
    lane_key,
    whole_gates,
)
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.policy import All, AtMost, Eligibility, Immediate, InOrder, LatestWins, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from tests.unit.values import NOW, SECOND

FULL = Draft("email", tenant="acme", subject="order 42")
BARE = Draft("email")


def spec(eligibility: Eligibility, name: str = "q") -> QueueSpec:
    return QueueSpec(name=name, eligibility=eligibility)


def lane_gates(of: QueueSpec, draft: Draft) -> tuple[str, ...]:
    return Stamper(of).lane_gates(draft)


def line_of(of: QueueSpec, draft: Draft) -> Line | None:
    return Stamper(of).line(draft)


@pytest.mark.parametrize(
    ("term", "gate"),
    [
        (AtMost(5), Gate("cap/q", 5)),
        (AtMost(5, shared="gpu"), Gate("cap/@gpu", 5)),
        (Rate(5, seconds(1), burst=2), Gate("rate/q", 2, 200_000)),
        (Rate(5, seconds(1), shared="api"), Gate("rate/@api", 5, 200_000)),
    ],
)
def test_a_term_without_a_field_is_a_gate_of_the_whole_queue(term: Eligibility, gate: Gate) -> None:
    assert (whole_gates(spec(term)), lane_gates(spec(term), FULL)) == ((gate,), ())
    assert gate_of(spec(term), gate.name) is None


@pytest.mark.parametrize(
    ("term", "gate"),
    [
        (AtMost(5, per="tenant"), Gate("cap/q/tenant/acme", 5)),
        (AtMost(5, per="subject"), Gate("cap/q/subject/order 42", 5)),
        (AtMost(5, per="kind"), Gate("cap/q/kind/email", 5)),
        (AtMost(5, per="kind", shared="gpu"), Gate("cap/@gpu/kind/email", 5)),
        (Rate(5, seconds(1), "tenant"), Gate("rate/q/tenant/acme", 5, 200_000)),
        (Until("paid"), Gate("until/paid", 0)),
        (Until("paid", per="tenant"), Gate("until/paid/acme", 0)),
    ],
)
def test_a_term_with_a_field_and_every_condition_is_a_gate_of_the_lane(term: Eligibility, gate: Gate) -> None:
    assert (whole_gates(spec(term)), lane_gates(spec(term), FULL)) == ((), (gate.name,))
    assert gate_of(spec(term), gate.name) == gate


def test_an_immediate_queue_has_no_gates() -> None:
    for eligibility in (Immediate(), All(())):
        assert (whole_gates(spec(eligibility)), lane_gates(spec(eligibility), FULL)) == ((), ())
        assert line_of(spec(eligibility), FULL) is None


def test_a_job_without_the_field_is_not_held_by_that_term() -> None:
    everything = spec(AtMost(5, per="tenant") & InOrder() & Until("paid", per="subject"))
    assert (lane_gates(everything, BARE), line_of(everything, BARE)) == ((), None)
    assert len(lane_gates(everything, FULL)) == 2


def test_the_gates_of_a_lane_are_in_the_order_of_their_names_and_whole_ones_in_that_of_the_spec() -> None:
    terms = (
        Until("paid") & Rate(2) & AtMost(7, per="kind") & AtMost(3) & Rate(4, per="tenant") & AtMost(2, per="tenant")
    )
    names = ["cap/q/kind/email", "cap/q/tenant/acme", "rate/q/tenant/acme", "until/paid"]
    assert list(lane_gates(spec(terms), FULL)) == names == sorted(names)
    assert [gate.name for gate in whole_gates(spec(terms))] == ["rate/q", "cap/q"]


def test_a_stamped_gate_has_the_numbers_of_the_spec_of_now_or_none() -> None:
    name = "cap/q/tenant/a/b"
    assert gate_of(spec(AtMost(2, per="tenant")), name) == Gate(name, 2)
    assert gate_of(spec(AtMost(9, per="tenant")), name) == Gate(name, 9)
    for other in (AtMost(2), AtMost(2, per="kind"), Rate(2, per="tenant"), Until("cap"), AtMost(2, "tenant", "x")):
        assert gate_of(spec(other), name) is None
    assert gate_of(spec(Until("go", per="tenant")), "until/go") is None
    assert gate_of(spec(Until("go")), "until/go/acme") is None


def test_a_line_is_the_order_of_a_field_or_the_newest_of_a_subject() -> None:
    assert line_of(spec(InOrder()), FULL) == Line("order/q/subject/order 42", False)
    assert line_of(spec(InOrder("tenant", "block") & AtMost(2)), FULL) == Line("order/q/tenant/acme", True)
    merging = QueueSpec(name="q", merge=LatestWins(), eligibility=AtMost(3))
    assert line_of(merging, FULL) == Line("merge/q/order 42", False)
    assert line_of(merging, BARE) is None
    assert (lane_gates(spec(InOrder()), FULL), whole_gates(spec(InOrder()))) == ((), ())


def test_two_orders_in_one_queue_are_refused() -> None:
    with pytest.raises(Invalid, match="two InOrder terms"):
        InOrder("subject") & InOrder("tenant")


def test_gates_of_two_queues_are_two_gates_but_a_condition_is_one() -> None:
    assert whole_gates(spec(AtMost(1), "a")) != whole_gates(spec(AtMost(1), "b"))
    assert lane_gates(spec(Until("x"), "a"), BARE) == lane_gates(spec(Until("x"), "b"), BARE) == (condition_gate("x"),)


def test_the_name_of_a_condition_is_what_set_gate_takes() -> None:
    assert condition_gate("paid") == "until/paid"
    assert (condition_gate("paid", "acme"),) == lane_gates(spec(Until("paid", per="tenant")), FULL)


@pytest.mark.parametrize("name", ["order/q/subject/s", "merge/q/s"])
def test_a_line_has_no_number_to_set(name: str) -> None:
    with pytest.raises(Invalid, match="is a line, which has no slots"):
        checked_gate(name)


def test_only_names_of_gates_are_names_of_gates() -> None:
    for name in ("cap/q", "rate/@api", "until/go/x"):
        assert checked_gate(name) == name
    for name in ("", "cap", "cap/", "door/q", "until"):
        with pytest.raises(Invalid, match="no gate has such a name"):
            checked_gate(name)


def test_a_queue_knows_what_its_gates_are_called() -> None:
    one = spec(AtMost(2, shared="gpu") & Rate(3) & Until("go", per="kind") & InOrder())
    assert gate_names(one) == ["cap/q", "rate/q", "cap/@gpu", "until/go"]
    assert has_gate(one, "until/go/email")
    assert not has_gate(one, "until/gone")


@given(st.text(max_size=5), st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3))
def test_a_lane_has_a_name_of_its_own(cls: str, gates: list[str]) -> None:
    assert json.loads(lane_key(cls, tuple(gates))) == [cls, *gates]
    assert lane_key(cls, ()) == cls


@given(st.integers(0, 12), st.integers(1, 9), st.integers(0, 9))
def test_room_is_for_the_cost_and_what_costs_more_than_there_is_runs_alone(used: int, cost: int, slots: int) -> None:
    expected = slots > 0 and (used + cost <= slots or (cost > slots and used == 0))
    assert is_open(Gate("cap/q", slots), used, NOW + SECOND, cost, NOW) is expected
    assert is_open(Gate("cap/q", 5), used, 0, cost, NOW, given=slots) is expected


@pytest.mark.parametrize("term", [AtMost(3), Rate(100, burst=3), Rate(3, seconds(1), per="kind", shared="api")])
def test_a_draft_that_costs_more_than_a_gate_ever_has_is_refused(term: AtMost | Rate) -> None:
    check_cost(spec(term), Draft("a", cost=3))
    with pytest.raises(Invalid, match=r"4 is more than .* ever admits at once, which is 3"):
        check_cost(spec(term), Draft("a", cost=4))
    check_cost(spec(AtMost(3, per="tenant")), Draft("a", cost=4))
