"""Plots as inline SVG, drawn from plain numbers: no library, no script, nothing from elsewhere.

Colours are CSS variables of the page, for its light and dark themes. Every plot has a title and a sentence for screen
readers. All text is escaped. Where there are more points than pixels, the highest and the lowest of each interval are
kept, so no peak is lost.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import Final

from msgspec import Struct

from forebay.core.humanize import number

MAX_POINTS: Final = 400
MAX_BARS: Final = 40
MAX_SERIES: Final = 6
"""There are as many colours."""

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 14, 30
_TICKS: Final = 4
_GAP_TIMES: Final = 20

Point = tuple[float, float]


class Curve(Struct, frozen=True):
    """Points in the order of x; a y of None is a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


def lines(title: str, sentence: str, series: Sequence[Curve], unit: str, x_labels: tuple[str, str]) -> str:
    """Values over time. `x_labels` are under the first and the last point."""
    shown = [Curve(each.name, [(x, y) for x, y in each.points if y is None or isfinite(y)]) for each in series]
    shown = [each for each in shown[:MAX_SERIES] if any(y is not None for _, y in each.points)]
    if not shown:
        return nothing(title)
    xs = [x for each in shown for x, _ in each.points]
    frame = _Frame(min(xs), max(xs), max(y for each in shown for _, y in each.points if y is not None), unit)
    parts = [frame.axes(), frame.ends(*x_labels)]
    for place, each in enumerate(shown):
        stretches = _stretches(thinned(each.points), _far(each.points))
        parts += [_stroke([(frame.x(x), frame.y(y)) for x, y in stretch], place) for stretch in stretches]
    return _figure(title, sentence, "".join(parts), [each.name for each in shown])


class SweepPoint(Struct, frozen=True):
    """The measurements at one setting of a sweep: median, minimum and maximum."""

    at: str
    middle: float
    minimum: float
    maximum: float


def sweep(
    title: str, sentence: str, places: Sequence[str], series: Sequence[tuple[str, Sequence[SweepPoint]]], unit: str
) -> str:
    """Values over settings, side by side however far apart they are; a stroke is from minimum to maximum."""
    shown = [(name, spreads) for name, spreads in series[:MAX_SERIES] if spreads]
    if not shown:
        return nothing(title)
    where = {place: float(at) for at, place in enumerate(places)}
    top = max(each.maximum for _, spreads in shown for each in spreads)
    frame = _Frame(-0.5, len(places) - 0.5, top, unit)
    parts = [frame.axes()]
    parts += [
        f'<text class="x" x="{frame.x(where[place]):.1f}" y="{HEIGHT - 12}">{escape(_cut(place, 14))}</text>'
        for place in places
    ]
    for colour, (name, spreads) in enumerate(shown):
        points = [(frame.x(where[each.at]) + 3 * colour, frame.y(each.middle)) for each in spreads]
        parts.append(_stroke(points, colour) if len(points) > 1 else "")
        for (x, y), each in zip(points, spreads, strict=True):
            ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{frame.y(each.minimum):.1f}" y2="{frame.y(each.maximum):.1f}"'
            label = f"<title>{escape(name)}, {escape(each.at)}: {number_of(each)}{escape(unit)}</title>"
            parts.append(f'<line class="s{colour}" {ends}/>')
            parts.append(f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">{label}</circle>')
    return _figure(title, sentence, "".join(parts), [name for name, _ in shown])


def number_of(spread: SweepPoint) -> str:
    """`30.1k (29.5k … 31k)`, or the middle alone where there is no spread."""
    ends = "" if spread.minimum == spread.maximum else f" ({number(spread.minimum)} … {number(spread.maximum)})"
    return f"{number(spread.middle)}{ends}"


def bars(title: str, sentence: str, values: Sequence[tuple[str, float]], unit: str) -> str:
    """Counts of sorts; beyond a bound the rest is one bar."""
    if not any(value for _, value in values):
        return nothing(title)
    shown = list(values[:MAX_BARS])
    if len(values) > MAX_BARS:
        shown[-1] = ("more", sum(value for _, value in values[MAX_BARS - 1 :]))
    frame = _Frame(0, len(shown), max(value for _, value in shown), unit)
    parts = [frame.axes()]
    every = ceil(len(shown) / 16)
    for place, (name, value) in enumerate(shown):
        left, right = frame.x(place + 0.12), frame.x(place + 0.88)
        top = frame.y(value)
        label = f"<title>{escape(name)}: {number(value)}{escape(unit)}</title>"
        height = max(0.0, HEIGHT - _BOTTOM - top)
        parts.append(f'<rect class="b0" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{height:.1f}">')
        parts.append(f"{label}</rect>")
        if place % every == 0:
            middle = (left + right) / 2
            parts.append(f'<text class="x" x="{middle:.1f}" y="{HEIGHT - 12}">{escape(_cut(name, 14))}</text>')
    return _figure(title, sentence, "".join(parts), [])


def nothing(title: str) -> str:
    """In place of a plot without data."""
    return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">nothing to show</p></figure>'


def thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """At most MAX_POINTS of them, the first, the last and the extremes of each stretch among them."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = ceil(len(points) / (MAX_POINTS // 2 - 1))
    kept: list[tuple[float, float | None]] = [points[0]]
    for start in range(1, len(points) - 1, size):
        known = [point for point in points[start : min(start + size, len(points) - 1)] if point[1] is not None]
        if known:
            lowest, highest = min(known, key=_height), max(known, key=_height)
            kept += sorted({lowest, highest})
    return [*kept, points[-1]]


class _Frame:
    """Maps values to coordinates."""

    def __init__(self, left: float, right: float, top: float, unit: str) -> None:
        self._left = left
        self._width = (right - left) or 1.0
        self._step = _step(top)
        self._top = self._step * max(1, ceil(top / self._step - 1e-9))
        self._unit = unit

    def x(self, value: float) -> float:
        return _LEFT + (value - self._left) / self._width * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - max(0.0, value) / self._top * (HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> str:
        parts = []
        for tick in range(round(self._top / self._step) + 1):
            value = tick * self._step
            y = self.y(value)
            label = f"{number(value)}{escape(self._unit)}"
            parts.append(f'<line class="g" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{label}</text>')
        return "".join(parts)

    def ends(self, first: str, last: str) -> str:
        y = HEIGHT - 10
        left = f'<text x="{_LEFT}" y="{y}">{escape(first)}</text>'
        return left + f'<text class="y" x="{WIDTH - _RIGHT}" y="{y}">{escape(last)}</text>'


def _step(top: float) -> float:
    """A round number of which a few make the axis."""
    if top <= 0:
        return 1.0
    rough = top / _TICKS
    size = 10.0 ** floor(log10(rough))
    return next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= rough * (1 - 1e-9))


def _far(points: Sequence[tuple[float, float | None]]) -> float:
    """Points further apart than this are not joined."""
    steps = sorted(after[0] - before[0] for before, after in pairwise(points))
    usual = (steps[len(steps) // 2] or 1.0) if steps else 1.0
    return _GAP_TIMES * usual * max(1, ceil(len(points) / (MAX_POINTS // 2)))


def _stretches(points: Sequence[tuple[float, float | None]], far: float) -> list[list[Point]]:
    """Neighbouring points that a line may join."""
    found: list[list[Point]] = []
    last: float | None = None
    for x, y in points:
        if y is None:
            last = None
            continue
        if last is None or x - last > far:
            found.append([])
        found[-1].append((x, y))
        last = x
    return found


def _stroke(points: list[Point], colour: int) -> str:
    if len(points) == 1:
        return f'<circle class="c{colour}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="s{colour}" points="{path}"/>'


def _figure(title: str, sentence: str, body: str, names: Sequence[str]) -> str:
    keys = "".join(f'<span class="k{place}">{escape(_cut(name, 40))}</span>' for place, name in enumerate(names))
    legend = f'<div class="legend">{keys}</div>' if keys else ""
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: {escape(sentence)}">{body}</svg>'
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{svg}<p>{escape(sentence)}</p></figure>"


def _height(point: tuple[float, float | None]) -> float:
    return point[1] or 0.0


def _cut(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else text[: maximum - 1] + "…"
