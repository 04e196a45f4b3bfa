"""Cron rules: expressions, macros and intervals in a time zone, as values and pure functions.

`Cron` computes the next tick, `Timetable` adds the handling of missed ticks and overlapping jobs and is stored in
`Schedule.rule`, `due` computes the ticks to fire now. Time is an argument; the ticker passes the ticks to the store,
which decides which process fires each. cronsim defines what an expression means on a calendar without zones, `zone.py`
the offsets, and this file what happens at a clock change (`DST_RULES`):

    an expression for certain hours (dst="once")   fires when the wall clock first shows a time, or jumps past it
    an expression for every hour                   fires whenever the wall clock shows a time, so every real hour

Machines with different versions of the zone database compute different ticks; the store still fires each tick once. A
rule that can never fire (30 February) is refused when it is created.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import force_setattr

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, checked_instant, checked_micros, in_words, to_datetime
from forebay.core.limits import MAX_BATCH, MAX_DURATION, MAX_INSTANT
from forebay.core.schedule import Schedule
from forebay.work.zone import check_zone, latest_wall_time, offset_at, offset_periods

Dst: TypeAlias = Literal["once", "skip", "wall"]
Overlap: TypeAlias = Literal["allow", "skip", "queue", "cancel"]

OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
"""What a tick does while the job of the one before has not ended."""

DST_RULES: Final[dict[str, tuple[str, str]]] = {
    "once": ("once, at the first valid instant", "the first time only"),
    "skip": ("not at all", "the first time only"),
    "wall": ("not at all", "both times"),
}
"""For expressions that name hours: what happens to a time that the clock skips, and to one that occurs twice."""

NEVER: Final[Instant] = MAX_INSTANT
"""The `next_at` to store when a rule has no further tick before the year 2200."""

GRACE: Final = timedelta(seconds=60)
MAX_JITTER: Final = timedelta(hours=1)
RULE_LENGTH: Final = 256
MAX_MISSED: Final = MAX_BATCH

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_FIELDS = {
    "second": (60, "*/15 or 0,30"),
    "minute": (60, "30, */5 or 0-29"),
    "hour": (24, "1, 9-17 or *"),
    "day-of-month": (31, "1, 15,31, L (the last) or LW (the last weekday)"),
    "month": (12, "1, JAN or 3-5"),
    "day-of-week": (7, "MON, 1-5, 5L (the last Friday) or MON#2 (the second Monday); 0 and 7 are Sunday"),
}
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SECOND = 1_000_000
_EVERY_HOUR = frozenset(range(24))
_DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()


class Cron(Struct, frozen=True):
    """A rule in a zone. `rule`: five fields, six (seconds first), a macro such as @daily, or `@every 90s`.

    Intervals count from 1970-01-01 00:00 UTC, so that every machine agrees; zone and dst do not touch them.
    """

    rule: str
    zone: str = "UTC"
    dst: Dst = "once"

    def __post_init__(self) -> None:
        if not isinstance(self.rule, str) or not 1 <= len(self.rule) <= RULE_LENGTH:
            raise Invalid(
                "rule",
                "it is not a string of the allowed length",
                f"use 1 to {RULE_LENGTH} characters, such as '30 1 * * *'",
            )
        _check_word("dst", self.dst, get_args(Dst))
        check_zone(self.zone)
        force_setattr(self, "rule", " ".join(self.rule.split()))
        _meaning(self.rule)

    def next_after(self, after: Instant) -> Instant | None:
        """The first tick after this instant; None if there is none before the year 2200."""
        return next(self._ticks(after), None)

    def ticks(self, after: Instant, upto: Instant, limit: int = MAX_BATCH) -> list[Instant]:
        """The ticks in (after, upto], oldest first, at most `limit` of them."""
        if type(limit) is not int or not 1 <= limit <= MAX_BATCH:
            raise Invalid("limit", f"{limit!r} is not an integer in 1 … {MAX_BATCH}", "use a smaller limit, more often")
        checked_instant("upto", upto)
        return list(islice(takewhile(upto.__ge__, self._ticks(after)), limit))

    def _ticks(self, after: Instant) -> Iterator[Instant]:
        whole = checked_instant("after", after) // _SECOND
        meaning = _meaning(self.rule)
        if meaning.every:
            return iter(range((whole // meaning.every + 1) * meaning.every * _SECOND, NEVER, meaning.every * _SECOND))
        literal = meaning.every_hour or self.dst == "wall"
        fires = _shown(meaning.fields, self.zone, whole) if literal else self._reached(meaning.fields, whole)
        return takewhile(NEVER.__gt__, (second * _SECOND for second in fires))

    def _reached(self, fields: str, after: int) -> Iterator[int]:
        """Fire each wall time once: when the clock first shows it or, with dst="once", jumps past it."""
        walls = _walls(fields, latest_wall_time(self.zone, after))
        wall = next(walls, None)
        for start, end, offset in offset_periods(self.zone, after):
            jumped = False
            while wall is not None and wall < start + offset:
                jumped, wall = True, next(walls, None)
            if jumped and self.dst == "once" and wall != start + offset:
                yield start
            while wall is not None and wall < end + offset:
                yield wall - offset
                wall = next(walls, None)
            if wall is None:
                return


class CatchUp(Struct, frozen=True):
    """How many of the ticks that were not fired in time are still fired: the newest `limit`, oldest first."""

    limit: int = 1

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 0 <= self.limit <= MAX_BATCH:
            raise Invalid("catch_up", f"{self.limit!r} is not an integer in 0 … {MAX_BATCH}", "0: none, 1: the last")

    def __str__(self) -> str:
        return {0: "none", 1: "last"}.get(self.limit, f"all({self.limit})")

    @classmethod
    def parse(cls, word: str) -> "CatchUp":
        if match := re.fullmatch(r"none|last|all\(([0-9]{1,4})\)", word if isinstance(word, str) else ""):
            return cls(int(match[1]) if match[1] else ("none", "last").index(word))
        raise Invalid("catch_up", f"{_quoted(word)} is not a catch-up rule", "use none, last or all(24)")


class Timetable(Struct, frozen=True):
    """When a schedule enqueues jobs. `jitter`: seconds by which the job of a tick is delayed at most."""

    cron: Cron
    catch_up: CatchUp = CatchUp()
    overlap: Overlap = "allow"
    jitter: int = 0

    def __post_init__(self) -> None:
        _check_word("overlap", self.overlap, OVERLAPS)
        maximum = int(MAX_JITTER.total_seconds())
        if type(self.jitter) is not int or not 0 <= self.jitter <= maximum:
            raise Invalid(
                "jitter",
                f"{self.jitter!r} is not a whole number of seconds in 0 … {maximum}",
                "choose one in that range",
            )
        if len(self.rule) > RULE_LENGTH:
            raise Invalid("rule", f"{len(self.rule)} characters with its options", f"the limit is {RULE_LENGTH}")

    @property
    def rule(self) -> str:
        """The text for `Schedule.rule`: the cron rule, then the options that are not the default, in a fixed order."""
        words = {"dst": self.cron.dst, "catch_up": self.catch_up, "overlap": self.overlap, "jitter": f"{self.jitter}s"}
        usual = {"dst": "once", "catch_up": "last", "overlap": "allow", "jitter": "0s"}
        options = [f"{name}={word}" for name, word in words.items() if str(word) != usual[name]]
        return " ; ".join([self.cron.rule, *([" ".join(options)] if options else [])])

    @classmethod
    def parse(cls, rule: str, zone: str = "UTC") -> "Timetable":
        """The inverse of `.rule`: "30 1 * * * ; dst=wall catch_up=all(3) overlap=skip jitter=30s"."""
        if not isinstance(rule, str):
            raise Invalid("rule", f"{type(rule).__name__} is not a string", "write it like '30 1 * * * ; overlap=skip'")
        line, _, tail = rule.partition(";")
        pairs = [option.partition("=")[::2] for option in tail.split()]
        words = dict(pairs)
        for name, _ in pairs:
            _check_word("option", name, ("dst", "catch_up", "overlap", "jitter"))
        if len(words) < len(pairs):
            raise Invalid("option", f"{_quoted(tail.strip())} repeats one", "give each at most once")
        cron = Cron(line, zone, words.get("dst", "once"))  # type: ignore[arg-type] # checked there
        jitter = _seconds("jitter", words.get("jitter", "0s"))
        catch_up = CatchUp.parse(words.get("catch_up", "last"))
        return cls(cron, catch_up, words.get("overlap", "allow"), jitter)  # type: ignore[arg-type] # checked there

    def run_at(self, tick: Instant, draw: float) -> Instant:
        """When the job of a tick may run; `draw` is uniform in [0, 1)."""
        return min(tick + int(draw * self.jitter * _SECOND), NEVER)


class Due(NamedTuple):
    """Fire these ticks, oldest first, then move the cursor to `next_at`. `missed` ticks are skipped, up to MAX_MISSED.

    When `fires` is empty or begins after the stored cursor, the cursor moves over the missed ticks without a job.
    """

    fires: tuple[Instant, ...]
    next_at: Instant
    missed: int

    def steps(self) -> list[tuple[Instant, Instant]]:
        """(tick, the cursor after it): the arguments of each `fire` call."""
        return list(zip(self.fires, (*self.fires[1:], self.next_at), strict=False))


def due(
    timetable: Timetable, next_at: Instant, now: Instant, last_at: Instant | None = None, grace: timedelta = GRACE
) -> Due:
    """The ticks to fire now for a schedule with the cursor `next_at` and the last fired tick `last_at`.

    Pending are all ticks from the cursor to now that are after `last_at`. Those no older than `grace` fire, and at
    least as many of the newest as `catch_up` allows. Ticks beyond a batch are left for the next call.
    """
    cron, floor = timetable.cron, max(0, checked_instant("next_at", next_at) - 1, -1 if last_at is None else last_at)
    late = checked_instant("now", now) - checked_micros("grace", grace, timedelta(0), MAX_DURATION) - 1
    if now <= floor:
        return Due((), cron.next_after(floor) or NEVER, 0)
    fires = cron.ticks(max(floor, late), now)
    if len(fires) < timetable.catch_up.limit:
        fires = _newest(cron, floor, now, timetable.catch_up.limit)
    given_up = (fires[0] if fires else now + 1) - 1
    missed = len(cron.ticks(floor, given_up, MAX_MISSED)) if given_up > floor else 0
    following = cron.next_after(fires[-1] if len(fires) == MAX_BATCH else now)
    return Due(tuple(fires), following or NEVER, missed)


def _newest(cron: Cron, floor: Instant, now: Instant, count: int) -> list[Instant]:
    """The last `count` ticks in (floor, now], found by bisection rather than by enumerating all of them."""
    found = cron.ticks(floor, now, count)
    low, high = floor, now
    while len(found) == count and high - low > 1:
        middle = (low + high) // 2
        newer = cron.ticks(middle, now, count)
        low, high, found = (middle, high, newer) if len(newer) == count else (low, middle, found)
    return found


def describe(cron: Cron, after: Instant) -> str:
    """The rule in plain English where possible, and its next three ticks in its zone."""
    zone = ZoneInfo(cron.zone)
    fires = [to_datetime(tick).astimezone(zone) for tick in cron.ticks(after, NEVER, 3)]
    shown = ", ".join(f"{fire:%Y-%m-%d %H:%M:%S} {fire:%z}"[:25] for fire in fires) or "never"
    return f"{_describe_rule(cron.rule)} ({cron.zone}); next: {shown}"


def describe_schedule(schedule: Schedule, after: Instant) -> str:
    """The rule of a schedule in plain English, and its next ticks; or why the rule cannot be parsed."""
    try:
        return describe(Timetable.parse(schedule.rule, schedule.zone).cron, after)
    except Invalid as error:
        return f"not understood: {error}"


def _describe_rule(rule: str) -> str:
    meaning = _meaning(rule)
    if meaning.every:
        return f"every {in_words(timedelta(seconds=meaning.every))}"
    for pattern, words in (
        (r"\* \* \* \* \* \*", "every second"),
        (r"(?:0 )?\* \* \* \* \*", "every minute"),
        (r"\*/([2-6]|10|12|15|20|30) \* \* \* \* \*", "every {0} seconds"),
        (r"(?:0 )?\*/([2-6]|10|12|15|20|30) \* \* \* \*", "every {0} minutes"),
        (r"(?:0 )?0 \* \* \* \*", "every hour"),
        (r"(?:0 )?(\d+) \* \* \* \*", "at minute {0} of every hour"),
        (r"(?:0 )?0 \*/([23468]|12) \* \* \*", "every {0} hours, from midnight"),
        (r"(?:0 )?(\d+) (\d+) \* \* \*", "at {1:0>2}:{0:0>2} every day"),
        (r"(?:0 )?(\d+) (\d+) \* \* (?:1-5|MON-FRI)", "at {1:0>2}:{0:0>2} Monday to Friday"),
        (r"(?:0 )?(\d+) (\d+) \* \* ([0-7]|[A-Z]{3})", "at {1:0>2}:{0:0>2} every {day}"),
        (r"(?:0 )?(\d+) (\d+) (\d+) \* \*", "at {1:0>2}:{0:0>2} on day {2} of every month"),
        (r"(?:0 )?(\d+) (\d+) (\d+) (\d+) \*", "at {1:0>2}:{0:0>2} every year on day {2} of month {3}"),
    ):
        if match := re.fullmatch(pattern, meaning.fields.upper()):
            return words.format(*match.groups(), day=_day(match[3]) if "{day}" in words else "")
    return rule


def _day(word: str) -> str:
    return _DAYS[int(word) % 7] if word.isdigit() else next(day for day in _DAYS if day.upper().startswith(word))


class _Meaning(NamedTuple):
    """A parsed rule: an interval in seconds, or the fields for cronsim and whether they include every hour."""

    every: int
    fields: str
    every_hour: bool


@lru_cache(maxsize=4096)
def _meaning(rule: str) -> _Meaning:
    if rule.startswith("@"):
        word, _, length = rule.lower().partition(" ")
        if word == "@every":
            maximum = int(MAX_DURATION.total_seconds())
            every = _seconds("rule @every", length)
            if not 1 <= every <= maximum:
                raise Invalid(
                    "rule @every", f"{_quoted(length)} is not in 1s … {maximum}s", "choose an interval in that range"
                )
            return _Meaning(every, "", False)
        if rule.lower() not in MACROS:
            raise Invalid("rule", f"{_quoted(rule)} is not a macro", f"use one of {', '.join(MACROS)}, or @every 90s")
    fields = MACROS.get(rule.lower(), rule)
    parts = fields.split()
    if len(parts) not in (5, 6):
        raise Invalid(
            "rule",
            f"{_quoted(rule)} has {len(parts)} fields",
            "write minute hour day-of-month month day-of-week, such as '30 1 * * *'; six fields begin with the second",
        )
    names = list(_FIELDS)[-len(parts) :]
    for name, part in zip(names, parts, strict=True):
        _check_steps(name, part)
    try:
        parsed = CronSim(fields, to_datetime(0))
    except CronSimError as error:
        raise _refusal(names, parts, str(error).removeprefix("Bad ")) from None
    return _Meaning(0, fields, parsed.hours >= _EVERY_HOUR)


def _check_steps(name: str, part: str) -> None:
    """Refuse */90 for minutes, which cronsim reads as "at minute 0"."""
    size, _ = _FIELDS[name]
    for step in re.findall(r"/([0-9]+)", part):
        if int(step) > size:
            raise Invalid(
                f"rule {name}",
                f"the step of {_quoted(part)} exceeds the field's {size} values",
                "use @every for intervals",
            )


def _refusal(names: list[str], parts: list[str], name: str) -> Invalid:
    part = parts[names.index(name)] if name in names else " ".join(parts)
    if name == "day-of-month" and re.fullmatch(r"(30|31)([,-](30|31))*", part):
        return Invalid("rule day-of-month", f"no month of {_quoted(parts[-2])} has a day {part}", "use L for the last")
    _, example = _FIELDS.get(name, (0, "five or six fields"))
    return Invalid(f"rule {name}", f"{_quoted(part)} is not understood or out of range", f"write it like {example}")


def _seconds(field: str, text: str) -> int:
    """ "90s", "5m", "1h30m" in seconds."""
    parts = re.findall(r"([0-9]{1,9})([dhms])", text)
    if not parts or "".join(map("".join, parts)) != text:
        raise Invalid(field, f"{_quoted(text)} is not a duration", "write it like 90s, 5m or 1h30m")
    return sum(int(count) * _UNITS[unit] for count, unit in parts)


def _check_word(field: str, word: object, words: tuple[str, ...]) -> None:
    if word not in words:
        raise Invalid(field, f"{_quoted(word)} is not known", f"use {', '.join(words[:-1])} or {words[-1]}")


def _quoted(value: object) -> str:
    return ascii(value) if len(ascii(value)) <= 60 else ascii(value)[:59] + "…"


def _walls(fields: str, after: int) -> Iterator[int]:
    """The matching seconds of a wall clock after this one, counted as if it were UTC: cronsim gets no zone."""
    return (int(moment.timestamp()) for moment in CronSim(fields, to_datetime(0) + timedelta(seconds=after)))


def _shown(fields: str, zone: str, after: int) -> Iterator[int]:
    """Fire whenever the wall clock shows a matching time: never in a gap, twice in an overlap."""
    seen = after + offset_at(zone, after)
    walls = _walls(fields, seen)
    wall = next(walls, None)
    for start, end, offset in offset_periods(zone, after):
        if start + offset < seen:
            walls = _walls(fields, start + offset - 1)
            wall = next(walls, None)
        while wall is not None and wall < start + offset:
            wall = next(walls, None)
        while wall is not None and wall < end + offset:
            yield wall - offset
            wall = next(walls, None)
        if wall is None:
            return
        seen = end + offset
