"""A time zone as stretches of time in which its offset stays the same, and the check of zone names.

The zone database of the system, or of the tzdata package where there is none, is authoritative. It offers no list of
changes, so they are found by sampling the offset every `SAMPLE` seconds: two changes within less would be overlooked,
and a test reads the database to see that no zone has had such since 1970. All numbers are seconds since 1970.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import takewhile
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from forebay.core.errors import Invalid

SAMPLE: Final = 2 * 86_400
LOOK_BACK: Final = 2 * 86_400
LAST_YEAR: Final = 2200

_UNFIT = ("posix", "right/", "localtime")
"""Other names in the same folder: two copies, one of them with leap seconds, and the zone of this one machine."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stretch(NamedTuple):
    """From `start` up to but not including `end` the wall clock is UTC plus `offset`."""

    start: int
    end: int
    offset: int


def stretches(zone: str, since: int) -> Iterator[Stretch]:
    """From this second to the end of `LAST_YEAR`, without holes; neighbours may have the same offset."""
    start, offset = since, offset_at(zone, since)
    for year in range((_EPOCH + timedelta(seconds=since)).year, LAST_YEAR + 1):
        for shift, after in shifts(zone, year):
            if shift > start:
                yield Stretch(start, shift, offset)
                start, offset = shift, after
        end = _year_start(year + 1)
        if end > start:
            yield Stretch(start, end, offset)
            start = end


def high_water(zone: str, upto: int) -> int:
    """The latest time that the wall clock has shown up to this second, counted as if the wall were UTC."""
    seen = takewhile(lambda stretch: stretch.start <= upto, stretches(zone, upto - LOOK_BACK))
    return max(min(stretch.end - 1, upto) + stretch.offset for stretch in seen)


@lru_cache(maxsize=16_384)
def shifts(zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """The seconds of a year at which the offset changes, and the offset from then on."""
    found = []
    end = _year_start(year + 1)
    for low in range(_year_start(year), end, SAMPLE):
        left, right = low, min(low + SAMPLE, end)
        before, after = offset_at(zone, left), offset_at(zone, right)
        while before != after and right - left > 1:
            middle = (left + right) // 2
            left, right = (middle, right) if offset_at(zone, middle) == before else (left, middle)
        if before != after:
            found.append((right, after))
    return tuple(found)


def offset_at(zone: str, second: int) -> int:
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(zone)).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def check_zone(zone: str) -> str:
    if not isinstance(zone, str) or not _exists(zone):
        near = _nearest(str(zone))
        remedy = f"did you mean {' or '.join(near)}?" if near else "use a name such as Europe/Berlin"
        raise Invalid("zone", f"{ascii(zone)[:60]} is not in the time zone database", remedy)
    return zone


@lru_cache(maxsize=1024)
def _exists(zone: str) -> bool:
    if zone.startswith(_UNFIT):
        return False
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _nearest(zone: str) -> list[str]:
    """Up to three names that look alike, or the one that was meant where only city or case is wrong."""
    names = sorted(name for name in available_timezones() if not name.startswith(_UNFIT))
    known = {name.rpartition("/")[2].lower(): name for name in names} | {name.lower(): name for name in names}
    wanted = zone.strip().replace(" ", "_").lower()
    if wanted in known:
        return [known[wanted]]
    near = get_close_matches(wanted, known, 6) or get_close_matches(wanted.rpartition("/")[2], known, 6)
    return list(dict.fromkeys(known[key] for key in near))[:3]


def _year_start(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
