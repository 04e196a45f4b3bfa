"""Time as the core and the stores count it: whole microseconds.

`Instant` is microseconds since 1970-01-01 UTC, `Duration` a number of microseconds. Integers compare exactly, fit
64 bits and add up to ranks. The public API takes `datetime` and `timedelta`; these functions convert.
"""

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from forebay.core.errors import Invalid
from forebay.core.limits import MAX_DURATION, MAX_INSTANT

Instant: TypeAlias = int
Duration: TypeAlias = int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def ms(count: float) -> timedelta:
    """So many milliseconds, as a timedelta."""
    return timedelta(milliseconds=count)


def seconds(count: float) -> timedelta:
    """So many seconds, as a timedelta."""
    return timedelta(seconds=count)


def minutes(count: float) -> timedelta:
    """So many minutes, as a timedelta."""
    return timedelta(minutes=count)


def hours(count: float) -> timedelta:
    """So many hours, as a timedelta."""
    return timedelta(hours=count)


def days(count: float) -> timedelta:
    """So many days, as a timedelta."""
    return timedelta(days=count)


def micros(duration: timedelta) -> Duration:
    return duration // _MICROSECOND


def checked_micros(field: str, duration: timedelta, minimum: timedelta, maximum: timedelta) -> Duration:
    """The duration in microseconds; `Invalid` if it is not a timedelta within the bounds."""
    if not isinstance(duration, timedelta):
        raise Invalid(field, f"{type(duration).__name__} is not a duration", "give a timedelta, such as seconds(30)")
    if not minimum <= duration <= maximum:
        bounds = f"{in_words(minimum)} … {in_words(maximum)}"
        raise Invalid(field, f"{in_words(duration)} is not in {bounds}", "choose a length in that range")
    return micros(duration)


def checked_instant(field: str, instant: Instant) -> Instant:
    if type(instant) is not int:
        raise Invalid(field, f"{type(instant).__name__} is not an instant", "give microseconds, or use from_datetime()")
    if not 0 <= instant <= MAX_INSTANT:
        raise Invalid(
            field, f"{instant} µs is before 1970 or after 2200", "check the unit: instants are microseconds since 1970"
        )
    return instant


def from_datetime(moment: datetime) -> Instant:
    """An aware datetime as an instant. A naive one is refused: its time zone is unknown."""
    if not isinstance(moment, datetime):
        raise Invalid("datetime", f"{type(moment).__name__} is not a datetime", "give an aware datetime")
    if moment.tzinfo is None:
        raise Invalid("datetime", "it has no time zone", "add tzinfo, for example datetime.now(UTC)")
    return (moment - _EPOCH) // _MICROSECOND


def to_datetime(instant: Instant) -> datetime:
    """An instant as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=instant)


def from_seconds(field: str, count: float, maximum: timedelta = MAX_DURATION) -> Duration:
    """Seconds as microseconds; `Invalid` if they are not a number within the bounds."""
    if type(count) not in (int, float) or not 0 <= count <= maximum.total_seconds():
        raise Invalid(field, f"{count!r} is not a number of seconds in 0 … {maximum.total_seconds():g}", "give seconds")
    return round(count * 1_000_000)


def in_words(duration: timedelta) -> str:
    """A length of time in the largest unit that fits it evenly: "7 days", "90 s"."""
    for unit, size in (("days", days(1)), ("h", hours(1)), ("min", minutes(1)), ("s", seconds(1)), ("ms", ms(1))):
        if duration and not duration % size:
            return "1 day" if duration == days(1) else f"{duration // size} {unit}"
    return f"{micros(duration)} µs"
