"""A rank is one integer, and its order is the obvious one: for each selection the plain sort that a reader expects."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.entries import LEADING, TIMED, UNTIMED
from forebay.core.instant import hours, micros, minutes, seconds
from forebay.core.job import Draft
from forebay.core.limits import MAX_AGING_STEP, MAX_DURATION, MAX_INSTANT, MAX_PRIORITY
from forebay.core.policy import Aging, Deadline, Fifo, Priority, Selection
from forebay.core.stamp import rank_at, rank_back, rank_rule
from tests.unit.values import NOW, SECOND

Arrival: TypeAlias = tuple[Draft, int]
"""A draft and its due time; if that is before `NOW + 60 s`, it is written when it is due, otherwise at that instant."""

FOREVER = MAX_INSTANT + 1
WRITTEN = NOW + 60 * SECOND
DRAFTS = st.builds(
    Draft,
    kind=st.just("k"),
    priority=st.integers(-5, 5),
    deadline=st.none() | st.integers(NOW, NOW + 5),
)
ARRIVALS = st.lists(st.tuples(DRAFTS, st.integers(NOW, NOW + 5 * 60 * SECOND)), max_size=30)


def ranked(selection: Selection, arrivals: list[Arrival]) -> list[int]:
    """Positions in the order in which a store would claim them."""
    ranks = [rank_at(*rank_rule(selection, draft), due_at, min(due_at, WRITTEN)) for draft, due_at in arrivals]
    return sorted(range(len(arrivals)), key=lambda n: (ranks[n], n))


@pytest.mark.parametrize(
    ("selection", "obvious"),
    [
        (Fifo(), lambda draft, due_at: (due_at <= WRITTEN, due_at)),
        (Priority(), lambda draft, due_at: -draft.priority),
        (Aging(minutes(1)), lambda draft, due_at: due_at - draft.priority * 60 * SECOND),
        (Aging(seconds(0.5)), lambda draft, due_at: due_at - draft.priority * SECOND // 2),
        (Deadline(), lambda draft, due_at: FOREVER if draft.deadline is None else draft.deadline),
    ],
    ids=["fifo", "priority", "aging", "fast aging", "deadline"],
)
@given(arrivals=ARRIVALS)
def test_the_order_of_ranks_is_the_obvious_sort(
    selection: Selection, obvious: Callable[[Draft, int], int | tuple[bool, int]], arrivals: list[Arrival]
) -> None:
    expected = sorted(range(len(arrivals)), key=lambda n: (obvious(*arrivals[n]), n))
    assert ranked(selection, arrivals) == expected


def test_a_retry_keeps_its_priority_and_its_deadline_but_goes_to_the_end_of_a_fifo() -> None:
    draft = Draft("k", priority=3, deadline=NOW + 9)
    for selection, moves in ((Fifo(), True), (Priority(), False), (Deadline(), False), (Aging(), True)):
        rule = rank_rule(selection, draft)
        assert (rank_at(*rule, NOW + 1, NOW + 1) > rank_at(*rule, NOW, NOW)) == moves


@pytest.mark.parametrize("due_at", [1, NOW, MAX_INSTANT + 2 * micros(MAX_DURATION)])
@pytest.mark.parametrize("other", [0, NOW, MAX_INSTANT])
def test_a_caller_that_had_to_wait_goes_before_all_that_did_not(due_at: int, other: int) -> None:
    rule = rank_rule(Fifo(), Draft("k"))
    assert rank_at(*rule, due_at, due_at - 1) < 0 <= rank_at(*rule, other, other)


def jobs_that_pass(selection: Selection, low: Draft, high: Draft) -> int:
    """`low` arrives first, then one `high` every second for an hour: how many of them are served before it?"""
    arrivals = [(low, NOW), *((high, NOW + second * SECOND) for second in range(1, 3_600))]
    return ranked(selection, arrivals).index(0)


@given(st.integers(0, MAX_INSTANT), st.integers(0, MAX_INSTANT))
def test_what_goes_back_leads_a_fifo_by_the_time_that_it_had(mine: int, other: int) -> None:
    back = rank_back(rank_at(0, LEADING, mine, mine), LEADING)
    assert back < rank_at(0, LEADING, other, other), "before every job that did not have to wait"
    assert (back < rank_at(0, LEADING, other, other - 1)) == (mine < other), "and by its time among those that had to"
    assert rank_back(back, LEADING) == back
    assert rank_back(mine, TIMED) == rank_back(mine, UNTIMED) == mine


def test_strict_priority_starves_the_low() -> None:
    assert jobs_that_pass(Priority(), Draft("low"), Draft("high", priority=1)) == 3_599


@pytest.mark.parametrize("points", [1, 5, 20])
def test_with_aging_no_job_starves(points: int) -> None:
    """A lead of n points is worth n minutes, then the older one goes first."""
    passed = jobs_that_pass(Aging(minutes(1)), Draft("low"), Draft("high", priority=points))
    assert passed == points * 60 - 1


def test_without_a_deadline_comes_last() -> None:
    arrivals = [(Draft("k"), NOW), (Draft("k", deadline=MAX_INSTANT - 1), NOW), (Draft("k", deadline=NOW), NOW)]
    assert ranked(Deadline(), arrivals) == [2, 1, 0]


@pytest.mark.parametrize("selection", [Fifo(), Priority(), Aging(MAX_AGING_STEP), Aging(hours(1)), Deadline()])
@pytest.mark.parametrize("priority", [-MAX_PRIORITY, 0, MAX_PRIORITY])
@pytest.mark.parametrize("deadline", [None, 0, MAX_INSTANT])
@pytest.mark.parametrize("due_at", [0, MAX_INSTANT + 2 * micros(MAX_DURATION)])
def test_a_rank_fits_64_bits_at_the_extremes(
    selection: Selection, priority: int, deadline: int | None, due_at: int
) -> None:
    rule = rank_rule(selection, Draft("k", priority=priority, deadline=deadline))
    assert -(2**63) <= rule.base < 2**63
    for now in (due_at - 1, due_at):
        assert -(2**63) <= rank_at(*rule, due_at, now) < 2**63
