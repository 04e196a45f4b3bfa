"""Time as integers: the border between what people write and whole microseconds, in both directions."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.instant import (
    checked_instant,
    checked_micros,
    days,
    from_datetime,
    from_seconds,
    hours,
    in_words,
    micros,
    minutes,
    ms,
    seconds,
    to_datetime,
)
from forebay.core.limits import MAX_DURATION, MAX_INSTANT


@given(st.integers(0, MAX_INSTANT))
def test_an_instant_and_its_datetime_are_the_same(instant: int) -> None:
    assert from_datetime(to_datetime(instant)) == instant


@given(st.integers(10**12, MAX_INSTANT), st.timezones())
def test_every_zone_gives_the_same_instant(instant: int, zone: tzinfo) -> None:
    assert from_datetime(to_datetime(instant).astimezone(zone)) == instant


def test_two_clocks_on_the_wall_and_one_instant() -> None:
    east = timezone(timedelta(hours=2))
    assert from_datetime(datetime(2026, 7, 1, 14, tzinfo=east)) == from_datetime(datetime(2026, 7, 1, 12, tzinfo=UTC))


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(Invalid, match="no time zone"):
        from_datetime(datetime(2026, 1, 1))  # noqa: DTZ001


def test_lengths_of_time_are_what_they_say() -> None:
    lengths = [ms(1), seconds(1), minutes(1), hours(1), days(1)]
    assert [micros(length) for length in lengths] == [10**3, 10**6, 6 * 10**7, 36 * 10**8, 864 * 10**8]


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (days(7), "7 days"),
        (hours(25), "25 h"),
        (minutes(90), "90 min"),
        (seconds(90), "90 s"),
        (ms(1_500), "1500 ms"),
        (timedelta(microseconds=7), "7 µs"),
        (timedelta(0), "0 µs"),
    ],
)
def test_a_length_in_words_uses_the_largest_unit_that_fits(duration: timedelta, words: str) -> None:
    assert in_words(duration) == words


@pytest.mark.parametrize(("count", "duration"), [(0, 0), (1, 10**6), (0.1, 10**5), (1e-6, 1), (0.5, 5 * 10**5)])
def test_seconds_become_microseconds(count: float, duration: int) -> None:
    assert from_seconds("delay", count) == duration


@pytest.mark.parametrize("count", [-1, -1e-9, float("nan"), float("inf"), 1e12, "1", None, True, [], 10**400])
def test_what_is_no_number_of_seconds_is_refused(count: Any) -> None:
    with pytest.raises(Invalid) as refused:
        from_seconds("delay", count)
    assert refused.value.field == "delay"


@pytest.mark.parametrize("instant", [0, 1, MAX_INSTANT])
def test_instants_within_bounds_pass(instant: int) -> None:
    assert checked_instant("run_at", instant) == instant


@pytest.mark.parametrize("instant", [-1, MAX_INSTANT + 1, 1.0, True, None, "now", datetime(2026, 1, 1, tzinfo=UTC)])
def test_what_is_no_instant_is_refused(instant: Any) -> None:
    with pytest.raises(Invalid) as refused:
        checked_instant("run_at", instant)
    assert refused.value.field == "run_at"


def test_the_bounds_of_a_length_are_exact() -> None:
    tick = timedelta(microseconds=1)
    assert checked_micros("duration", seconds(1), seconds(1), MAX_DURATION) == 10**6
    assert checked_micros("duration", MAX_DURATION, seconds(1), MAX_DURATION) == micros(MAX_DURATION)
    for duration in (seconds(1) - tick, MAX_DURATION + tick):
        with pytest.raises(Invalid, match=r"is not in 1 s … "):
            checked_micros("duration", duration, seconds(1), MAX_DURATION)
