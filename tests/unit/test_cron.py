"""Rules as values: what is read, what is refused and how, what is due after an outage, and words for people.

The arithmetic around changes of offset has its own file, test_cron_zones.py, with an oracle.
"""

import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, from_datetime, hours, seconds, to_datetime
from forebay.core.job import Draft
from forebay.core.schedule import Schedule
from forebay.work.cron import (
    DST_RULES,
    MACROS,
    MAX_MISSED,
    NEVER,
    CatchUp,
    Cron,
    Due,
    Overlap,
    Timetable,
    describe,
    due,
)

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "cron.md"


def at(text: str, zone: str = "UTC") -> Instant:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


def fires(rule: str, after: str, count: int = 3, zone: str = "UTC") -> list[str]:
    ticks = Cron(rule, zone).ticks(at(after, zone), NEVER, count)
    return [f"{to_datetime(tick).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}" for tick in ticks]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("30 1 * * *", ["2026-01-01 01:30:00", "2026-01-02 01:30:00", "2026-01-03 01:30:00"]),
        ("*/20 * * * * *", ["2026-01-01 00:00:20", "2026-01-01 00:00:40", "2026-01-01 00:01:00"]),
        ("  0   12  *  *  mon ", ["2026-01-05 12:00:00", "2026-01-12 12:00:00", "2026-01-19 12:00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00", "2026-03-31 00:00:00"]),
        ("0 9 * * 5L", ["2026-01-30 09:00:00", "2026-02-27 09:00:00", "2026-03-27 09:00:00"]),
        ("0 0 13 * 5", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00", "2036-02-29 00:00:00"]),
        ("0 0 29 2 */7", ["2032-02-29 00:00:00", "2060-02-29 00:00:00", "2088-02-29 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00", "2028-01-01 00:00:00", "2029-01-01 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00", "2026-03-01 00:00:00", "2026-04-01 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00", "2026-01-18 00:00:00"]),
        ("@Hourly", ["2026-01-01 01:00:00", "2026-01-01 02:00:00", "2026-01-01 03:00:00"]),
        ("@every 90s", ["2026-01-01 00:01:30", "2026-01-01 00:03:00", "2026-01-01 00:04:30"]),
        ("@every 1h30m", ["2026-01-01 01:30:00", "2026-01-01 03:00:00", "2026-01-01 04:30:00"]),
    ],
)
def test_when_a_rule_fires(rule: str, expected: list[str]) -> None:
    assert fires(rule, "2026-01-01") == expected


@pytest.mark.parametrize("macro", MACROS)
def test_a_macro_is_its_expression(macro: str) -> None:
    assert fires(macro, "2026-01-01") == fires(MACROS[macro], "2026-01-01")


NEW_YORK, LONDON, BERLIN = "America/New_York", "Europe/London", "Europe/Berlin"


@pytest.mark.parametrize(
    ("zone", "rule", "dst", "after", "expected"),
    [
        (NEW_YORK, "30 2 * * *", "once", "2026-03-08T05:00", ["03:00-04", "02:30-04"]),
        (NEW_YORK, "30 2 * * *", "skip", "2026-03-08T05:00", ["02:30-04", "02:30-04"]),
        (NEW_YORK, "30 2 * * *", "wall", "2026-03-08T05:00", ["02:30-04", "02:30-04"]),
        (NEW_YORK, "* 2 * * *", "once", "2026-03-08T05:00", ["03:00-04", "02:00-04"]),
        (NEW_YORK, "0 2,3 * * *", "once", "2026-03-08T05:00", ["03:00-04", "02:00-04"]),
        (NEW_YORK, "30 * * * *", "once", "2026-03-08T06:00", ["01:30-05", "03:30-04"]),
        (NEW_YORK, "30 1 * * *", "once", "2026-11-01T04:00", ["01:30-04", "01:30-05"]),
        (NEW_YORK, "30 1 * * *", "wall", "2026-11-01T04:00", ["01:30-04", "01:30-05", "01:30-05"]),
        (NEW_YORK, "30 * * * *", "once", "2026-11-01T05:00", ["01:30-04", "01:30-05", "02:30-05"]),
        (LONDON, "30 1 * * *", "once", "2026-03-29T00:00", ["02:00+01", "01:30+01"]),
        (LONDON, "30 1 * * *", "once", "2026-10-25T00:00", ["01:30+01", "01:30+00"]),
        (BERLIN, "30 2 * * *", "once", "2026-03-29T00:00", ["03:00+02", "02:30+02"]),
        (BERLIN, "30 2 * * *", "once", "2026-10-25T00:00", ["02:30+02", "02:30+01"]),
        (BERLIN, "0 0-23/1 * * *", "once", "2026-10-25T00:30", ["02:00+01", "03:00+01"]),
        ("Africa/Cairo", "0 0 * * *", "once", "2026-04-23T20:00", ["01:00+03", "00:00+03"]),
        ("Asia/Beirut", "0 0 * * *", "once", "2026-03-28T20:00", ["01:00+03", "00:00+03"]),
        ("America/Asuncion", "0 0 * * *", "once", "2023-10-01T03:00", ["01:00-03", "00:00-03"]),
        ("America/Santiago", "@daily", "once", "2026-09-06T03:00", ["01:00-03", "00:00-03"]),
        ("America/Havana", "0 */6 * * *", "once", "2026-11-01T03:30", ["00:00-04", "06:00-05"]),
        ("Antarctica/Troll", "30 1,2 * * *", "once", "2026-03-29T00:30", ["03:00+02", "01:30+02"]),
        ("Australia/Lord_Howe", "15 2 * * *", "once", "2026-10-03T15:00", ["02:30+11", "02:15+11"]),
        ("Australia/Lord_Howe", "45 1 * * *", "once", "2026-04-04T14:00", ["01:45+11", "01:45+1030"]),
        ("Pacific/Chatham", "0 3 * * *", "once", "2026-09-26T13:00", ["03:45+1345", "03:00+1345"]),
        ("Pacific/Apia", "0 9 30 12 *", "once", "2011-12-29T21:00", ["00:00+14", "09:00+14"]),
        ("Africa/Casablanca", "30 2 * * *", "once", "2026-02-15T00:00", ["02:30+01", "02:30+00"]),
    ],
)
def test_the_nasty_ones_by_name(zone: str, rule: str, dst: str, after: str, expected: list[str]) -> None:
    cron = Cron(rule, zone, dst)  # type: ignore[arg-type]
    shown = [
        f"{to_datetime(t).astimezone(ZoneInfo(zone)):%H:%M%z}" for t in cron.ticks(at(after), NEVER, len(expected))
    ]
    assert [re.sub(r"(?<=[+-]\d\d)00$", "", text) for text in shown] == expected


def test_asked_between_the_two_passes_the_second_is_remembered_as_such() -> None:
    between = at("2026-11-01T06:10")
    assert Cron("30 1 * * *", NEW_YORK).next_after(between) == at("2026-11-02T06:30")
    assert Cron("30 1 * * *", NEW_YORK, "wall").next_after(between) == at("2026-11-01T06:30")
    assert Cron("30 * * * *", NEW_YORK).next_after(between) == at("2026-11-01T06:30")


@pytest.mark.parametrize(
    ("rule", "field", "hint"),
    [
        ("", "rule", "such as '30 1 * * *'"),
        ("   ", "rule", "0 fields"),
        ("* * * *", "rule", "4 fields"),
        ("* * * * * * *", "rule", "7 fields"),
        ("x" * 257, "rule", "256 characters"),
        ("60 * * * *", "rule minute", "'60'"),
        ("60 * * * * *", "rule second", "write it like */15"),
        ("* 24 * * *", "rule hour", "'24'"),
        ("* * 0 * *", "rule day-of-month", "LW"),
        ("* * 32 * *", "rule day-of-month", "'32'"),
        ("* * * 13 *", "rule month", "JAN"),
        ("* * * * 8", "rule day-of-week", "MON#2"),
        ("* * * * MON#6", "rule day-of-week", "'MON#6'"),
        ("? * * * *", "rule minute", "'?'"),
        ("5-3 * * * *", "rule minute", "'5-3'"),
        ("*/0 * * * *", "rule minute", "'*/0'"),
        ("*/90 * * * *", "rule minute", "use @every"),
        ("0 */36 * * *", "rule hour", "use @every"),
        ("1,,2 * * * *", "rule minute", "'1,,2'"),
        ("-1 * * * *", "rule minute", "'-1'"),
        ("² * * * *", "rule minute", "not understood"),
        ("0 0 30 2 *", "rule day-of-month", "no month of '2' has a day 30"),
        ("0 0 31 2,4 *", "rule day-of-month", "use L for the last"),
        ("@reboot", "rule", "@hourly"),
        ("@every", "rule @every", "90s"),
        ("@every 5", "rule @every", "5m"),
        ("@every 0s", "rule @every", "1s …"),
        ("@every 9999d", "rule @every", "choose an interval"),
        ("@every -5m", "rule @every", "not a duration"),
        ("@every 5m x", "rule @every", "not a duration"),
    ],
)
def test_a_bad_rule_is_refused_by_field_with_a_good_example(rule: str, field: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        Cron(rule)
    assert refused.value.field == field
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("New York", "did you mean America/New_York?"),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Europe/Berln", "Europe/Berlin or"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("Qqqqq/Zzzzz", "such as Europe/Berlin"),
        ("America", "did you mean"),
        ("../UTC", "not in the time zone database"),
        ("right/UTC", "not in the time zone database"),
        ("localtime", "not in the time zone database"),
        ("", "such as Europe/Berlin"),
        (7, "not in the time zone database"),
    ],
)
def test_an_unknown_zone_names_the_nearest(zone: str, hint: str) -> None:
    with pytest.raises(Invalid, match=re.escape(hint)):
        Cron("@daily", zone)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("@daily ; dst=twice", "use once, skip or wall"),
        ("@daily ; overlap=wait", "use allow, skip, queue or cancel"),
        ("@daily ; catch_up=all", "none, last or all(24)"),
        ("@daily ; catch_up=all(9999)", "0 … 1000"),
        ("@daily ; jitter=30", "90s"),
        ("@daily ; jitter=2h", "0 … 3600"),
        ("@daily ; retries=3", "use dst, catch_up, overlap or jitter"),
        ("@daily ; dst=once dst=skip", "at most once"),
        ("@daily ; skip", "'skip' is not known"),
        ("@daily dst=once", "is not a macro"),
    ],
)
def test_a_bad_option_is_refused(text: str, hint: str) -> None:
    with pytest.raises(Invalid, match=re.escape(hint)):
        Timetable.parse(text)


def test_other_types_are_refused_with_the_same_error() -> None:
    for make in (
        lambda: Cron(5),  # type: ignore[arg-type]
        lambda: Timetable.parse(None),  # type: ignore[arg-type]
        lambda: CatchUp(True),
        lambda: CatchUp.parse(3),  # type: ignore[arg-type]
        lambda: Timetable(Cron("@daily"), jitter=1.5),  # type: ignore[arg-type]
        lambda: Cron("@daily").ticks(0, 1, 0),
        lambda: Cron("@daily").next_after(-1),
        lambda: Cron("@daily").next_after(1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(Invalid):
            make()


TIMETABLES = st.builds(
    Timetable,
    st.builds(
        Cron,
        st.sampled_from(["30 1 * * *", "*/5 * * * * *", "@daily", "@every 90s", "0 9 * * MON-FRI"]),
        st.sampled_from(["UTC", "Europe/Berlin", "Etc/GMT+5"]),
        st.sampled_from(["once", "skip", "wall"]),
    ),
    st.builds(CatchUp, st.integers(0, 1_000)),
    st.sampled_from(["allow", "skip"]),
    st.integers(0, 3_600),
)


@given(TIMETABLES)
def test_a_timetable_round_trips_through_a_schedule_and_json(timetable: Timetable) -> None:
    kept = Schedule("nightly", timetable.rule, 0, Draft("report"), timetable.cron.zone)
    assert Timetable.parse(kept.rule, kept.zone) == timetable
    assert msgspec.json.decode(msgspec.json.encode(timetable), type=Timetable) == timetable


def test_the_text_of_a_timetable_is_short_and_always_the_same() -> None:
    assert Timetable(Cron("30  1 * * *")).rule == "30 1 * * *"
    one = Timetable.parse("30 1 * * *;overlap=skip   dst=wall catch_up=last jitter=1m")
    assert one.rule == "30 1 * * * ; dst=wall overlap=skip jitter=60s"


def test_a_rule_too_long_for_a_schedule_is_refused_with_its_options() -> None:
    line = ",".join(["10"] * 81) + " * * * *"
    assert len(Timetable(Cron(line)).rule) == 250
    with pytest.raises(Invalid, match="the limit is 256"):
        Timetable(Cron(line), overlap="skip")


def hourly(catch_up: str, overlap: Overlap = "allow") -> Timetable:
    return Timetable(Cron("0 * * * *"), CatchUp.parse(catch_up), overlap)


def clocks(*times: str) -> tuple[Instant, ...]:
    return tuple(at(f"2026-01-01T{time}") for time in times)


@pytest.mark.parametrize(
    ("catch_up", "cursor", "now", "fired", "following", "missed"),
    [
        ("none", "10:00", "09:59", (), "10:00", 0),
        ("none", "10:00", "10:00", ("10:00",), "11:00", 0),
        ("none", "10:00", "10:00:59", ("10:00",), "11:00", 0),
        ("none", "10:00", "10:01:00", ("10:00",), "11:00", 0),
        ("none", "10:00", "10:01:01", (), "11:00", 1),
        ("none", "10:00", "13:30", (), "14:00", 4),
        ("none", "10:00", "13:00:30", ("13:00",), "14:00", 3),
        ("last", "10:00", "13:30", ("13:00",), "14:00", 3),
        ("last", "10:00", "13:00:30", ("13:00",), "14:00", 3),
        ("last", "10:00", "09:00", (), "10:00", 0),
        ("all(2)", "10:00", "13:30", ("12:00", "13:00"), "14:00", 2),
        ("all(9)", "10:00", "13:30", ("10:00", "11:00", "12:00", "13:00"), "14:00", 0),
        ("all(4)", "10:00", "13:30", ("10:00", "11:00", "12:00", "13:00"), "14:00", 0),
        ("last", "10:17", "12:30", ("12:00",), "13:00", 1),
        ("none", "10:17", "10:20", (), "11:00", 0),
    ],
)
def test_what_is_due(catch_up: str, cursor: str, now: str, fired: tuple[str, ...], following: str, missed: int) -> None:
    (first, second, after) = clocks(cursor, now, following)
    assert due(hourly(catch_up), first, second) == Due(clocks(*fired), after, missed)


def test_a_fired_tick_is_never_due_again_whatever_the_cursor_says() -> None:
    early, last, now = clocks("08:00", "12:00", "12:00:10")
    (following,) = clocks("13:00")
    assert due(hourly("all(24)"), early, now, last_at=last) == Due((), following, 0)


def test_steps_are_what_fire_takes() -> None:
    cursor, now = clocks("10:00", "12:30")
    assert due(hourly("all(5)"), cursor, now).steps() == [
        clocks("10:00", "11:00"),
        clocks("11:00", "12:00"),
        clocks("12:00", "13:00"),
    ]


def test_a_year_of_missed_seconds_is_bounded() -> None:
    every = Timetable(Cron("* * * * * *"), CatchUp(3))
    found = due(every, at("2025-01-01"), at("2026-01-01"), grace=seconds(0))
    assert [at("2026-01-01") - tick for tick in found.fires] == [2_000_000, 1_000_000, 0]
    assert (found.next_at, found.missed) == (at("2026-01-01T00:00:01"), MAX_MISSED)


def test_more_than_a_batch_in_time_goes_on_with_the_next_call() -> None:
    every = Timetable(Cron("* * * * * *"), CatchUp(0))
    first = due(every, at("2026-01-01"), at("2026-01-01T00:30"), grace=hours(1))
    assert (len(first.fires), first.missed, first.next_at) == (1_000, 0, first.fires[-1] + 1_000_000)
    second = due(every, first.next_at, at("2026-01-01T00:30"), grace=hours(1))
    assert (len(second.fires), second.next_at) == (801, at("2026-01-01T00:30:01"))


@given(
    st.sampled_from(["0 * * * *", "*/10 * * * * *", "30 2 * * *", "@every 7m", "0 0 1 * *"]),
    st.integers(0, 40),
    st.integers(0, 3 * 86_400),
    st.integers(0, 7_200),
)
def test_due_fires_the_newest_and_accounts_for_the_rest(rule: str, most: int, behind: int, grace: int) -> None:
    cron, now = Cron(rule, "Europe/Berlin"), at("2026-03-30T12:34:56")
    cursor = cron.next_after(now - behind * 1_000_000) or NEVER
    found = due(Timetable(cron, CatchUp(most)), cursor, now, grace=seconds(grace))
    pending = [] if cursor > now else cron.ticks(cursor - 1, now, 1_000)
    timely = [tick for tick in pending if tick >= now - grace * 1_000_000]
    if len(pending) < 1_000:
        assert list(found.fires) == pending[len(pending) - min(len(pending), max(most, len(timely))) :]
        assert found.missed == len(pending) - len(found.fires)
        assert found.next_at == cron.next_after(max(now, cursor - 1))


def test_never_is_a_cursor_that_a_store_takes() -> None:
    last = at("2199-12-31T23:59:30")
    cron = Cron("0 0 1 1 *")
    assert cron.next_after(last) is None
    assert cron.ticks(last, NEVER) == []
    assert due(Timetable(cron), at("2199-01-01"), last).next_at == NEVER
    assert due(Timetable(cron), NEVER, at("2026-01-01")) == Due((), NEVER, 0)
    assert Schedule("x", cron.rule, NEVER, Draft("k")).next_at == NEVER


def test_jitter_moves_the_job_and_not_the_tick() -> None:
    timetable, tick = Timetable(Cron("@daily"), jitter=60), at("2026-01-01")
    assert [timetable.run_at(tick, draw) - tick for draw in (0.0, 0.25, 0.5)] == [0, 15_000_000, 30_000_000]
    assert timetable.run_at(NEVER, 0.9) == NEVER


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("* * * * * *", "every second"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("*/7 * * * *", "*/7 * * * *"),
        ("@hourly", "every hour"),
        ("15 * * * *", "at minute 15 of every hour"),
        ("0 */6 * * *", "every 6 hours, from midnight"),
        ("30 1 * * *", "at 01:30 every day"),
        ("0 30 1 * * *", "at 01:30 every day"),
        ("@daily", "at 00:00 every day"),
        ("0 9 * * 1-5", "at 09:00 Monday to Friday"),
        ("0 9 * * 7", "at 09:00 every Sunday"),
        ("0 9 * * tue", "at 09:00 every Tuesday"),
        ("@monthly", "at 00:00 on day 1 of every month"),
        ("@yearly", "at 00:00 every year on day 1 of month 1"),
        ("@every 90s", "every 90 s"),
        ("@every 2d", "every 2 days"),
        ("0 9 1 * MON", "0 9 1 * MON"),
    ],
)
def test_a_rule_in_words(rule: str, words: str) -> None:
    assert describe(Cron(rule), at("2026-01-01")).startswith(f"{words} (UTC); next: 202")


def test_the_next_three_fires_are_shown_as_the_zone_sees_them() -> None:
    assert describe(Cron("30 2 * * *", BERLIN), at("2026-03-28T12:00")) == (
        "at 02:30 every day (Europe/Berlin); next: "
        "2026-03-29 03:00:00 +0200, 2026-03-30 02:30:00 +0200, 2026-03-31 02:30:00 +0200"
    )
    assert describe(Cron("@yearly"), at("2199-06-01")).endswith("next: never")


def test_the_documented_table_is_the_one_in_the_code() -> None:
    page = DOCS.read_text("utf-8")
    for word, (gap, overlap) in DST_RULES.items():
        assert f"| `{word}`" in page
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{word}`")]
        assert [cell.strip() for cell in row.strip("|").split("|")][1:3] == [gap, overlap]


def test_a_tick_is_whole_seconds_and_later_than_any_fraction() -> None:
    tick = at("2026-01-01T00:01")
    cron = Cron("* * * * *")
    assert [cron.next_after(tick + delta) for delta in (-1, 0, 1)] == [tick, *[tick + 60_000_000] * 2]
