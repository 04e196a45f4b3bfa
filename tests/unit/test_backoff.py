"""How long a failed job rests: exact values, a cap that holds for any attempt, and a spread that breaks up storms.

I18: of 1,000 jobs that fail together and return over ten seconds or more, no second sees more than 15 %.
"""

import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.instant import days, micros, minutes, ms, seconds
from forebay.core.limits import MAX_DURATION
from forebay.core.outcome import Failed, Failure, Retry
from forebay.core.policy import Backoff, Exponential, Fixed, FullJitter, Routing
from tests.unit.values import SECOND, a_job, jitters

ALMOST_ONE = 1 - 2**-53
ATTEMPTS = st.integers(0, 10**9)
DRAWS = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("attempt", "draw", "delay"),
    [
        (0, 0.5, 0.5),
        (1, 0.0, 0.0),
        (1, 0.5, 1.0),
        (2, 0.5, 2.0),
        (5, 0.25, 8.0),
        (6, 0.5, 30.0),
        (7, 0.5, 30.0),
        (10**9, 0.5, 30.0),
    ],
)
def test_full_jitter_is_a_share_of_the_doubled_base_up_to_the_cap(attempt: int, draw: float, delay: float) -> None:
    assert FullJitter(seconds(1), seconds(60)).delay(attempt, draw) == delay * SECOND


@pytest.mark.parametrize("base", [1, 3, 500])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("draw", [0.0, 0.25, 0.5])
def test_exponential_is_the_formula_of_the_requirements(base: int, spread: float, draw: float) -> None:
    """S4.5: min(base · 2^attempt + jitter, max)."""
    backoff = Exponential(ms(base), minutes(1), spread)
    for attempt in range(20):
        grown = base * 1_000 * 2**attempt
        jitter = int(grown * spread * draw)
        assert backoff.delay(attempt, draw) == min(grown + jitter, 60 * SECOND)


def test_fixed_is_always_the_same() -> None:
    assert {Fixed(seconds(3)).delay(attempt, draw) for attempt in (0, 1, 10**9) for draw in (0.0, 0.9)} == {3 * SECOND}
    assert Fixed().delay(1, 0.5) == 0


@given(jitters(), ATTEMPTS, DRAWS)
def test_the_cap_holds_for_any_attempt(backoff: FullJitter | Exponential, attempt: int, draw: float) -> None:
    delay = backoff.delay(attempt, draw)
    assert type(delay) is int
    assert 0 <= delay <= micros(backoff.cap)


@pytest.mark.parametrize("backoff", [FullJitter(ms(1), MAX_DURATION), Exponential(ms(1), MAX_DURATION)])
def test_even_the_smallest_base_reaches_the_largest_cap(backoff: Backoff) -> None:
    delay = backoff.delay(10**9, ALMOST_ONE)
    assert micros(MAX_DURATION) - 1 <= delay <= micros(MAX_DURATION)


@given(jitters(), st.integers(0, 100), DRAWS)
def test_a_later_attempt_never_rests_shorter_for_the_same_draw(
    backoff: FullJitter | Exponential, attempt: int, draw: float
) -> None:
    """Monotone for every draw, and so in expectation."""
    assert backoff.delay(attempt, draw) <= backoff.delay(attempt + 1, draw)


def test_the_mean_doubles_until_the_cap() -> None:
    backoff = FullJitter(seconds(1), seconds(64))
    draws = [(n + 0.5) / 1_000 for n in range(1_000)]
    means = [sum(backoff.delay(attempt, draw) for draw in draws) / 1_000 for attempt in range(9)]
    assert means == pytest.approx([SECOND * min(2**attempt, 64) / 2 for attempt in range(9)], rel=1e-3)


def fullest_second(backoff: Backoff, attempt: int) -> float:
    """1,000 jobs fail at once, and decide() sends them away; the share of those that return in the busiest second."""
    rng = random.Random(18)
    routing = Routing(backoff=backoff)
    bins: Counter[int] = Counter()
    for _ in range(1_000):
        verdict = decide(a_job(attempt, 99), Failed(Failure("Down")), routing, rng.random())
        assert isinstance(verdict, Retry)
        bins[verdict.after // SECOND] += 1
    return max(bins.values()) / 1_000


@pytest.mark.parametrize(
    ("backoff", "attempt"),
    [
        (FullJitter(seconds(5), minutes(1)), 1),
        (FullJitter(seconds(10), minutes(1)), 1),
        (FullJitter(ms(500), minutes(10)), 5),
        (FullJitter(ms(500), seconds(10)), 25),
        (Exponential(seconds(10), minutes(1), spread=0.5), 1),
    ],
)
def test_a_thousand_failures_do_not_return_together(backoff: Backoff, attempt: int) -> None:
    assert fullest_second(backoff, attempt) <= 0.15


@pytest.mark.parametrize("backoff", [Fixed(seconds(10)), Exponential(seconds(10), minutes(1), spread=0.0)])
def test_without_jitter_they_do(backoff: Backoff) -> None:
    assert fullest_second(backoff, 1) == 1.0


@pytest.mark.parametrize(
    ("base", "cap"),
    [
        (timedelta(0), seconds(1)),
        (timedelta(microseconds=999), seconds(1)),
        (seconds(-1), seconds(1)),
        (seconds(2), seconds(1)),
        (seconds(1), MAX_DURATION + ms(1)),
        (days(4_000), days(4_000)),
    ],
)
def test_absurd_bounds_are_refused(base: timedelta, cap: timedelta) -> None:
    with pytest.raises(Invalid, match="backoff"):
        FullJitter(base, cap)
    with pytest.raises(Invalid, match="backoff"):
        Exponential(base, cap)


@pytest.mark.parametrize("spread", [-0.1, 1.1, float("nan"), float("inf")])
def test_an_absurd_spread_is_refused(spread: float) -> None:
    with pytest.raises(Invalid, match="spread"):
        Exponential(spread=spread)


@pytest.mark.parametrize("duration", [seconds(-1), MAX_DURATION + ms(1)])
def test_an_absurd_fixed_delay_is_refused(duration: timedelta) -> None:
    with pytest.raises(Invalid, match="Fixed"):
        Fixed(duration)


def test_a_number_is_not_a_length_of_time() -> None:
    with pytest.raises(Invalid, match="float is not a duration"):
        FullJitter(0.5, seconds(1))  # type: ignore[arg-type]
