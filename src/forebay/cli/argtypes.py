"""Parsers of command-line values: durations, times, rates, sizes, counts, ids, payloads.

Parsers for argparse raise `ArgumentTypeError` with the remedy; `moment` needs the store's clock and is called later.
"""

import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.humanize import SECOND
from forebay.core.instant import Instant, from_datetime, to_datetime
from forebay.core.limits import MAX_DURATION
from forebay.core.payload import Json

_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SIZES: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(d|h|ms|m|s)")
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|m|h))?")
_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


def duration(text: str) -> timedelta:
    """ "90", "90s", "1h30m", "500ms"; a bare number is seconds."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        text += "s"
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise ArgumentTypeError(f"{text!r} is not a duration; write it like 90s, 5m, 1h30m or 500ms")
    total = sum(float(count) * _UNITS[unit] for count, unit in parts)
    if total > MAX_DURATION.total_seconds():
        raise ArgumentTypeError(f"{text!r} is longer than {MAX_DURATION.days} days")
    return timedelta(seconds=total)


def rate(text: str) -> float:
    """ "20", "20/s", "600/m" as a rate per second."""
    match = _RATE.fullmatch(text)
    if match is None or not float(match[1]):
        raise ArgumentTypeError(f"{text!r} is not a rate; write it like 20/s, 600/m or 20")
    return float(match[1]) / _UNITS[match[2] or "s"]


def fraction(text: str) -> float:
    """A number above 0 and up to 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) <= 1:
        raise ArgumentTypeError(f"{text!r} is not a fraction; write a number above 0 and up to 1, such as 0.2")
    return float(text)


def size(text: str) -> int:
    """ "500M", "2G", "2000" as a number of bytes."""
    match = re.fullmatch(r"([0-9]+)([KMGT]?)B?", text.upper())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes; write it like 500M or 2G")
    return int(match[1]) * _SIZES[match[2]]


def directory(text: str) -> Path:
    """A directory that exists."""
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"{text!r} is not a directory")
    return Path(text)


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**53:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def job_id(text: str) -> int:
    """A job id, as printed by `enqueue`."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**63:
        raise ArgumentTypeError(f"{text!r} is not a job id; ids are numbers, as shown by `forebay ls`")
    return int(text)


def moment(field: str, text: str, now: Instant) -> Instant:
    """An ISO time with a zone, the next such time of day on this machine's clock, or a duration from now."""
    if match := _CLOCK.fullmatch(text):
        here = to_datetime(now).astimezone()
        hour, minute, second = (int(part or 0) for part in match.groups())
        then = here.replace(hour=hour, minute=minute, second=second, microsecond=0, tzinfo=None)
        then += timedelta(days=then <= here.replace(tzinfo=None))
        return from_datetime(then.astimezone())
    try:
        return from_datetime(datetime.fromisoformat(text))
    except Invalid:
        raise Invalid(field, f"{text!r} has no time zone", "end it with Z or an offset such as +02:00") from None
    except (ValueError, OverflowError):
        pass
    try:
        return now + int(duration(text.removeprefix("+")).total_seconds() * SECOND)
    except ArgumentTypeError:
        raise Invalid(field, f"{text!r} is not a time", "write it like 2030-01-31T10:30:00Z, 10:30 or +5m") from None


def payload_of(words: list[str]) -> Json:
    """One JSON text, or `key=value` pairs whose values are parsed as JSON if possible, else taken as text."""
    if not words:
        return None
    if len(words) == 1 and not re.match(r"[A-Za-z_]\w*=", words[0]):
        return json_of("payload", words[0])
    pairs: dict[str, Json] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise Invalid("payload", f"{_shown(word)} is not key=value", "give one JSON text, or key=value pairs")
        if name in pairs:
            raise Invalid("payload", f"{_shown(name)} is given twice", "give each key once")
        pairs[name] = _value(text)
    return pairs


def json_of(field: str, text: str | bytes) -> Json:
    """Decoded JSON. The error does not repeat the input: it may be secret."""
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid(field, str(error), """write JSON, such as '{"to": "ada"}', or key=value pairs""") from None
    return value


def _value(text: str) -> Json:
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text
    return value


def _shown(text: str) -> str:
    return ascii(text) if len(text) <= 40 else ascii(text[:39]) + "…"
