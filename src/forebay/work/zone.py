"""Time zones as periods of constant offset, and the validation of zone names.

The zone database of the system, or of the tzdata package where there is none, is authoritative. zoneinfo does not list
transitions, so they are found by sampling the offset every `SAMPLE` seconds. Two transitions within less would be
missed; a test reads the database and proves that no zone has had any since 1970. All numbers are seconds since 1970.
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

_EXCLUDED = ("posix", "right/", "localtime")
"""Names that are no zones: two copies of the database, one with leap seconds, and the zone of this machine."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetPeriod(NamedTuple):
    """From `start` (inclusive) to `end` (exclusive) the wall clock is UTC plus `offset`."""

    start: int
    end: int
    offset: int


def offset_periods(zone: str, since: int) -> Iterator[OffsetPeriod]:
    """The periods from this second to the end of `LAST_YEAR`, without gaps; neighbours may have the same offset."""
    start, offset = since, offset_at(zone, since)
    for year in range((_EPOCH + timedelta(seconds=since)).year, LAST_YEAR + 1):
        for transition, after in transitions(zone, year):
            if transition > start:
                yield OffsetPeriod(start, transition, offset)
                start, offset = transition, after
        end = _year_start(year + 1)
        if end > start:
            yield OffsetPeriod(start, end, offset)
            start = end


def latest_wall_time(zone: str, upto: int) -> int:
    """The latest time that the wall clock has shown up to this second, counted as if it were UTC."""
    seen = takewhile(lambda period: period.start <= upto, offset_periods(zone, upto - LOOK_BACK))
    return max(min(period.end - 1, upto) + period.offset for period in seen)


@lru_cache(maxsize=16_384)
def transitions(zone: str, year: int) -> tuple[tuple[int, int], ...]:
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
    if zone.startswith(_EXCLUDED):
        return False
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _nearest(zone: str) -> list[str]:
    """Up to three similar names, or the exact one if only the region or the case is wrong."""
    names = sorted(name for name in available_timezones() if not name.startswith(_EXCLUDED))
    known = {name.rpartition("/")[2].lower(): name for name in names} | {name.lower(): name for name in names}
    wanted = zone.strip().replace(" ", "_").lower()
    if wanted in known:
        return [known[wanted]]
    near = get_close_matches(wanted, known, 6) or get_close_matches(wanted.rpartition("/")[2], known, 6)
    return list(dict.fromkeys(known[key] for key in near))[:3]


def _year_start(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
