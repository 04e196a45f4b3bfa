"""A rate is one instant: however starts are tried, any length of time has at most the burst and what it earns."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.gate import Gate, opens_at, tat_after
from forebay.core.instant import days, micros
from forebay.core.limits import MAX_INSTANT, MIN_RATE_STEP
from forebay.core.policy import AtMost, Rate
from tests.unit.values import NOW, RATES, SECOND

Try = tuple[int, int]
"""So long after the last one, a job of this cost."""


def starts(gate: Gate, tries: Sequence[Try]) -> list[tuple[int, int]]:
    """When which cost started."""
    now, tat, found = NOW, 0, []
    for after, wanted in tries:
        now += after
        cost = min(wanted, gate.limit)
        if opens_at(gate, tat, cost) <= now:
            tat = tat_after(gate, tat, cost, now)
            found.append((now, cost))
    return found


@given(st.integers(1, 20), st.integers(1, 50), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 5)), max_size=60))
def test_any_length_of_time_has_at_most_the_burst_and_what_it_earns(burst: int, step: int, tries: list[Try]) -> None:
    found = starts(Gate("rate/q", burst, step), tries)
    for place, (begin, _) in enumerate(found):
        units = 0
        for end, cost in found[place:]:
            units += cost
            assert (units - burst) * step <= end - begin


@given(st.integers(1, 20), st.integers(1, 50))
def test_a_caller_that_always_tries_gets_all_that_the_rate_earns(burst: int, step: int) -> None:
    found = starts(Gate("rate/q", burst, step), [(1, 1), *[(0, 1)] * burst] * (40 * step))
    assert len(found) == burst + 39


@given(st.integers(1, 9), st.integers(1, 50), st.integers(0, 300), st.integers(1, 9))
def test_it_opens_at_that_instant_and_not_before(burst: int, step: int, ahead: int, cost: int) -> None:
    tat, gate = NOW + ahead, Gate("rate/q", burst, step)
    opens = opens_at(gate, tat, cost)
    if cost > burst:
        assert opens == tat
    else:
        assert tat_after(gate, tat, cost, max(opens, tat - burst * step)) - burst * step <= max(opens, NOW + ahead)
        assert opens + burst * step == tat + cost * step


def test_an_arrival_time_that_has_passed_says_nothing() -> None:
    gate = Gate("rate/q", 3, SECOND)
    for tat in (0, NOW - 1, NOW):
        assert opens_at(gate, tat, 1) <= NOW
        assert tat_after(gate, tat, 1, NOW) == NOW + SECOND


def test_the_operators_number_is_how_many_may_start_at_once() -> None:
    gate, tat = Gate("rate/q", 3, SECOND), NOW + SECOND
    assert opens_at(gate, tat, 1) == NOW - SECOND
    assert opens_at(gate, tat, 1, 1) == NOW + SECOND
    assert opens_at(gate, tat, 1, 0) == MAX_INSTANT


@given(RATES)
def test_a_rate_is_never_passed_by_rounding(rate: Rate) -> None:
    assert rate.step * rate.limit >= micros(rate.every) > (rate.step - 1) * rate.limit
    assert rate.step >= MIN_RATE_STEP


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Rate(0), "not an integer in 1"),
        (lambda: Rate(10_001), "more than one in 100 µs"),
        (lambda: Rate(1, days(4_000)), "4000 days is not in 1 ms … "),
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
