"""Cron arithmetic against an oracle that knows nothing of it: walk the clock minute by minute and apply the rule.

The oracle shares no code with `forebay.work.cron`, cronsim or `forebay.work.zone`: its own reading of expressions, its
own search for changes of offset, and the documented sentences taken literally. `walk` is the clock, `fired` the rule.
Every comparison is one (expression, zone, instant): 7,000 and more here, over all zones and 25 years in the nightly.
"""

import calendar
import importlib.resources
import struct
import zoneinfo
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forebay.core.instant import from_datetime
from forebay.work.cron import Cron, Dst
from forebay.work.zone import SAMPLE, transitions
from forebay_proof.evidence import happened

RULES: tuple[Dst, ...] = ("once", "skip", "wall")
NAMES = sorted(zoneinfo.available_timezones() - {"localtime"})
SECOND = 1_000_000
MINUTE, HOUR, DAY = 60, 3_600, 86_400
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
WEEKDAYS = "SUN MON TUE WED THU FRI SAT".split()


# The oracle: expressions.


class Spec(NamedTuple):
    """An expression as sets, read without cronsim."""

    seconds: set[int]
    minutes: set[int]
    hours: set[int]
    day: Callable[[date], bool]

    def matches(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and self.day(wall.date())
        )


def numbers(text: str, least: int, most: int, names: list[str] | None = None) -> set[int]:
    found: set[int] = set()
    for term in text.split(","):
        field_range, _, step = term.partition("/")
        first, _, last = field_range.partition("-")
        low, high = (
            (least, most) if field_range == "*" else (number(first, names, least), number(last or first, names, least))
        )
        if step and not last and field_range != "*":
            high = most
        found |= set(range(low, high + 1, int(step or 1)))
    return found


def number(text: str, names: list[str] | None, least: int) -> int:
    return names.index(text.upper()) + least if names and text.upper() in names else int(text)


def day_of_month(text: str, day: date) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    if text == "L":
        return day.day == last
    if text == "LW":
        return day.day == max(d for d in range(1, last + 1) if calendar.weekday(day.year, day.month, d) < 5)
    return day.day in numbers(text, 1, 31)


def day_of_week(text: str, day: date) -> bool:
    today = day.isoweekday() % 7
    if "#" in text:
        name, nth = text.split("#")
        return number(name, WEEKDAYS, 0) % 7 == today and (day.day - 1) // 7 + 1 == int(nth)
    if text.endswith("L"):
        return int(text[:-1]) % 7 == today and day.month != (day + timedelta(days=7)).month
    return today in {value % 7 for value in numbers(text, 0, 7 if text != "*" else 6, WEEKDAYS)}


def spec(rule: str) -> Spec:
    parts = rule.split()
    second, minute, hour, dom, month, dow = parts if len(parts) == 6 else ["0", *parts]
    months = numbers(month, 1, 12, MONTHS)
    either = not (dom.startswith("*") or dow.startswith("*"))

    @cache
    def day(today: date) -> bool:
        found = day_of_month(dom, today), day_of_week(dow, today)
        return today.month in months and (any(found) if either else all(found))

    return Spec(numbers(second, 0, 59), numbers(minute, 0, 59), numbers(hour, 0, 23), day)


# The oracle: clocks and the rule.

Walk = list[tuple[int, datetime]]


def wall_at(zone: str, second: int) -> datetime:
    return datetime.fromtimestamp(second, zoneinfo.ZoneInfo(zone)).replace(tzinfo=None)


def walk(zone: str, start: int, end: int, step: int) -> Walk:
    info = zoneinfo.ZoneInfo(zone)
    return [(at, datetime.fromtimestamp(at, info).replace(tzinfo=None)) for at in range(start, end, step)]


def fired(expression: Spec, clock: Walk, dst: Dst) -> list[int]:
    """The documented rule, word by word, on a clock that is looked at step by step."""
    step = timedelta(seconds=clock[1][0] - clock[0][0])
    literal = len(expression.hours) == 24 or dst == "wall"
    found, latest = [], clock[0][1]
    for at, wall in clock[1:]:
        if literal:
            fires = expression.matches(wall)
        elif wall <= latest:
            fires = False
        elif dst == "skip":
            fires = expression.matches(wall)
        else:
            fires = False
            while latest < wall and not fires:
                latest += step
                fires = expression.matches(latest)
        latest = max(latest, wall)
        if fires:
            found.append(at)
    return found


@cache
def changes(zone: str, year: int, every: int = HOUR) -> list[int]:
    """The minutes in which the offset of a zone changes: sample it, and halve each stretch at whose ends it differs."""
    info = zoneinfo.ZoneInfo(zone)
    first, last = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) for y in (year, year + 1))

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, info).utcoffset()

    def change(before: int, after: int) -> int:
        minutes, old = range(before, after + 1, MINUTE), offset(before)
        return minutes[bisect_left(minutes, True, key=lambda at: offset(at) != old)]

    samples = [(at, offset(at)) for at in range(first, last + 1, every)]
    return [change(before, after) for (before, old), (after, new) in pairwise(samples) if old != new]


def compare(rule: str, zone: str, dst: Dst, clock: Walk, instants: list[int]) -> int:
    """Ticks and next_after at these instants equal the oracle's; the number of instants."""
    cron = Cron(rule, zone, dst)
    expected = fired(spec(rule), clock, dst)
    end = clock[-1][0]
    for after in instants:
        later = expected[bisect_right(expected, after) :]
        got = cron.next_after(after * SECOND)
        if later:
            assert got == later[0] * SECOND, (rule, zone, dst, after, got, later[0])
        else:
            assert got is None or got > end * SECOND, (rule, zone, dst, after, got)
    first = min(instants)
    later = expected[bisect_right(expected, first) :]
    ticks = [tick // SECOND for tick in cron.ticks(first * SECOND, end * SECOND, 1_000)]
    assert ticks == later[:1_000], (rule, zone, dst, first)
    happened("comparisons", len(instants))
    return len(instants)


# Random expressions near a change.


def expressions(random: Random, wall: datetime, count: int) -> Iterator[str]:
    """Expressions whose hours, days and months are often those of the change, so that they have something to say."""
    hour = wall.hour
    near = [(hour + delta) % 24 for delta in (-2, -1, 0, 1)]
    for _ in range(count):
        low = random.randrange(0, 22)
        minute = random.choice(
            ["0", "30", "*", "*/5", "*/15", "0,45", "59", "10-50/20", "7/13", str(random.randrange(60))]
        )
        named = [f"{min(near)},{max(near)}", f"{low}-{low + 2}", str(random.randrange(24)), *map(str, near)]
        hours = random.choice(["*", "*/2", "1-23/2", "0-23", "*/1", "*/6", *named])
        dom = random.choice(["*", "*", "*", "*", str(wall.day), "1-15", "L", "LW", f"{wall.day},1", "*/2"])
        month = random.choice(["*", "*", "*", str(wall.month), MONTHS[wall.month - 1], "*/3"])
        day = wall.isoweekday() % 7
        dow = random.choice(["*", "*", "*", str(day), WEEKDAYS[day], "1-5", f"{day}L", f"{WEEKDAYS[day]}#2", "5-7"])
        yield f"{minute} {hours} {dom} {month} {dow}"


NASTY = [
    ("America/New_York", 2026),
    ("Europe/London", 2026),
    ("Europe/Berlin", 2027),
    ("Pacific/Chatham", 2026),
    ("Antarctica/Troll", 2026),
    ("Australia/Lord_Howe", 2026),
    ("America/Santiago", 2026),
    ("Africa/Casablanca", 2026),
    ("Africa/El_Aaiun", 2030),
    ("Pacific/Apia", 2011),
    ("Pacific/Kwajalein", 1993),
    ("America/Asuncion", 2023),
    ("Africa/Cairo", 2026),
    ("Asia/Beirut", 2026),
    ("Asia/Gaza", 2026),
    ("America/Havana", 2026),
    ("Atlantic/Azores", 2026),
    ("America/Scoresbysund", 2026),
    ("Asia/Tehran", 2021),
    ("America/Sao_Paulo", 2018),
    ("America/Caracas", 2016),
    ("Asia/Pyongyang", 2015),
    ("Europe/Dublin", 2028),
    ("America/St_Johns", 2006),
    ("Antarctica/Vostok", 1994),
    ("America/Danmarkshavn", 1996),
]


@pytest.mark.parametrize(("zone", "year"), NASTY, ids=[f"{zone}-{year}" for zone, year in NASTY])
def test_every_tick_around_a_change_is_what_the_oracle_says(zone: str, year: int) -> None:
    random = Random(f"{zone} {year}")
    compared = 0
    assert changes(zone, year)
    for change in changes(zone, year)[:2]:
        clock = walk(zone, change - 27 * HOUR, change + 27 * HOUR, MINUTE)
        for rule in expressions(random, wall_at(zone, change), 18):
            dst = random.choice(RULES)
            instants = [random.randrange(change - 2 * HOUR, change + 25 * HOUR) for _ in range(6)]
            compared += compare(rule, zone, dst, clock, [change - 3 * HOUR, change - 1, change, *instants])
    assert compared >= 18 * 9


def test_the_oracle_is_asked_often_enough() -> None:
    assert sum(18 * 9 * min(2, len(changes(zone, year))) for zone, year in NASTY) >= 7_000


@pytest.mark.parametrize(
    ("zone", "year", "rule"),
    [
        ("America/New_York", 2026, "*/7 */10 1-3 * * *"),
        ("Australia/Lord_Howe", 2026, "15,45 29-31 1,2 * * *"),
        ("Pacific/Chatham", 2026, "* 44-46 2,3 * * *"),
        ("Europe/Berlin", 2026, "*/20 * * * * *"),
        ("Africa/Monrovia", 1972, "30 */20 0-2 * * *"),
        ("America/Santiago", 2026, "59 59 23 * * *"),
    ],
)
@pytest.mark.parametrize("dst", RULES)
def test_seconds_around_a_change(zone: str, year: int, rule: str, dst: Dst) -> None:
    for change in changes(zone, year):
        clock = walk(zone, change - 3 * HOUR, change + 3 * HOUR, 1)
        random = Random(change)
        compare(rule, zone, dst, clock, [random.randrange(change - HOUR, change + HOUR) for _ in range(10)])


FEW = ["30 * * * *", "*/15 0-3 * * *", "30 1 * * *", "0 0 * * *", "30 2 * * 0", "0 3,4 * * *", "0 */2 * * *"]


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(12))
def test_every_zone_and_every_change(part: int) -> None:
    """598 zones, 25 years, 9 expressions, 3 rules, 4 instants each: more than a million in all."""
    compared = 0
    for zone in NAMES[part::12]:
        for change in [at for year in range(2026, 2051) for at in changes(zone, year, 6 * HOUR)]:
            clock = walk(zone, change - 5 * HOUR, change + 26 * HOUR, MINUTE)
            hour = wall_at(zone, change).hour
            for rule in [*FEW, f"15 {hour} * * *", f"45 {(hour - 1) % 24} * * *"]:
                for dst in RULES:
                    compared += compare(rule, zone, dst, clock, [change - 2 * HOUR, change - 1, change, change + HOUR])
    assert compared > 20_000


# Properties anywhere.

ZONES = st.sampled_from(NAMES)
INSTANTS = st.integers(0, from_datetime(datetime(2100, 1, 1, tzinfo=UTC)))


@st.composite
def rules(draw: st.DrawFn) -> str:
    moment = draw(st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)))  # noqa: DTZ001
    return next(expressions(Random(draw(st.integers(0, 2**32))), moment, 1))


@given(rules(), ZONES, st.sampled_from(RULES), INSTANTS)
def test_ticks_grow_match_the_wall_and_agree_with_next_after(rule: str, zone: str, dst: Dst, after: int) -> None:
    cron = Cron(rule, zone, dst)
    ticks = cron.ticks(after, from_datetime(datetime(2199, 1, 1, tzinfo=UTC)), 6)
    assert all(first < second for first, second in pairwise([after, *ticks]))
    cursor = after
    for tick in ticks:
        assert cron.next_after(cursor) == tick
        assert cron.next_after(tick - 1) == tick
        assert shown_or_jumped(spec(rule), zone, dst, tick // SECOND), tick
        cursor = tick


def shown_or_jumped(expression: Spec, zone: str, dst: Dst, at: int) -> bool:
    wall, before = wall_at(zone, at), wall_at(zone, at - 1)
    if expression.matches(wall):
        return True
    jumped = (before + timedelta(seconds=k) for k in range(1, int((wall - before).total_seconds())))
    return dst == "once" and len(expression.hours) < 24 and any(expression.matches(time) for time in jumped)


@cache
def changes_since_2000(zone: str) -> list[int]:
    return [change for year in range(2000, 2036) for change in changes(zone, year, 7 * DAY)]


@given(rules(), ZONES, st.data())
def test_no_wall_time_fires_twice_and_a_gap_fires_once(rule: str, zone: str, data: st.DataObject) -> None:
    nearby = changes_since_2000(zone)
    assume(nearby and len(spec(rule).hours) < 24)
    change = data.draw(st.sampled_from(nearby))
    ticks = [tick // SECOND for tick in Cron(rule, zone).ticks((change - DAY) * SECOND, (change + DAY) * SECOND)]
    walls = [wall_at(zone, tick) for tick in ticks]
    assert all(first < second for first, second in pairwise(walls))
    assert sum(not spec(rule).matches(wall) for wall in walls) <= 1


# The zone database.


def database_changes(zone: str) -> list[int]:
    """The instants at which the offset changes, from the database file itself (RFC 8536, second header)."""
    places = [Path(folder, zone) for folder in zoneinfo.TZPATH]
    place = next((place for place in places if place.is_file()), None)
    raw = place.read_bytes() if place else importlib.resources.files("tzdata.zoneinfo").joinpath(zone).read_bytes()
    sizes = struct.unpack(">6l", raw[20:44])
    head = 44 + sizes[3] * 5 + sizes[4] * 6 + sizes[5] + sizes[2] * 8 + sizes[1] + sizes[0]
    *_, times, kinds, _ = struct.unpack(">6l", raw[head + 20 : head + 44])
    at = struct.unpack(f">{times}q", raw[head + 44 : head + 44 + 8 * times])
    kind = raw[head + 44 + 8 * times : head + 44 + 9 * times]
    table = head + 44 + 9 * times
    offsets = [struct.unpack(">l", raw[table + 6 * k : table + 6 * k + 4])[0] for k in range(kinds)]
    pairs = pairwise(zip(at, kind, strict=True))
    return [after for (_, old), (after, new) in pairs if offsets[old] != offsets[new]]


def test_no_zone_changes_twice_between_two_samples() -> None:
    apart = [second - first for zone in NAMES for first, second in pairwise(database_changes(zone)) if second >= 0]
    assert len(apart) > 10_000
    assert min(apart) > 3 * SAMPLE


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Apia", "Africa/Monrovia", "Asia/Gaza", "Asia/Tokyo"])
def test_changes_are_found_to_the_second(zone: str) -> None:
    years = range(1970, 2026)
    last = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    known = [change for change in database_changes(zone) if 0 <= change < last]
    found = [change for year in years for change, _ in transitions(zone, year)]
    assert found[: len(known)] == known
