"""Deficit round robin keeps its word: shares follow the weights to within one turn, whatever the size of the claims.

Idle time is not saved up, a turn that a claim cuts short goes on in the next one, and nobody is ever left out. Several
who deal for themselves begin apart, so that the rounds they are in favour nobody.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.share import Share, start_of

ENDLESS = 10**9
WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 20), min_size=1)
CLAIMS = st.lists(st.integers(1, 50), min_size=1, max_size=60)
STARTS = st.floats(0.0, 1.0, exclude_max=True)


def busy(weights: dict[str, int], start: float = 0.0) -> Share:
    share = Share(weights, start=start)
    for name in weights:
        share.join(name)
    return share


def served(share: Share, count: int, waiting: dict[str, int] | None = None) -> Counter[str]:
    """What one claim hands out; `waiting` goes down by it."""
    have = waiting if waiting is not None else Counter[str]()
    dealt: Counter[str] = Counter()
    for name, turn in share.deal(count, lambda name: have.get(name, ENDLESS if waiting is None else 0)):
        assert turn > 0
        dealt[name] += turn
        if waiting is not None:
            have[name] -= turn
    return dealt


def evenness(counts: list[int]) -> float:
    """Jain's index: 1 when all have the same."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


@given(WEIGHTS, CLAIMS, STARTS)
def test_shares_are_within_one_turn_of_the_weights_at_any_time(
    weights: dict[str, int], claims: list[int], start: float
) -> None:
    share, total = busy(weights, start), Counter[str]()
    for count in claims:
        dealt = served(share, count)
        assert dealt.total() == count
        total += dealt
        rounds = [total[name] / weight for name, weight in weights.items()]
        assert max(rounds) - min(rounds) <= 1


@given(WEIGHTS, CLAIMS, STARTS)
def test_nobody_waits_longer_than_one_turn_of_everybody_else(
    weights: dict[str, int], claims: list[int], start: float
) -> None:
    share = busy(weights, start)
    since = dict.fromkeys(weights, 0)
    for count in claims:
        for name, turn in share.deal(count, lambda _: ENDLESS):
            since = {other: waited + turn for other, waited in since.items()}
            since[name] = 0
            assert all(waited <= sum(weights.values()) - weights[other] for other, waited in since.items())


@given(WEIGHTS, CLAIMS, STARTS)
def test_a_turn_goes_on_over_claims(weights: dict[str, int], claims: list[int], start: float) -> None:
    """Many small claims hand out exactly what one large claim does, in the same order."""
    small, large = busy(weights, start), busy(weights, start)
    piecewise = [name for count in claims for name, turn in small.deal(count, lambda _: ENDLESS) for _ in range(turn)]
    at_once = [name for name, turn in large.deal(sum(claims), lambda _: ENDLESS) for _ in range(turn)]
    assert piecewise == at_once


@given(WEIGHTS, st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 30)), CLAIMS)
def test_every_job_is_handed_out_once(weights: dict[str, int], jobs: dict[str, int], claims: list[int]) -> None:
    share, left = Share(weights), dict(jobs)
    for name in jobs:
        share.join(name)
    total: Counter[str] = Counter()
    for count in claims:
        expected = min(count, sum(left.values()))
        dealt = served(share, count, left)
        assert dealt.total() == expected
        total += dealt
    assert all(total[name] + left[name] == jobs[name] for name in jobs)


def test_weights_are_turns() -> None:
    share = busy({"a": 3, "b": 1})
    assert share.deal(8, lambda _: ENDLESS) == [("a", 3), ("b", 1), ("a", 3), ("b", 1)]
    assert share.deal(2, lambda _: ENDLESS) == [("a", 2)]
    assert share.deal(3, lambda _: ENDLESS) == [("a", 1), ("b", 1), ("a", 1)]


def test_a_class_without_a_weight_has_the_default_one() -> None:
    share = Share({"a": 3}, default=2)
    share.join("a")
    share.join("z")
    assert share.deal(5, lambda _: ENDLESS) == [("a", 3), ("z", 2)]


def test_an_idle_class_saves_nothing_up() -> None:
    share = Share({"a": 1, "b": 1})
    share.join("a")
    assert served(share, 1_000) == {"a": 1_000}
    share.join("b")
    assert served(share, 100) == {"a": 50, "b": 50}


def test_a_class_that_runs_dry_gives_its_turn_away_and_keeps_no_credit() -> None:
    share = busy({"a": 10, "b": 1})
    assert served(share, 10, {"a": 2, "b": 100}) == {"a": 2, "b": 8}
    share.join("a")
    assert share.deal(11, lambda _: ENDLESS)[:2] == [("b", 1), ("a", 10)]


@pytest.mark.parametrize("times", [1, 2, 50])
def test_joining_again_gives_no_second_place(times: int) -> None:
    share = busy({"a": 1, "b": 1})
    for _ in range(times):
        share.join("a")
    assert served(share, 100) == {"a": 50, "b": 50}


def test_nobody_there_nothing_dealt() -> None:
    assert Share({}).deal(10, lambda _: ENDLESS) == []
    assert busy({"a": 1}).deal(10, lambda _: 0) == []
    assert busy({"a": 1}).deal(0, lambda _: ENDLESS) == []


def test_a_start_is_a_part_of_a_round_that_counts_as_dealt() -> None:
    weights = {"a": 3, "b": 1}
    firsts = [busy(weights, start).deal(4, lambda _: ENDLESS) for start in (0.0, 0.25, 0.5, 0.75)]
    assert firsts[:2] == [[("a", 3), ("b", 1)], [("a", 2), ("b", 1), ("a", 1)]]
    assert firsts[2:] == [[("a", 1), ("b", 1), ("a", 2)], [("b", 1), ("a", 3)]]


def test_a_ring_that_was_empty_begins_at_its_start_again() -> None:
    share = busy({"a": 1, "b": 1}, 0.5)
    for _ in range(2):
        assert share.deal(2, lambda _: 1) == [("b", 1), ("a", 1)]
        for name in "ab":
            share.join(name)


@given(WEIGHTS, st.integers(0, 10**12))
def test_who_is_first_is_spread_over_the_processes_by_weight(weights: dict[str, int], number: int) -> None:
    dealers = 200
    firsts = Counter(busy(weights, start_of(number + each)).deal(1, lambda _: ENDLESS)[0][0] for each in range(dealers))
    for name, weight in weights.items():
        assert abs(firsts[name] - dealers * weight / sum(weights.values())) <= 5


@given(st.integers(0, 10**12), st.integers(1, 400))
def test_eight_who_deal_for_themselves_serve_a_hundred_alike(number: int, dealt: int) -> None:
    """Whatever part of a round they have come to; from one round on."""
    tenants = {f"t{each}": 1 for each in range(100)}
    total: Counter[str] = Counter()
    for each in range(8):
        total += served(busy(tenants, start_of(number + each)), 100 + dealt)
    assert evenness([total[tenant] for tenant in tenants]) >= 0.99
