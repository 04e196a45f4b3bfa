"""A rate is one instant: however starts are tried, any length of time has at most the burst and what it earns."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.gate import Gate, gates_for, opens_at, tide_after
from forebay.core.instant import days, micros, minutes, seconds
from forebay.core.job import Draft
from forebay.core.limits import INSTANT_MOST, RATE_STEP_LEAST
from forebay.core.policy import AtMost, InOrder, Rate, Until
from forebay.core.spec import QueueSpec
from tests.unit.values import NOW, RATES, SECOND

Try = tuple[int, int]
"""So long after the last one, a job of this cost."""


def starts(gate: Gate, tries: Sequence[Try]) -> list[tuple[int, int]]:
    """When which cost was let in."""
    now, tide, let_in = NOW, 0, []
    for after, cost in tries:
        now += after
        one = Gate(gate.name, gate.limit, cost=min(cost, gate.limit), step=gate.step)
        if opens_at(tide, one) <= now:
            tide = tide_after(tide, one, now)
            let_in.append((now, one.cost))
    return let_in


@given(st.integers(1, 20), st.integers(1, 50), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 5)), max_size=60))
def test_any_length_of_time_has_at_most_the_burst_and_what_it_earns(burst: int, step: int, tries: list[Try]) -> None:
    found = starts(Gate("rate/q", burst, step=step), tries)
    for place, (begin, _) in enumerate(found):
        units = 0
        for end, cost in found[place:]:
            units += cost
            assert (units - burst) * step <= end - begin


@given(st.integers(1, 20), st.integers(1, 50))
def test_whoever_always_tries_gets_all_that_the_rate_earns(burst: int, step: int) -> None:
    found = starts(Gate("rate/q", burst, step=step), [(1, 1), *[(0, 1)] * burst] * (40 * step))
    assert len(found) == burst + 39


@given(st.integers(1, 9), st.integers(1, 50), st.integers(0, 300), st.integers(1, 9))
def test_it_opens_at_that_instant_and_not_before(burst: int, step: int, ahead: int, cost: int) -> None:
    tide, gate = NOW + ahead, Gate("rate/q", burst, cost=cost, step=step)
    opens = opens_at(tide, gate)
    if cost > burst:
        assert opens == tide
    else:
        assert tide_after(tide, gate, max(opens, tide - burst * step)) - burst * step <= max(opens, NOW + ahead)
        assert opens + burst * step == tide + cost * step


def test_a_tide_that_has_passed_says_nothing() -> None:
    gate = Gate("rate/q", 3, step=SECOND)
    for tide in (0, NOW - 1, NOW):
        assert opens_at(tide, gate) <= NOW
        assert tide_after(tide, gate, NOW) == NOW + SECOND


def test_the_operators_number_is_how_many_may_start_at_once() -> None:
    gate, tide = Gate("rate/q", 3, step=SECOND), NOW + SECOND
    assert opens_at(tide, gate) == NOW - SECOND
    assert opens_at(tide, gate, 1) == NOW + SECOND
    assert opens_at(tide, gate, 0) == INSTANT_MOST


@given(RATES)
def test_a_rate_is_never_passed_by_rounding(rate: Rate) -> None:
    assert rate.step * rate.limit >= micros(rate.every) > (rate.step - 1) * rate.limit
    assert rate.step >= RATE_STEP_LEAST


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Rate(0), "not an integer in 1"),
        (lambda: Rate(10_001), "more than one in 100 µs"),
        (lambda: Rate(1, days(4_000)), "outside"),
        (lambda: Rate(1, burst=0), "not an integer in 1"),
        (lambda: Rate(1, days(3_660), burst=2), "not an integer in 1 … 1"),
        (lambda: Rate(1, shared="a b"), "not a name"),
        (lambda: AtMost(1, shared=""), "not a name"),
        (lambda: Rate(1) & Rate(2), "limit the same thing"),
    ],
)
def test_what_is_no_rate_is_refused(make: object, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        make()  # type: ignore[operator]


def test_a_draft_takes_what_it_costs_of_each_gate_but_a_line() -> None:
    spec = QueueSpec(
        name="q",
        eligibility=Rate(100, minutes(1), burst=8)
        & AtMost(9, per="tenant")
        & AtMost(5, shared="gpu")
        & Until("paid")
        & InOrder(),
    )
    assert gates_for(spec, Draft("a", tenant="acme", subject="s", cost=4)) == (
        Gate("order/q/subject/s", 1, ordered=True),
        Gate("cap/@gpu", 5, cost=4),
        Gate("cap/q/tenant/acme", 9, cost=4),
        Gate("until/paid", 0, cost=4),
        Gate("rate/q", 8, cost=4, step=600_000),
    )


@pytest.mark.parametrize("term", [AtMost(3), Rate(100, burst=3), Rate(3, seconds(1), per="kind", shared="api")])
def test_who_costs_more_than_a_gate_ever_has_is_refused(term: AtMost | Rate) -> None:
    spec = QueueSpec(name="q", eligibility=term)
    assert len(gates_for(spec, Draft("a", cost=3))) == 1
    with pytest.raises(Invalid, match=r"4 is more than .* ever lets in at once, which is 3"):
        gates_for(spec, Draft("a", cost=4))
