"""Turns are virtual time: in any stretch classes with work are served by their weights, to one start each."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.limits import MAX_WEIGHT
from forebay.core.share import UNIT, lifted, turn_after


def starts(weights: list[int], count: int) -> list[int]:
    """Which class starts, while all have work."""
    turns, order = [0] * len(weights), []
    for _ in range(count):
        cls = min(range(len(weights)), key=lambda each: turns[each])
        turns[cls] = turn_after(turns[cls], weights[cls])
        order.append(cls)
    return order


@given(st.lists(st.integers(1, 16), min_size=2, max_size=5), st.integers(1, 200))
def test_in_any_stretch_two_classes_differ_by_one_start_each(weights: list[int], count: int) -> None:
    order = starts(weights, count)
    for one, other in combinations(range(len(weights)), 2):
        lead, least, most = 0, 0, 0
        for cls in order:
            lead += (cls == one) * weights[other] - (cls == other) * weights[one]
            least, most = min(least, lead), max(most, lead)
        assert most - least <= weights[one] + weights[other]


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [5, 3, 2], [16, 15, 7, 1]])
def test_a_round_of_all_weights_is_exact(weights: list[int]) -> None:
    served = Counter(starts(weights, 10 * sum(weights)))
    assert [served[cls] for cls in range(len(weights))] == [10 * weight for weight in weights]


def test_every_weight_is_exact_to_a_ten_thousandth_of_a_percent() -> None:
    for weight in range(1, MAX_WEIGHT + 1):
        step = turn_after(0, weight)
        assert 0 <= UNIT - step * weight < weight <= UNIT // 1_000_000 * 2
        assert (UNIT % weight == 0) or weight > 16


@given(st.integers(0, 10**12), st.integers(1, MAX_WEIGHT), st.integers(1, 50))
def test_many_starts_are_as_many_single_ones(turn: int, weight: int, count: int) -> None:
    one_by_one = turn
    for _ in range(count):
        one_by_one = turn_after(one_by_one, weight)
    assert turn_after(turn, weight, count) == one_by_one


def test_idle_time_is_not_saved_up_and_what_was_had_stays_had() -> None:
    assert lifted(5, 9) == 9
    assert lifted(9, 5) == 9
