"""Coordinates of small charts: sparklines, the axes of a queue, the timeline of a job. Templates draw them as SVG.

Nothing here is markup, so nothing has to be escaped; colours and strokes are in the style sheet.
"""

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Final

from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.serve.dashboard.views.queue import AxisRow
from forebay.serve.dashboard.views.timeline import TimelineEntry

WIDTH: Final = 120
HEIGHT: Final = 28
LIFE_WIDTH: Final = 1_000
_PAD: Final = 2
_TICK: Final = 4.0
_THIN: Final = 2.5


class Spark(Struct, frozen=True):
    """Lines between adjacent known points; `areas`: closed along the bottom; `ticks`: the tops of non-zero values."""

    lines: list[str]
    areas: list[str]
    ticks: list[tuple[float, float]]
    peak: int


def spark(values: Sequence[int | None], peak: int | None = None, width: int = WIDTH, height: int = HEIGHT) -> Spark:
    """Values from left to right, the highest at the top. `peak`: a common scale for several sparklines."""
    top = max((value for value in values if value is not None), default=0)
    scale = max(1, top if peak is None else peak)
    gap = width / max(1, len(values) - 1)
    stretches: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append((index * gap, height - _PAD - value / scale * (height - 2 * _PAD)))
    shown = [stretch for stretch in stretches if len(stretch) > 1]
    lines = [" ".join(f"{x:.1f},{y:.1f}" for x, y in stretch) for stretch in shown]
    areas = [
        f"{stretch[0][0]:.1f},{height} {line} {stretch[-1][0]:.1f},{height}"
        for stretch, line in zip(shown, lines, strict=True)
    ]
    ticks = [
        (round(x, 1), round(min(y, height - _TICK), 1))
        for stretch in stretches
        for x, y in stretch
        if y < height - _PAD
    ]
    return Spark(lines, areas, ticks, top)


class Spoke(Struct, frozen=True):
    """One axis: its end, its stops, the queue's point on it, and the position of its label."""

    name: str
    x: float
    y: float
    stops: list[tuple[float, float]]
    at: tuple[float, float]
    label: tuple[float, float]
    anchor: str


class Star(Struct, frozen=True):
    """Five axes from one centre; `shape` joins the queue's points, `rings` are equal distances."""

    spokes: list[Spoke]
    shape: str
    rings: list[str]


def star(axes: Sequence[AxisRow], radius: float = 92.0) -> Star:
    """The plainest queue has the smallest shape: the first point of an axis is nearest to the centre."""
    spokes = []
    for number, axis in enumerate(axes):
        turn = -pi / 2 + 2 * pi * number / len(axes)
        across, down = cos(turn), sin(turn)
        far = [radius * (0.28 + 0.72 * stop / (len(axis.points) - 1)) for stop in range(len(axis.points))]
        anchor = "middle" if abs(across) < 0.3 else "start" if across > 0 else "end"
        spokes.append(
            Spoke(
                axis.name,
                round(across * radius, 1),
                round(down * radius, 1),
                [(round(across * each, 1), round(down * each, 1)) for each in far],
                (round(across * far[axis.place], 1), round(down * far[axis.place], 1)),
                (round(across * (radius + 12), 1), round(down * (radius + 12) + 4, 1)),
                anchor,
            )
        )
    shape = " ".join(f"{x},{y}" for x, y in (spoke.at for spoke in spokes))
    rings = [
        " ".join(f"{round(spoke.x * part, 1)},{round(spoke.y * part, 1)}" for spoke in spokes)
        for part in (0.28, 0.64, 1.0)
    ]
    return Star(spokes, shape, rings)


class Stretch(Struct, frozen=True):
    """A part of a job's timeline: `sort` is waited, ran, failed or held."""

    sort: str
    x: float
    width: float
    start: Instant
    end: Instant


_RAN: Final[dict[str, str]] = {Change.RETRIED: "failed", Change.DIED: "failed"}
_WAITS_AFTER: Final = frozenset((Change.ACCEPTED, Change.RETRIED, Change.RELEASED, Change.REDRIVEN, Change.MERGED))


def life(moments: Sequence[TimelineEntry], now: Instant, running: bool) -> list[Stretch]:
    """Waiting and running in order, from acceptance to the end or to now, over `LIFE_WIDTH`."""
    if not moments:
        return []
    parts: list[tuple[str, Instant, Instant]] = []
    last, sort = moments[0].at, "waited"
    for moment in moments[1:]:
        if moment.change == Change.EXTENDED:
            continue
        ran = sort == "ran"
        parts.append((_RAN.get(moment.change, "ran") if ran else "waited", last, moment.at))
        last = moment.at
        sort = "ran" if moment.change == Change.CLAIMED else "waited" if moment.change in _WAITS_AFTER else "over"
        if sort == "over" and moment.change == Change.CANCEL_REQUESTED:
            sort = "ran" if ran else "waited"
    if sort != "over":
        parts.append(("ran" if running else sort, last, max(last, now)))
    first, whole = moments[0].at, max(1, parts[-1][2] - moments[0].at) if parts else 1
    return [
        Stretch(
            sort,
            round((start - first) / whole * LIFE_WIDTH, 1),
            round(max(_THIN, (end - start) / whole * LIFE_WIDTH), 1),
            start,
            end,
        )
        for sort, start, end in parts
    ]
