"""Instants, durations and numbers as text, the same on every screen and page; times are UTC."""

from typing import Final

from forebay.core.instant import Instant, to_datetime
from forebay.core.limits import MAX_INSTANT

SECOND: Final = 1_000_000


def iso(instant: Instant | None) -> str | None:
    """ISO 8601 for JSON: UTC, with microseconds; None for an instant that never comes."""
    if instant is None or instant >= MAX_INSTANT:
        return None
    return to_datetime(instant).isoformat().replace("+00:00", "Z")


def when(instant: Instant | None, now: Instant) -> str:
    """The instant in UTC and its distance from now: "2026-03-01 14:03:07 UTC, 4m 10s ago"."""
    if instant is None:
        return "–"
    if instant >= MAX_INSTANT:
        return "never"
    away = f"in {format_duration(instant - now)}" if instant > now else f"{format_duration(now - instant)} ago"
    return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC, {away}"


def format_duration(micros: int) -> str:
    """A duration in at most two units: "4m 10s", "3.2s"."""
    seconds = max(0, micros) / SECOND
    if seconds < 0.001:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1_000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for big, small, size, part in (("d", "h", 86_400, 3_600), ("h", "m", 3_600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{big} {rest}{small}" if rest else f"{whole // size}{big}"
    return f"{whole}s"


def many(number: int, word: str) -> str:
    """ "1 job", "1,204 jobs"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """A short number: 1,204 · 12.5k · 0.031."""
    if value == 0:
        return "0"
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if abs(value) >= 10_000:
        return f"{value / 1_000:.4g}k"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
