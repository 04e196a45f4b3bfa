"""Which jobs give way in a full queue: the oldest, or the lowest of all, newcomers included; never more than needed."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.core.policy import Shed
from forebay.engine.intake import RankedId, victims

RANKS = st.lists(st.integers(-3, 3), max_size=8)


def places(ranks: list[int], first: int = 1) -> list[RankedId]:
    return [(rank, job_id) for job_id, rank in enumerate(ranks, first)]


@given(RANKS, st.integers(1, 9))
def test_the_oldest_give_way(ranks: list[int], excess: int) -> None:
    unclaimed = places(ranks)
    found = victims(Shed("oldest"), excess, unclaimed, [(0, 99)])
    assert found == (list(range(1, excess + 1)) if excess <= len(ranks) else None)


@given(RANKS, RANKS, st.integers(1, 9))
def test_the_lowest_of_all_give_way_unless_they_are_newcomers(ranks: list[int], new: list[int], excess: int) -> None:
    unclaimed, arriving = places(ranks), places(new, 100)
    lowest = sorted([*unclaimed, *arriving], reverse=True)[:excess]
    expected = None if len(unclaimed) < excess or set(lowest) & set(arriving) else [job_id for _, job_id in lowest]
    assert victims(Shed("lowest"), excess, sorted(unclaimed, reverse=True), arriving) == expected


def test_no_more_are_looked_at_than_give_way() -> None:
    unclaimed = iter([(0, 1), (0, 2), (0, 3)])
    assert victims(Shed(), 2, unclaimed, []) == [1, 2]
    assert next(unclaimed) == (0, 3)
